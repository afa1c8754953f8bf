"""The client on asyncio: the same names as ``fencelock``, with ``async with`` and ``await``.

    from fencelock.aio import Client

    async with client.lock("orders/42", ttl=30, wait=5) as lease:
        async with fenced(conn, lease):
            await conn.execute("UPDATE …")

The work is cancelled when the lease is lost, and the block then raises LeaseLostError.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import sys
import time
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, Optional, Set, TypeVar, cast

from . import _batch
from ._acquisition import Acquisition
from ._aio_connections import READ, Connection, Connections
from ._core import _log, Protocol, Retry, again, stand_again, told
from ._grant import RELEASED, Grant, Part, Presented, lost_error
from ._lanes import Lane
from ._lease import Entered, LeaseView, current, joined, refuse_to_wait_for_oneself
from ._names import resource_of
from ._options import Bearer, Options, Resources, bearer_file, checked
from ._state import Attempt, LockState, Record, Waiter, attempt, lock_state, record
from ._steps import T, NoAnswer, Send, Steps, Turn
from ._tenure import Call, Tenure
from ._times import GRACE
from ._watch import LOOK_BLIND, LOOK_EVERY, QUIET, Stream, Watched
from .errors import ClosedError, DeniedError, FencelockError, HeldError, LeaseLostError, RefusedError, StaleTokenError, TimedOutError, UnavailableError, shown
from .guard import afenced as fenced

__all__ = [
    "Attempt", "Client", "ClosedError", "DeniedError", "FencelockError", "HeldError", "Lease", "LeaseLostError", "Lock", "LockState", "Part", "Record",
    "RefusedError", "Retry", "StaleTokenError", "TimedOutError", "UnavailableError", "Waiter", "bearer_file", "current", "fenced",
]

_HURRY = 0.3  # seconds that a cancelled task waits for the release of its lease

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
R = TypeVar("R")


class Client:
    """Talks to one lock service through any of its servers, for any number of tasks of one
    event loop. The settings are those of ``fencelock.Client``. A function for ``bearer`` must not
    block for long.

    While ``batch_after`` requests are under way to a server, further acquires with ``wait=0``, extends and releases
    gather for up to 5 ms, and are sent together in one POST /locks/batch. Each call keeps its own outcome and time limit.
    With 0 every such call is sent in a batch, with a negative number none."""

    def __init__(
        self, servers: Resources, *, bearer: Bearer = None, holder: str = "", ssl_context: Optional[ssl.SSLContext] = None,
        timeout: float = 5.0, patience: float = 15.0, poll: float = 45.0, on_retry: Optional[Callable[[Retry], object]] = None,
        batch_after: int = _batch.AFTER,
    ) -> None:
        self._protocol = Protocol(servers, bearer=bearer, holder=holder, timeout=timeout, patience=patience, poll=poll, on_retry=on_retry)
        self._connections = Connections(self._protocol, ssl_context, batch_after)
        self._tenures: Set[_Tenure] = set()  # the tenures that are not settled
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._background: Set["asyncio.Task[None]"] = set()
        self._closed = False  # if true, no acquisition may begin

    def __repr__(self) -> str:
        return f"<fencelock.aio.Client of {', '.join(map(str, self._protocol.servers))}>"

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Releases the leases of all statements, whose tasks are cancelled. It also ends what given-up requests may
        have, and closes the connections. It takes a second at most; leases that are left then end with their TTL."""
        self._closed = True
        for tenure in list(self._tenures):
            if tenure.grant is not None:
                tenure.lose("this client was closed")
                self._end_later(tenure)
        if self._background:
            await asyncio.wait(self._background, timeout=GRACE)
        await self._connections.close()

    # Leases

    def lock(
        self, resource: Resources, *, ttl: Optional[float] = None, wait: Optional[float] = None, min_hold: Optional[float] = None,
        max_hold: Optional[float] = None, holder: Optional[str] = None, metadata: Any = None, slots: Optional[int] = None,
        margin: Optional[float] = None, on_lost: Optional[Callable[["Lease"], object]] = None, timeout: Optional[float] = None,
        patience: Optional[float] = None,
    ) -> "Lock":
        """A lock for an ``async with`` statement; the options are those of ``fencelock.Client.lock``.
        When the lease is lost, the task is cancelled where it is, and the statement raises LeaseLostError.

        A task that the block starts (with ``create_task``, ``gather``, a task group, and before Python 3.12 also with
        ``wait_for``) joins with ``async with lease.join()``. A lock of the same resource in such a task raises RefusedError
        at once."""
        options = Options(ttl, wait, min_hold, max_hold, holder, metadata, slots, timeout, patience, margin)
        return Lock(self, resource, options, on_lost)

    def locked(self, resource: str, **options: Any) -> Callable[[F], F]:
        """A decorator for coroutine functions; see ``fencelock.Client.locked``."""

        def decorate(function: F) -> F:
            name = resource_of(resource, function)

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                async with self.lock(name(args, kwargs), **options):
                    return await function(*args, **kwargs)

            return cast(F, run)

        return decorate

    async def acquire(
        self, resource: Resources, *, ttl: Optional[float] = None, wait: Optional[float] = None, min_hold: Optional[float] = None,
        max_hold: Optional[float] = None, holder: Optional[str] = None, metadata: Any = None, slots: Optional[int] = None,
        timeout: Optional[float] = None, patience: Optional[float] = None,
    ) -> "Lease":
        """Takes a lease but does not keep it alive: the caller extends and releases it. If the caller is cancelled,
        the call returns at once. If a response is missing then, a lease that may have been granted is released in the
        background."""
        call = Call()
        tenure = await self._take(resource, Options(ttl, wait, min_hold, max_hold, holder, metadata, slots, timeout, patience), call)
        assert tenure.grant
        lease = Lease(self, tenure.grant)
        self._settle(tenure)  # the lease belongs to the caller from here on
        return lease

    async def _take(self, resource: Resources, options: Options, owner: object) -> "_Tenure":
        """Takes a lease for an owner. If the owner is gone before the tenure is settled, the lease is ended in the
        background."""
        acquisition = self._protocol.acquisition(resource, options)
        refuse_to_wait_for_oneself(self, self._protocol, resource, options)
        if self._closed:
            raise ClosedError("this client is closed")
        self._here()
        loop = asyncio.get_running_loop()
        tenure = _Tenure(acquisition, owner, functools.partial(loop.call_soon_threadsafe, self._owner_is_gone))
        self._tenures.add(tenure)
        try:
            tenure.grant = await self._run(acquisition.take())
        except BaseException:
            if acquisition.late or acquisition.in_doubt():
                self._end_later(tenure)
            else:
                self._settle(tenure)
            raise
        if acquisition.late:
            self._in_background(self._end_late(acquisition, tenure.grant))
        return tenure

    def _owner_is_gone(self, owner: Any) -> None:
        if owner.tenure.orphaned:
            self._end_later(owner.tenure)

    def _settle(self, tenure: "_Tenure") -> None:
        """Forgets a tenure for which the service has nothing any more."""
        self._tenures.discard(tenure)
        tenure.settle()

    def _end_later(self, tenure: "_Tenure") -> Optional["asyncio.Task[None]"]:
        """Ends a tenure in the background, whatever the service has for it. A cancellation of the owner's task does
        not reach that work."""
        if tenure.ending is None and not tenure.settled:
            tenure.ending = self._in_background(self._end(tenure))
        return tenure.ending

    async def _end(self, tenure: "_Tenure") -> None:
        try:
            await tenure.stop()
            if tenure.grant is not None:
                tenure.grant.gone = tenure.grant.gone or "its statement was broken off"
                await self._run(self._protocol.finish_later(tenure.grant))
            await self._end_late(tenure.acquisition, tenure.grant)
        finally:
            self._settle(tenure)

    async def _end_late(self, acquisition: Acquisition, got: Optional[Grant]) -> None:
        """Ends leases that tries of an acquisition may be granted after the acquisition has given them up."""
        if got is None and acquisition.in_doubt():
            await self._run(acquisition.abandon())
        for late in acquisition.late:
            try:
                grant = acquisition.granted_late(await late, got)
            except NoAnswer:
                if got is None:
                    await self._run(acquisition.abandon())
            else:
                if grant is not None:
                    await self._run(self._protocol.finish_later(grant))

    def _in_background(self, work: Awaitable[None]) -> "asyncio.Task[None]":
        async def run() -> None:
            try:
                await work
            except ClosedError:
                pass

        task = asyncio.get_running_loop().create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def inspect(self, resource: str, *, timeout: Optional[float] = None) -> LockState:
        """See ``fencelock.Client.inspect``."""
        return await self._run(self._protocol.within(timeout, f"inspect {resource!r}", self._protocol.inspect(resource)))

    async def elect(self, resource: str, lead: Callable[["Lease"], Awaitable[R]], **options: Any) -> R:
        """See ``fencelock.Client.elect``. ``lead`` is a coroutine function; it is cancelled when the lease is
        lost."""
        while True:
            led = lost = False
            try:
                async with self.lock(resource, **options) as lease:
                    led = True
                    try:
                        return await lead(lease)
                    finally:
                        lost = lease.lost
            except Exception as e:
                if not again(lost, led, e):
                    raise
            await asyncio.sleep(stand_again())

    async def watch(self, resource: str) -> AsyncIterator[Optional[LockState]]:
        """See ``fencelock.Client.watch``; for ``async for``."""
        watched = Watched()
        events = _Events(self, resource)
        try:
            while True:
                lock: Optional[LockState] = None
                try:
                    lock = await self.inspect(resource)
                except UnavailableError:
                    pass
                if watched.is_news(lock):
                    yield lock
                await events.wait()
        finally:
            events.close()

    async def read_record(self, resource: str) -> Record:
        """See ``fencelock.Client.read_record``."""
        return await self._run(self._protocol.read_record(resource))

    async def claim_record(self, lease: Presented) -> Record:
        """See ``fencelock.Client.claim_record``."""
        return await self._run(self._protocol.claim_record(lease))

    async def write_record(self, lease: Presented, value: Any) -> Record:
        """See ``fencelock.Client.write_record``."""
        return await self._run(self._protocol.write_record(lease, value))

    async def delete_record(self, lease: Presented) -> Record:
        """See ``fencelock.Client.delete_record``."""
        return await self._run(self._protocol.delete_record(lease))

    async def lease(self, lease_id: str) -> "Lease":
        """See ``fencelock.Client.lease``."""
        return Lease(self, await self._run(self._protocol.look_up(lease_id)))

    async def break_lock(self, resource: str, token: int) -> None:
        """See ``fencelock.Client.break_lock``."""
        await self._run(self._protocol.break_lock(resource, token))

    async def break_any(self, resource: str) -> None:
        """See ``fencelock.Client.break_any``."""
        await self._run(self._protocol.break_any(resource))

    def list(self, prefix: str = "") -> AsyncIterator[LockState]:
        """See ``fencelock.Client.list``; for ``async for``."""
        return self._pages(f"list {shown(prefix)}", "/locks", {"prefix": prefix}, "locks", lock_state)

    def records(self, prefix: str = "") -> AsyncIterator[Record]:
        """See ``fencelock.Client.records``; for ``async for``."""
        return self._pages(f"list the records {shown(prefix)}", "/guarded", {"prefix": prefix}, "records", record)

    def history(self, resource: str) -> AsyncIterator[Attempt]:
        """See ``fencelock.Client.history``; for ``async for``."""
        return self._pages(f"history {shown(resource)}", "/history", {"resource": checked(resource)}, "attempts", attempt)

    async def _pages(self, operation: str, path: str, query: Dict[str, str], member: str, read: Callable[[Dict[str, Any]], R]) -> AsyncIterator[R]:
        following: Optional[Dict[str, str]] = query
        while following is not None:
            page, following = await self._run(self._protocol.page(operation, path, following))
            for each in page[member]:
                yield read(each)

    # Running the protocol

    def _here(self) -> None:
        """Drops everything that belongs to another event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._connections.reset()
            self._tenures.clear()
            self._loop = loop

    async def _run(self, steps: Steps[T]) -> T:
        self._here()
        turn: Optional[Lane] = None
        try:
            step = next(steps)
            while True:
                if isinstance(step, Turn):
                    lane = self._connections.waits if step.waits else self._connections.calls
                    turn = lane if await lane.take(step.limit) else None
                    step = steps.send(lane.crowded)
                elif isinstance(step, Send):
                    try:
                        answer = await self._connections.send(step)
                    except Exception as e:  # the steps decide what it means
                        failed: Optional[Exception] = e
                    else:
                        failed = None
                    if turn:
                        turn.give()
                        turn = None
                    step = steps.throw(failed) if failed else steps.send(answer)
                else:
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
        except StopIteration as end:
            return cast(T, end.value)
        finally:
            if turn:
                turn.give()


class _Events:
    """The service's events about a resource. An event is only a reason to read the lock, because any of them may be
    missing."""

    def __init__(self, client: Client, resource: str) -> None:
        self._client, self._resource = client, resource
        self._connection: Optional[Connection] = None
        self._reading: Optional["asyncio.Future[bytes]"] = None
        self._stream = Stream()
        self._quiet = 0.0  # the time at which the stream counts as broken
        self._n = 0  # counts the requests; the next one goes to the next server

    async def wait(self) -> None:
        """Waits until there is a reason to read the lock."""
        if self._connection is None:
            await self._connect()
        until = time.monotonic() + (LOOK_EVERY if self._connection else LOOK_BLIND)
        while self._connection is not None:
            left = min(until, self._quiet) - time.monotonic()
            if left <= 0:
                if time.monotonic() >= self._quiet:
                    self.close()
                return
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._connection[0].read(READ))
            await asyncio.wait({self._reading}, timeout=left)
            if not self._reading.done():
                continue
            reading, self._reading = self._reading, None
            try:
                data = reading.result()
                self._quiet = time.monotonic() + QUIET
                if self._stream.feed(data):
                    return
            except (OSError, NoAnswer):
                self.close()
                until = time.monotonic() + LOOK_BLIND
        await asyncio.sleep(max(0.0, until - time.monotonic()))

    async def _connect(self) -> None:
        request = self._client._protocol.events(self._n, self._resource, self._client._protocol.timeout)
        self._n += 1
        try:
            self._connection = await self._client._connections.connect(request.server, time.monotonic() + request.limit)
            self._connection[1].write(request.data)
        except (OSError, asyncio.TimeoutError):
            self.close()
        self._stream, self._quiet = Stream(), time.monotonic() + request.limit

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._connection is not None:
            self._connection[1].transport.abort()
        self._reading = self._connection = None


class _Tenure(Tenure):
    """A tenure of the client on asyncio."""

    timer: Optional[asyncio.TimerHandle] = None  # starts the renewal when it is due
    keeper: Optional["asyncio.Task[None]"] = None  # renews the lease
    ending: Optional["asyncio.Task[None]"] = None  # ends the lease

    def keep(self, client: Client) -> None:
        """Extends the lease until its last owner leaves. A lease that is released before its first extension costs no
        task."""
        assert self.grant
        loop, grant, protocol = asyncio.get_running_loop(), self.grant, client._protocol

        async def renew() -> None:
            steps = protocol.keep(grant)
            while not grant.gone:
                try:
                    why = await client._run(_while(lambda: self.owned, steps))
                except Exception:  # a bug: it counts as a failed try
                    _log.exception("a renewal of fencelock goes on after")
                    await asyncio.sleep(0.1)
                    steps = protocol.keep(grant)
                    continue
                if self.orphaned:
                    client._end_later(self)
                if not self.owned:
                    return
                self.lose(why)

        def start() -> None:
            self.keeper = loop.create_task(renew())

        self.timer = loop.call_later(max(0.0, protocol.first_extend(grant) - time.monotonic()), start)

    def lose(self, why: str) -> None:
        """Records a loss, and notifies everyone who works under the lease."""
        assert self.grant
        if not self.grant.gone:
            self.grant.gone = why
            for lock in self.owners():
                lock._notify()

    async def stop(self) -> None:
        """Stops the renewal. After it returns, the renewal sends nothing."""
        if self.timer:
            self.timer.cancel()
        if self.keeper and self.keeper is not asyncio.current_task():
            self.keeper.cancel()
            await asyncio.wait({self.keeper})


def _while(holds: Callable[[], bool], steps: Steps[str]) -> Steps[str]:
    """Runs steps while a condition holds."""
    try:
        step = next(steps)
        while holds():
            try:
                answer = yield step
            except Exception as e:
                step = steps.throw(e)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return cast(str, end.value)
    return ""


class Lease(LeaseView):
    """A lease of a Client, for the tasks of its event loop."""

    def __init__(self, client: Client, grant: Grant, tenure: Optional[_Tenure] = None) -> None:
        super().__init__(grant, client, client._protocol.servers, tenure)
        self._client = client
        self._kept = tenure
        self._released = False

    async def extend(self, *, timeout: Optional[float] = None) -> None:
        """See ``fencelock.Lease.extend``."""
        self._of_this_process()
        await self._client._run(self._client._protocol.within(timeout, f"extend {self.resource!r}", self._client._protocol.extend(self._grant)))

    async def release(self, *, timeout: Optional[float] = None) -> None:
        """See ``fencelock.Lease.release``."""
        self._of_this_process()
        if self._kept is not None:
            await self._kept.stop()
        await self._client._run(self._client._protocol.within(timeout, f"release {self.resource!r}", self._client._protocol.release(self._grant)))
        self._grant.gone, self._released = RELEASED, True
        if self._kept is not None:
            self._client._settle(self._kept)

    def join(self) -> "Lock":
        """See ``fencelock.Lease.join``; for an ``async with`` statement of any task, which is cancelled when the
        lease is lost. A task that was started inside a block does not work under the block's lease unless it
        joins."""
        return Lock(self._client, [p.resource for p in self.parts], Options(), None, self)

    def _includes_caller(self) -> bool:
        task = asyncio.current_task()
        return self._kept is not None and any(lock._working is task for lock in self._kept.owners())

    async def _finish(self, hurry: bool) -> str:
        """Ends the renewal, and then the lease. Returns why it was lost, or "". The rest is done in the background if
        no server responds within a second, or if the task was cancelled, before or during this method."""
        kept, client = self._kept, self._client
        if self._released or kept is None:
            return ""
        if kept.settled or kept.ending:
            return self._grant.gone  # the client has ended it
        later = True
        try:
            why = self._grant.why_lost()
            if not hurry:
                await kept.stop()
                ended, later = await client._run(client._protocol.finish(self._grant, time.monotonic() + GRACE))
                why = why or ended
        except ClosedError:
            later, why = False, why or "this client was closed"
        finally:
            releasing = client._end_later(kept) if later else None
        self._grant.gone = why or RELEASED
        if releasing is None:
            client._settle(kept)
        elif hurry:
            await asyncio.wait({releasing}, timeout=_HURRY)
        return why


class Lock:
    """The result of ``Client.lock`` and ``Lease.join``, for one ``async with`` statement at a time. The statement's
    lease lives no longer than this object. A lock that is made in the statement is gone when the statement is over,
    in whatever way it was left."""

    def __init__(
        self, client: Client, resource: Resources, options: Options, on_lost: Optional[Callable[[Lease], object]], joins: Optional[Lease] = None,
    ) -> None:
        self._client, self._resource, self._options = client, resource, options
        self._on_lost, self._joins = on_lost, joins
        self._entered: Optional[Entered[Lease]] = None
        self._working: Optional["asyncio.Task[Any]"] = None
        self._cancelled = False

    async def __aenter__(self) -> Lease:
        if self._entered:
            raise RuntimeError("this lock is in use: make one for each async with statement")
        lease, owns = self._joins, False
        if lease is not None:
            lease._join(self)
        else:
            lease = cast(Optional[Lease], joined(self._client, self._resource, self._options.slots is not None, self))
        if lease is None:
            kept = await self._client._take(self._resource, self._options, self)
            assert kept.grant
            kept.grant.set_margin(self._options.margin)
            lease, owns = Lease(self._client, kept.grant, kept), True
        elif lease.lost:
            raise lost_error(lease._grant, await self._left(lease))
        else:
            self._on_lost = None  # its options are ignored
        task, self._cancelled = asyncio.current_task(), False
        if not lease._includes_caller():
            self._working = task
        self._entered = Entered(lease, self)
        if owns and lease._kept:
            lease._kept.keep(self._client)
        return lease

    def _notify(self) -> None:
        """Cancels the work, once, because the lease is lost."""
        if self._working and not self._cancelled:
            self._cancelled = True
            self._working.cancel()
        if self._on_lost and self._entered:
            told(self._on_lost, self._entered.lease)

    async def _left(self, lease: Lease, hurry: bool = False) -> str:
        """Leaves a lease; the last owner releases it. Returns why it was lost, or ""."""
        if lease._grant.foreign():
            return lease._grant.why_lost()  # a child: the lease is its parent's
        if lease._kept is not None and lease._kept.leave(self):
            return await lease._finish(hurry)
        return "" if lease._released else lease._grant.why_lost()

    async def __aexit__(self, kind: Optional[type], error: Optional[BaseException], *exc: object) -> None:
        assert self._entered
        entered, self._entered = self._entered, None
        entered.leave()
        ours = self._cancelled and kind is not None and issubclass(kind, asyncio.CancelledError)
        if self._cancelled and sys.version_info >= (3, 11) and self._working and self._working.uncancel() > 0:
            ours = False  # somebody else has cancelled the task, too
        self._working = None
        why = await self._left(entered.lease, hurry=kind is not None and not issubclass(kind, Exception) and not ours)
        if why and (kind is None or ours):
            raise lost_error(entered.lease._grant, why) from error
