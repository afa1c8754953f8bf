"""What the service shows, as a program reads it: durations are seconds."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Mapping, Tuple


@dataclass(frozen=True)
class Waiter:
    """A place in the queue."""

    holder: str
    waiting: float


@dataclass(frozen=True)
class LockState:
    """A resource, and who holds it. Of a free one only the resource and the queue mean something."""

    resource: str
    held: bool
    holder: str = ""  # the label of the holder; "" if it has none
    token: int = 0  # the fencing token of its lease
    remaining: float = 0.0  # until its lease ends, unless it is extended
    ttl: float = 0.0  # what its lease was last given
    held_for: float = 0.0  # since the grant
    metadata: Any = None  # the JSON value of its acquire
    waiters: int = 0  # how many wait in the queue
    queue: Tuple[Waiter, ...] = ()  # the first of them, first in the queue first


@dataclass(frozen=True)
class Record:
    """A guarded record."""

    resource: str
    highest_token: int = 0  # the highest that it has seen; 0 if it has seen none
    value: Any = None  # a JSON value; None before the first write, after a delete, and in a list
    version: int = 0  # the number of accepted writes


@dataclass(frozen=True)
class Attempt:
    """A write or a claim of a guarded record, accepted or refused."""

    token: int
    highest: int  # what the token was compared with
    kind: str  # "write" or "claim"
    accepted: bool
    version: int
    at: datetime.datetime


Json = Mapping[str, Any]


def lock_state(of: Json) -> LockState:
    return LockState(
        resource=str(of["resource"]), held=bool(of.get("held")), holder=str(of.get("holder") or ""), token=int(of.get("fencing_token") or 0),
        remaining=_seconds(of, "remaining_ms"), ttl=_seconds(of, "ttl_ms"), held_for=_seconds(of, "held_ms"), metadata=of.get("metadata"),
        waiters=int(of.get("waiters") or 0), queue=tuple(Waiter(str(w.get("holder") or ""), _seconds(w, "waiting_ms")) for w in of.get("queue") or ()),
    )


def record(of: Json) -> Record:
    return Record(resource=str(of["resource"]), highest_token=int(of.get("highest_token") or 0), value=of.get("value"), version=int(of.get("version") or 0))


def attempt(of: Json) -> Attempt:
    return Attempt(
        token=int(of["fencing_token"]), highest=int(of["highest_token"]), kind=str(of["kind"]), accepted=bool(of["accepted"]), version=int(of.get("version") or 0),
        at=_time(str(of["at"])),
    )


def _seconds(of: Json, member: str) -> float:
    return int(of.get(member) or 0) / 1000


def _time(text: str) -> datetime.datetime:
    """RFC 3339 in UTC, with any number of digits: Python before 3.11 reads three or six."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    at = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.timezone.utc)
    return at.replace(microsecond=int((fraction + "000000")[:6]))
