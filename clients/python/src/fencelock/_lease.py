"""What a lease shows, with threads and on asyncio alike."""

from __future__ import annotations

import contextvars
import os
import threading
from typing import Generic, Optional, Tuple, TypeVar

from ._core import RELEASED, Grant, Options, Part, Protocol, Resources, Server, lost_error
from .errors import RefusedError, shown


class LeaseView:
    """A lease that this process holds. Times are seconds on the monotonic clock
    (``time.monotonic``), counted from before the request that got them."""

    def __init__(self, grant: Grant, client: object = None, servers: Tuple[Server, ...] = ()) -> None:
        self._of: object = client
        self._servers = servers
        self._grant = grant
        self._inside = 0  # with statements that share it
        self._counting = threading.Lock()

    def _enter(self) -> bool:
        """Counts one more with statement in; False if the last one has ended."""
        with self._counting:
            if self._inside == 0:
                return False
            self._inside += 1
            return True

    def _enter_from_outside(self) -> None:
        """Counts a statement of ``join`` in."""
        self._of_this_process()
        if self._enter():
            return
        if not self._grant.gone:
            raise RuntimeError("join is for the lease of a with statement: share one of acquire as it is")
        raise lost_error(self._grant, self._grant.gone)

    def _leave(self) -> bool:
        """Counts one out; says whether it was the last."""
        with self._counting:
            self._inside -= 1
            return self._inside == 0

    def _includes_caller(self) -> bool:
        """Whether the caller works under the lease, if a with statement around it took it."""
        return True

    def _of_this_process(self) -> None:
        if self._grant.foreign():
            raise lost_error(self._grant, self._grant.why_lost())

    @property
    def resource(self) -> str:
        """What the lease is of: with ``slots`` the name of the slot; of several resources, their
        names with commas between them."""
        return self._grant.name

    @property
    def slot(self) -> int:
        """The number of the slot, from 1, of a lease that was acquired with ``slots``; else 0."""
        return self._grant.slot

    @property
    def token(self) -> int:
        """The fencing token: pass it to storage that refuses smaller ones. A lease of several
        resources has one for each: see ``parts``."""
        if len(self._grant.parts) != 1:
            raise ValueError("a lease of several resources has a token for each: see parts")
        return self._grant.parts[0].token

    @property
    def parts(self) -> Tuple[Part, ...]:
        """Each resource with its token and proof, in the order of their names."""
        return self._grant.parts

    @property
    def proof(self) -> str:
        """The token's fencing_proof, a secret for guards that demand one; "" if the service makes none."""
        return self._grant.parts[0].proof if len(self._grant.parts) == 1 else ""

    @property
    def id(self) -> str:
        """The lease id, the capability of the lease. It is a secret."""
        return self._grant.id

    @property
    def ttl(self) -> float:
        """The time to live that every extension gives the lease again."""
        return self._grant.ttl

    @property
    def until(self) -> float:
        """When validity ends. From then on another lease may hold the resource."""
        return self._grant.until

    @property
    def validity(self) -> float:
        """How long the lease is sure to hold; 0 when it may be over."""
        return 0.0 if self._grant.gone else max(0.0, self._grant.left + self._grant.margin)

    @property
    def lost(self) -> bool:
        """Whether the lease has ended, or is about to. It looks at the clock: a process that
        was paused knows at once."""
        return bool(self._grant.why_lost())

    def check(self) -> None:
        """Raises LeaseLostError if the lease is lost. Call it before each write, and in loops."""
        why = self._grant.why_lost()
        if why:
            raise lost_error(self._grant, why)

    def __repr__(self) -> str:
        tokens = ", ".join(f"{p.resource!r} token {p.token}" for p in self._grant.parts)
        return f"<Lease of {tokens}, {self._state()}>"

    def _state(self) -> str:
        if self._grant.gone == RELEASED:
            return "released"
        return "lost" if self.lost else f"valid for {self.validity:.3f} s"

    def __reduce__(self) -> str:
        raise TypeError("a lease belongs to one process: pass its resource and token on")


L = TypeVar("L", bound=LeaseView)

_current: contextvars.ContextVar[Tuple[LeaseView, ...]] = contextvars.ContextVar("fencelock_leases", default=())


class Entered(Generic[L]):
    """Remembers the lease of a with statement, for ``current``."""

    def __init__(self, lease: L) -> None:
        self.lease = lease
        self._token: Optional[contextvars.Token[Tuple[LeaseView, ...]]] = _current.set((*_current.get(), lease))

    def leave(self) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None


def joined(client: object, resources: Resources, slot: bool) -> Optional[LeaseView]:
    """The lease of the same resources, or of a slot of the same resource, and of the same client
    that a with statement around the caller took, counted in; None if there is none."""
    names = {resources} if isinstance(resources, str) else set(resources)
    for lease in reversed(_current.get()):
        grant = lease._grant
        if lease._of is not client or grant.pid != os.getpid() or bool(grant.slot) is not slot or grant.asked() != names:
            continue
        if lease._includes_caller() and lease._enter():
            return lease
    return None


def refuse_to_wait_for_oneself(client: object, protocol: Protocol, resources: Resources, options: Options) -> None:
    """Raises RefusedError if a with statement around the caller holds one of the resources: it would wait for
    itself. One that does not wait is told HeldError by the service."""
    if options.wait == 0:
        return
    names = {resources} if isinstance(resources, str) else set(resources)
    for lease in reversed(_current.get()):
        grant = lease._grant
        held = names & grant.asked()
        if not held or grant.foreign() or lease.lost or bool(grant.slot) is (options.slots is None):
            continue
        if not set(protocol.servers) & set(lease._servers):
            continue
        advice = "use that lease (fencelock.current()), or name the same resources with the same client to join it"
        if lease._of is client and not lease._includes_caller():
            advice = "this task was started inside it, and works under its lease only within \"async with lease.join()\""
        error = RefusedError(f"acquire {shown(', '.join(sorted(names)))}: it would wait for itself: the with statement around it holds {shown(', '.join(sorted(held)))}; {advice}")
        error.kind, error.resource = "would-wait-for-itself", ", ".join(sorted(names))
        raise error


def current() -> LeaseView:
    """The lease of the innermost ``with client.lock(…)`` or ``@client.locked(…)`` around the
    caller, in this thread or task. Raises LookupError if there is none."""
    leases = _current.get()
    if not leases:
        raise LookupError("no lease here: this is not inside a lock")
    return leases[-1]
