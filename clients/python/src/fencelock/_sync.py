"""The client with threads."""

from __future__ import annotations

import functools
import os
import socket
import ssl
import time
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, TypeVar, cast

from ._connections import Connections, Lane, Slot, Stop
from ._core import Protocol, Retry, again, stand_again, told
from ._grant import RELEASED, Grant, Presented, lost_error
from ._keeper import Keeper, Kept
from ._lease import Entered, LeaseView, joined, refuse_to_wait_for_oneself
from ._names import resource_of
from ._options import Bearer, Options, Resources, checked
from ._state import Attempt, LockState, Record, attempt, lock_state, record
from ._steps import T, NoAnswer, Send, Steps, Turn
from ._tenure import Call
from ._times import GRACE
from ._watch import LOOK_BLIND, LOOK_EVERY, QUIET, Stream, Watched
from .errors import ClosedError, UnavailableError, shown

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Client:
    """Talks to one lock service through any of its servers, for use by any number of threads.

    servers   URLs: a list, or a text with commas between them. If one server does not respond,
              the client asks the next.
    bearer    the caller's credential, or a function that returns it, which is called before each
              request (see ``bearer_file``).
    holder    a public label that leases show.
    ssl_context  the authorities to trust, and the client's certificate, if it has one.
    timeout   the maximum seconds for one try at one server, not counting its wait in the queue. A
              try ends earlier if its response is overdue compared with earlier responses; the
              client then asks the next server.
    patience  seconds for which a failing call is repeated, from its first failure: no server
              responds, or none has a quorum. After that the call raises UnavailableError. Every
              server is asked at least once. A wait in the queue is not a failure. An acquire with
              ``wait`` ends at most a second after its wait, whatever the servers do. A lease that
              is kept alive is extended until its validity ends, whatever the patience.
    poll      the maximum seconds for which one request waits in the queue. A longer wait is a
              series of requests, which keep the place. Whole seconds, shorter than the time limits
              of proxies: 60 in nginx and most cloud load balancers, 50 in Debian's HAProxy, 15 in
              Envoy.

    on_retry  called with a Retry for every try that failed and will be repeated, by the thread of the call.

    A client may be made before a process forks: the child opens connections of its own.
    """

    def __init__(
        self, servers: Resources, *, bearer: Bearer = None, holder: str = "", ssl_context: Optional[ssl.SSLContext] = None,
        timeout: float = 5.0, patience: float = 15.0, poll: float = 45.0, on_retry: Optional[Callable[[Retry], object]] = None,
    ) -> None:
        self._protocol = Protocol(servers, bearer=bearer, holder=holder, timeout=timeout, patience=patience, poll=poll, on_retry=on_retry)
        self._context = ssl_context
        self._pool, self._keeper = self._fresh()

    def __repr__(self) -> str:
        return f"<fencelock.Client of {', '.join(map(str, self._protocol.servers))}>"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the leases of all with statements, whose work is notified of the loss. It also ends what given-up
        requests may have, and closes the connections. It takes a second at most; leases that are left then end with
        their TTL."""
        self._of_this_process().close()
        self._pool.drop(closed=True)

    # Leases

    def lock(
        self, resource: Resources, *, ttl: Optional[float] = None, wait: Optional[float] = None, min_hold: Optional[float] = None,
        max_hold: Optional[float] = None, holder: Optional[str] = None, metadata: Any = None, slots: Optional[int] = None,
        margin: Optional[float] = None, on_lost: Optional[Callable[["Lease"], object]] = None, timeout: Optional[float] = None,
        patience: Optional[float] = None,
    ) -> "Lock":
        """A lock for a ``with`` statement, which waits for the lease, keeps it alive in a
        thread, and releases it at the end. With several resources it takes all or none.

        wait      seconds to wait in the queue; 0 means a single try, None no limit.
        ttl       the seconds after which the lease ends unless it is extended; None means the
                  service's default.
        min_hold  seconds from the grant for which the resource stays taken, even if the lease is
                  released earlier.
        max_hold  seconds from the grant after which the lease is not extended.
        slots     takes one of this many slots of the resource (a semaphore). ``lease.resource`` is
                  the slot's name, and ``lease.slot`` its number. Each slot has its own tokens.
        margin    seconds before the end of validity from which the lease counts as lost; default a
                  tenth of the TTL, at most half of it.
        on_lost   called when the lease is lost, by the thread that keeps it alive, so it must not
                  block. Its exceptions are logged.
        timeout   the maximum seconds for entering, whatever else is set. After that, entering
                  raises TimedOutError.
        patience  replaces the client's patience for entering. With ``wait=0`` and a patience,
                  entering does not queue, but survives a restart of the service.

        The block should call ``lease.check()`` before each write. If the lease was lost, the end of
        the block raises LeaseLostError, unless the block itself raised an exception.
        Entering raises HeldError, UnavailableError, DeniedError or RefusedError.

        It nests: inside the block, a lock of the same resources and the same client joins the lease
        instead of waiting for itself. So does a lock of a slot of the same resource, if the lease is
        of a slot. The options of a lock that joins are ignored. The last of these locks releases the
        lease. A lock that would wait for the block itself raises RefusedError at once: a lock of
        only some of the block's resources, or of the same resources through another client. Another thread joins
        with ``with lease.join()``, or if it runs in a copy of the block's context."""
        options = Options(ttl, wait, min_hold, max_hold, holder, metadata, slots, timeout, patience, margin)
        return Lock(self, resource, options, on_lost)

    def locked(self, resource: str, **options: Any) -> Callable[[F], F]:
        """A decorator: each call of the function runs under a lease. ``resource`` is formatted with the function's
        arguments: ``@client.locked("orders/{order}", ttl=30)``. The options are those of ``lock``. Inside the
        function, ``fencelock.current()`` returns the lease."""

        def decorate(function: F) -> F:
            name = resource_of(resource, function)

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                with self.lock(name(args, kwargs), **options):
                    return function(*args, **kwargs)

            return cast(F, run)

        return decorate

    def acquire(
        self, resource: Resources, *, ttl: Optional[float] = None, wait: Optional[float] = None, min_hold: Optional[float] = None,
        max_hold: Optional[float] = None, holder: Optional[str] = None, metadata: Any = None, slots: Optional[int] = None,
        timeout: Optional[float] = None, patience: Optional[float] = None,
    ) -> "Lease":
        """Takes a lease as ``lock`` does, but does not keep it alive: the caller extends and releases it. If a
        response is missing and the call is given up, a lease that may have been granted is released in the
        background."""
        call = Call()
        tenure = self._take(resource, Options(ttl, wait, min_hold, max_hold, holder, metadata, slots, timeout, patience), call)
        assert tenure.grant
        lease = Lease(self, tenure.grant)
        self._keeper.settle(tenure)  # the lease belongs to the caller from here on
        return lease

    def _take(self, resource: Resources, options: Options, owner: object) -> Kept:
        """Takes a lease for an owner. If the owner is gone before the tenure is settled, the keeper ends it."""
        acquisition = self._protocol.acquisition(resource, options)
        refuse_to_wait_for_oneself(self, self._protocol, resource, options)
        keeper = self._of_this_process()
        tenure = keeper.begin(acquisition, owner)
        try:
            tenure.grant = self._run(acquisition.take())
        except BaseException:
            if acquisition.in_doubt():
                keeper.end_later(tenure)
            else:
                keeper.settle(tenure)
            raise
        return tenure

    def inspect(self, resource: str, *, timeout: Optional[float] = None) -> LockState:
        """Returns whether a resource is held, by which holder and for how much longer, and its queue."""
        return self._run(self._protocol.within(timeout, f"inspect {resource!r}", self._protocol.inspect(resource)))

    def elect(self, resource: str, lead: Callable[["Lease"], R], **options: Any) -> R:
        """Competes for the leadership with all callers that name the same resource: the holder of its lease leads.
        ``elect`` calls ``lead`` with the lease while this process leads. The options are those of ``lock``. To
        resign, return from ``lead``: ``elect`` returns its value, or raises its exception, and the next candidate
        leads at once.

        When the lease is lost, ``lead`` must return. To notice the loss, it should use ``lease.check()``,
        ``lease.lost`` or ``lease.wait_lost()``. After a loss or an outage, ``elect`` competes again, and drops the
        value or the exception of ``lead``."""
        while True:
            led = lost = False
            try:
                with self.lock(resource, **options) as lease:
                    led = True
                    try:
                        return lead(lease)
                    finally:
                        lost = lease.lost
            except Exception as e:
                if not again(lost, led, e):
                    raise
            time.sleep(stand_again())

    def watch(self, resource: str) -> Iterator[Optional[LockState]]:
        """Yields who holds a resource, as ``inspect`` returns it: now, and after each change. It yields None while
        the holder is unknown, because no server responds or there is no quorum. A change is reported when the
        service's events show it, and otherwise within 10 s; within 1 s while no server sends events. Tokens never
        fall. A holder that comes and goes between two reads is left out."""
        watched = Watched()
        events = _Events(self, resource)
        try:
            while True:
                lock: Optional[LockState] = None
                try:
                    lock = self.inspect(resource)
                except UnavailableError:
                    pass
                if watched.is_news(lock):
                    yield lock
                events.wait()
        finally:
            events.close()

    # Guarded records

    def read_record(self, resource: str) -> Record:
        """Reads a guarded record without claiming it; before a write use ``claim_record``. A record that was never
        written has version 0."""
        return self._run(self._protocol.read_record(resource))

    def claim_record(self, lease: Presented) -> Record:
        """Claims a guarded record for a lease, and reads it. After that no smaller token can write it. Raises
        StaleTokenError. ``lease`` is a lease of one resource; of several, pass one of its parts."""
        return self._run(self._protocol.claim_record(lease))

    def write_record(self, lease: Presented, value: Any) -> Record:
        """Writes a JSON value under the token of a lease. If the token is stale, it raises StaleTokenError and writes
        nothing. The call is not repeated after a try that may have taken effect: after UnavailableError the value may
        have been written, or may be written later."""
        return self._run(self._protocol.write_record(lease, value))

    def delete_record(self, lease: Presented) -> Record:
        """Deletes the value of a record under the token of a lease, with the rules of ``write_record``. The history
        and the highest token stay."""
        return self._run(self._protocol.delete_record(lease))

    def lease(self, lease_id: str) -> "Lease":
        """Looks up a live lease by its lease id, for a process that works under a lease which another process
        acquired. Raises LeaseLostError if it has ended."""
        return Lease(self, self._run(self._protocol.look_up(lease_id)))

    def break_lock(self, resource: str, token: int) -> None:
        """Ends the lease of a resource that has the fencing token (``inspect`` shows it), and never a later one. It
        is for administrators. The holder learns of it with its next request. Raises RefusedError of the kind
        "lock-not-held" if the resource is free, and OtherLeaseError if another lease holds it."""
        self._run(self._protocol.break_lock(resource, token))

    def break_any(self, resource: str) -> None:
        """Ends the lease that holds a resource, whatever its token. After UnavailableError the lease may have ended,
        and another ``break_any`` may end the next one: call ``inspect`` first."""
        self._run(self._protocol.break_any(resource))

    def list(self, prefix: str = "") -> Iterator[LockState]:
        """The held resources that begin with a prefix, in no particular order. A lock that is taken or released
        meanwhile may be missing or appear twice."""
        return map(lock_state, self._pages(f"list {shown(prefix)}", "/locks", {"prefix": prefix}, "locks"))

    def records(self, prefix: str = "") -> Iterator[Record]:
        """The guarded records whose resources begin with a prefix, in the byte order of the resources and without
        values."""
        return map(record, self._pages(f"list the records {shown(prefix)}", "/guarded", {"prefix": prefix}, "records"))

    def history(self, resource: str) -> Iterator[Attempt]:
        """The newest hundred writes and claims of a guarded record, including refused ones, the newest first."""
        return map(attempt, self._pages(f"history {shown(resource)}", "/history", {"resource": checked(resource)}, "attempts"))

    def _pages(self, operation: str, path: str, query: Dict[str, str], member: str) -> Iterator[Dict[str, Any]]:
        following: Optional[Dict[str, str]] = query
        while following is not None:
            page, following = self._run(self._protocol.page(operation, path, following))
            yield from page[member]

    # Running the protocol

    def _run(self, steps: Steps[T]) -> T:
        while True:
            done, value = self._advance(steps)
            if done:
                return cast(T, value)
            time.sleep(value)

    def _advance(self, steps: Steps[Any], stop: Optional[Stop] = None) -> Tuple[bool, Any]:
        """Runs steps until they are done, and returns True and their result; or until their next pause, and returns
        False and its length in seconds."""
        self._of_this_process()
        connections, lane, slot = self._pool, None, None  # type: Connections, Optional[Lane], Optional[Slot]
        try:
            step = next(steps)
            while True:
                if isinstance(step, Turn):
                    connections.check_open()
                    lane = connections.waits if step.waits else connections.calls
                    slot = lane.take(step.limit)
                    step = steps.send(lane.crowded)
                elif isinstance(step, Send):
                    try:
                        answer = connections.send(step, stop)
                    except Exception as e:  # the steps decide what it means
                        failed: Optional[Exception] = e
                    else:
                        failed = None
                    if lane and slot:
                        lane.give(slot)
                        slot = None
                    step = steps.throw(failed) if failed else steps.send(answer)
                else:
                    return False, step.seconds
        except StopIteration as end:
            return True, end.value
        finally:
            if lane and slot:
                lane.give(slot)

    def _fresh(self) -> Tuple[Connections, Keeper]:
        return Connections(self._protocol, self._context), Keeper(self._protocol, self._advance)

    def _of_this_process(self) -> Keeper:
        """The keeper of this process. After a fork the child gets a keeper and connections of its own."""
        if self._pool.pid != os.getpid():
            parents = self._pool
            self._pool, self._keeper = self._fresh()
            parents.forget()
        return self._keeper

    def _connections(self) -> Connections:
        self._of_this_process()
        return self._pool


