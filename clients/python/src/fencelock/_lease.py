"""The parts of a lease that are the same with threads and on asyncio."""

from __future__ import annotations

import contextvars
import os
import weakref
from typing import Any, Generic, Iterator, Optional, Tuple, TypeVar

from ._core import Protocol
from ._grant import RELEASED, Grant, Part, lost_error
from ._options import Options, Resources
from ._steps import Server
from ._tenure import Tenure
from .errors import RefusedError, shown


class LeaseView:
    """A lease that this process holds. Times are seconds on the monotonic clock
    (``time.monotonic``), counted from before the request that got them."""

    def __init__(self, grant: Grant, client: object = None, servers: Tuple[Server, ...] = (), tenure: Optional[Tenure] = None) -> None:
        self._of: object = client
        self._servers = servers
        self._grant = grant
        self._tenure = tenure  # set for the lease of a with statement

    def _join(self, owner: object) -> None:
        """Lets another with statement work under the lease."""
        self._of_this_process()
        if self._tenure is None:
            raise RuntimeError("join is for the lease of a with statement: share one of acquire as it is")
        if not self._tenure.join(owner):
            raise lost_error(self._grant, self._grant.gone or RELEASED)

    def _includes_caller(self) -> bool:
        """Whether the caller works under the lease that a with statement around it took."""
        return True

    def _of_this_process(self) -> None:
        if self._grant.foreign():
            raise lost_error(self._grant, self._grant.why_lost())

    @property
    def resource(self) -> str:
        """The lease's resource: with ``slots`` the name of the slot; of several resources, their names separated by
        commas."""
        return self._grant.name

    @property
    def slot(self) -> int:
        """The number of the slot, from 1, for a lease that was acquired with ``slots``; otherwise 0."""
        return self._grant.slot

    @property
    def token(self) -> int:
        """The fencing token: pass it to storage that refuses smaller ones. A lease of several resources has a token
        for each, see ``parts``."""
        if len(self._grant.parts) != 1:
            raise ValueError("a lease of several resources has a token for each: see parts")
        return self._grant.parts[0].token

    @property
    def parts(self) -> Tuple[Part, ...]:
        """Each resource with its token and proof, in the order of their names."""
        return self._grant.parts

    @property
    def proof(self) -> str:
        """The token's fencing_proof, a secret for guards that require one; "" if the service makes no proofs."""
        return self._grant.parts[0].proof if len(self._grant.parts) == 1 else ""

    @property
    def id(self) -> str:
        """The lease id, the capability of the lease. It is a secret."""
        return self._grant.id

    @property
    def ttl(self) -> float:
        """The time to live, which every extension restarts."""
        return self._grant.ttl

    @property
    def until(self) -> float:
        """When the validity ends. After that another lease may hold the resource."""
        return self._grant.until

    @property
    def validity(self) -> float:
        """How long the lease is certainly still held; 0 if it may be over."""
        return 0.0 if self._grant.gone else max(0.0, self._grant.left + self._grant.margin)

    @property
    def lost(self) -> bool:
        """Whether the lease has ended, or is about to. It reads the clock, so a process that was paused notices the
        loss at once."""
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

# The leases of the with statements around the caller. A copied context must not keep a with statement's object alive, so the
# references are weak. An exception within the exit may leave a lease here; it counts only while the object exists.
_current: contextvars.ContextVar[Tuple[Tuple["weakref.ref[object]", LeaseView], ...]] = contextvars.ContextVar("fencelock_leases", default=())


def _around() -> Iterator[LeaseView]:
    """The leases around the caller, the innermost first."""
    for statement, lease in reversed(_current.get()):
        if statement() is not None:
            yield lease


class Entered(Generic[L]):
    """Remembers the lease of a with statement, for ``current``."""

    def __init__(self, lease: L, statement: object) -> None:
        self.lease = lease
        self._token: Optional[contextvars.Token[Any]] = _current.set((*_current.get(), (weakref.ref(statement), lease)))

    def leave(self) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None


def joined(client: object, resources: Resources, slot: bool, statement: object) -> Optional[LeaseView]:
    """The lease that ``statement`` joins, and now shares; None if there is none. It is the lease of the same client
    that a with statement around the caller took for the same resources, or for a slot of the same resource."""
    names = {resources} if isinstance(resources, str) else set(resources)
    for lease in _around():
        grant = lease._grant
        same = grant.asked() == names if bool(grant.slot) is slot else not slot and names == {grant.name}  # a request for a slot by its own name
        if lease._of is not client or grant.pid != os.getpid() or not same:
            continue
        if lease._includes_caller() and lease._tenure is not None and lease._tenure.join(statement):
            return lease
    return None


def refuse_to_wait_for_oneself(client: object, protocol: Protocol, resources: Resources, options: Options) -> None:
    """Raises RefusedError if a with statement around the caller holds one of the resources, because the caller would
    wait for itself. A request without a wait is sent, and gets HeldError from the service."""
    if options.wait == 0:
        return
    names = {resources} if isinstance(resources, str) else set(resources)
    for lease in _around():
        grant = lease._grant
        held = names & (grant.asked() if options.slots is not None and grant.slot else {p.resource for p in grant.parts})
        if not held or grant.foreign() or lease.lost or options.slots is not None and not grant.slot:
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
    """The lease of the innermost ``with client.lock(…)`` or ``@client.locked(…)`` around the caller, in this thread
    or task. Raises LookupError if there is none."""
    for lease in _around():
        return lease
    raise LookupError("no lease here: this is not inside a lock")
