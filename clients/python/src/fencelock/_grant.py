"""A lease as the process that holds it knows it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Set
from typing import Protocol as Protocol_

from .errors import LeaseLostError, lost

RELEASED = "it was released"  # the reason why a released lease is over


@dataclass(frozen=True)
class Part:
    """One resource of a lease. The token is the same for the whole life of the lease."""

    resource: str
    token: int
    proof: str = field(default="", repr=False)


class Presented(Protocol_):
    """The lease under which a record is written: a lease of one resource, or one of a lease's parts."""

    @property
    def resource(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def proof(self) -> str: ...


class Grant:
    """A lease, as the process that holds it knows it."""

    def __init__(self, now: Callable[[], float], sent: float, answer: Mapping[str, Any]) -> None:
        self._now = now
        self.pid = os.getpid()
        self.id = str(answer["lease_id"])
        self.ttl = int(answer["ttl_ms"]) / 1000
        of = answer.get("resources") or [answer]
        self.parts = tuple(Part(p["resource"], int(p["fencing_token"]), p.get("fencing_proof") or "") for p in of)
        self.name = ", ".join(p.resource for p in self.parts)
        self.slot = int(answer.get("slot") or 0)
        self.margin = 0.0  # seconds before the end of validity, from which the lease counts as lost
        self.gone = ""  # why it has ended; "" while it has not
        self.renew(sent, answer)

    def renew(self, sent: float, answer: Mapping[str, Any]) -> None:
        """Records the validity in a response. It counts from when the request was sent."""
        self.until = sent + (int(answer["waited_ms"]) + int(answer["validity_ms"])) / 1000
        cap = answer.get("max_hold_remaining_ms")
        self.capped = cap is not None and int(cap) / 1000 <= self.ttl

    def set_margin(self, margin: Optional[float]) -> None:
        """Sets the margin: a tenth of the TTL unless it is given, at most half of the TTL."""
        self.margin = self.ttl / 10 if margin is None else min(margin, self.ttl / 2)

    def asked(self) -> Set[str]:
        """The resources that the request named. A request for a slot names the slot's resource."""
        if self.slot:
            return {self.name[: -len(f"#slot{self.slot}")]}
        return {p.resource for p in self.parts}

    @property
    def left(self) -> float:
        """Seconds until the work has to stop."""
        return self.until - self.margin - self._now()

    def foreign(self) -> bool:
        """Whether another process took the lease, and this one was forked from it."""
        return self.pid != os.getpid()

    def why_lost(self) -> str:
        """Why the lease is lost; "" while it is not. It reads the clock, so a process that was paused notices the
        loss at once."""
        if self.gone:
            return self.gone
        if self.foreign():
            return f"it belongs to process {self.pid}, from which this one was forked"
        if self.left > 0:
            return ""
        if self.capped:
            return "it has reached its maximum hold time (max_hold, or the service's FENCELOCK_MAX_HOLD)"
        return "it was not extended in time"


def lost_error(grant: Grant, why: str) -> LeaseLostError:
    return lost(grant.name, why)