class _Events:
    """The service's events about a resource. An event is only a reason to read the lock, because any of them may be
    missing."""

    def __init__(self, client: Client, resource: str) -> None:
        self._client, self._resource = client, resource
        self._sock: Optional[socket.socket] = None
        self._stream = Stream()
        self._quiet = 0.0  # the time at which the stream counts as broken
        self._n = 0  # counts the requests; the next one goes to the next server

    def wait(self) -> None:
        """Waits until there is a reason to read the lock."""
        now = time.monotonic()
        if self._sock is None:
            self._connect()
        until = now + (LOOK_EVERY if self._sock else LOOK_BLIND)
        while self._sock is not None:
            left = min(until, self._quiet) - time.monotonic()
            if left <= 0:
                if time.monotonic() >= self._quiet:
                    self.close()
                return
            try:
                self._sock.settimeout(left)
                data = self._sock.recv(65536)
                self._quiet = time.monotonic() + QUIET
                if self._stream.feed(data):
                    return
            except socket.timeout:
                continue
            except (OSError, NoAnswer):
                self.close()
                until = time.monotonic() + LOOK_BLIND
        self._client._connections().check_open()
        time.sleep(max(0.0, until - time.monotonic()))

    def _connect(self) -> None:
        request = self._client._protocol.events(self._n, self._resource, self._client._protocol.timeout)
        self._n += 1
        try:
            self._sock = self._client._connections().connect(request.server, time.monotonic() + request.limit)
            self._sock.sendall(request.data)
        except OSError:
            self.close()
        self._stream, self._quiet = Stream(), time.monotonic() + request.limit

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


class Lease(LeaseView):
    """A lease of a Client. Safe for use by several threads."""

    def __init__(self, client: Client, grant: Grant, tenure: Optional[Kept] = None) -> None:
        super().__init__(grant, client, client._protocol.servers, tenure)
        self._client = client
        self._kept = tenure
        self._released = False

    def wait_lost(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lease is lost, for at most ``timeout`` seconds. Returns whether it is lost. Only a lease of
        ``lock`` notices by itself that it has ended early."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.lost:
            left = max(0.001, self._grant.left)  # the clock also shows the end
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    return False
            if self._kept is not None:
                self._kept.noticed.wait(min(left, 1.0))
            else:
                time.sleep(min(left, 1.0))
        return True

    def extend(self, *, timeout: Optional[float] = None) -> None:
        """Restarts the lease's TTL. Raises LeaseLostError (final), or UnavailableError: then the lease keeps its old
        validity, and the call may be repeated. A lease of ``lock`` is extended automatically."""
        self._of_this_process()
        self._client._run(self._client._protocol.within(timeout, f"extend {self.resource!r}", self._client._protocol.extend(self._grant)))

    def release(self, *, timeout: Optional[float] = None) -> None:
        """Releases the lease. Raises LeaseLostError if it had ended before, and UnavailableError if it may not have
        been released: repeat the call, or let the TTL end the lease."""
        self._of_this_process()
        if self._kept is not None:
            self._client._keeper.stop(self._kept)
        self._client._run(self._client._protocol.within(timeout, f"release {self.resource!r}", self._client._protocol.release(self._grant)))
        self._grant.gone, self._released = RELEASED, True
        if self._kept is not None:
            self._kept.noticed.open()
            self._client._keeper.settle(self._kept)

    def join(self) -> "Lock":
        """Returns a ``Lock`` for a ``with`` statement of another thread, which then works under this lease of a
        ``with`` statement. The last of these statements releases the lease. Entering raises LeaseLostError if the
        lease is over."""
        return Lock(self._client, [p.resource for p in self.parts], Options(), None, self)

    def _finish(self, hurry: bool) -> str:
        """Ends the renewal, and then the lease. Returns why it was lost, or "". The keeper does the rest if no server
        responds within a second, if the process is in a hurry to end, or if an exception interrupts this method."""
        kept, keeper, protocol = self._kept, self._client._keeper, self._client._protocol
        if self._released or kept is None:
            return ""
        if kept.settled or kept.ending:
            return self._grant.gone  # the keeper has ended it, or is ending it
        later = True
        try:
            keeper.stop(kept)
            why = self._grant.why_lost()
            if not hurry:
                ended, later = self._client._run(protocol.finish(self._grant, time.monotonic() + GRACE))
                why = why or ended
        except ClosedError:
            later, why = False, why or "this client was closed"
        finally:
            if later:
                keeper.end_later(kept)
        self._grant.gone = why or RELEASED
        kept.noticed.open()
        if not later:
            keeper.settle(kept)
        return why


class Lock:
    """The result of ``Client.lock`` and ``Lease.join``, for one ``with`` statement at a time. The statement's lease
    lives no longer than this object. A lock that is made in the statement is gone when the statement is over, in
    whatever way it was left."""

    def __init__(
        self, client: Client, resource: Resources, options: Options, on_lost: Optional[Callable[[Lease], object]], joins: Optional[Lease] = None,
    ) -> None:
        self._client, self._resource, self._options = client, resource, options
        self._on_lost, self._joins = on_lost, joins
        self._entered: Optional[Entered[Lease]] = None

    def __enter__(self) -> Lease:
        if self._entered:
            raise RuntimeError("this lock is in use: make one for each with statement")
        lease, owns = self._joins, False
        if lease is not None:
            lease._join(self)
        else:
            lease = cast(Optional[Lease], joined(self._client, self._resource, self._options.slots is not None, self))
        if lease is None:
            kept = self._client._take(self._resource, self._options, self)
            assert kept.grant
            kept.grant.set_margin(self._options.margin)
            lease, owns = Lease(self._client, kept.grant, kept), True
        elif lease.lost:
            raise lost_error(lease._grant, self._left(lease))
        self._entered = Entered(lease, self)
        if owns and lease._kept:
            self._client._keeper.keep(lease._kept)
        else:
            self._on_lost = None  # its options are ignored
        return lease

    def _observer(self) -> Callable[[], object]:
        """The function to call when the lease is lost."""
        if self._on_lost and self._entered:
            return functools.partial(told, self._on_lost, self._entered.lease)
        return lambda: None

    def __exit__(self, kind: Optional[type], *exc: object) -> None:
        assert self._entered
        entered, self._entered = self._entered, None
        entered.leave()
        why = self._left(entered.lease, hurry=kind is not None and not issubclass(kind, Exception))
        if why and kind is None:
            raise lost_error(entered.lease._grant, why)

    def _left(self, lease: Lease, hurry: bool = False) -> str:
        """Leaves a lease; the last owner releases it. Returns why it was lost, or ""."""
        if lease._grant.foreign():
            return lease._grant.why_lost()  # a child: the lease is its parent's
        if lease._kept is not None and lease._kept.leave(self):
            return lease._finish(hurry)
        return "" if lease._released else lease._grant.why_lost()
