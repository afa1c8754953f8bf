"""The client on asyncio: the same names as ``fencelock``, with ``async with`` and ``await``.

    from fencelock.aio import Client

    async with client.lock("orders/42", ttl=30, wait=5) as lease:
        async with fenced(conn, lease):
            await conn.execute("UPDATE …")

The work is cancelled when the lease is lost, and the block then raises LeaseLostError.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import sys
import time
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Optional, Set, Tuple, TypeVar, cast

from . import _batch, _http
from ._core import LOOK_BLIND, LOOK_EVERY, QUIET, Presented, Stream, checked
from ._core import (
    GRACE, PROBE_EVERY, RELEASED, Acquisition, Bearer, Grant, NoAnswer, Options, Part, Protocol, Resources, Retry, Send, Server, Steps, T, Watched, again, bearer_file, lost_error,
    stand_again,
)
from ._lease import Entered, LeaseView, current, joined, refuse_to_wait_for_oneself
from ._names import resource_of
from ._state import Attempt, LockState, Record, Waiter, attempt, lock_state, record
from .errors import ClosedError, DeniedError, FencelockError, HeldError, LeaseLostError, RefusedError, StaleTokenError, TimedOutError, UnavailableError, shown
from .guard import afenced as fenced

__all__ = [
    "Attempt", "Client", "ClosedError", "DeniedError", "FencelockError", "HeldError", "Lease", "LeaseLostError", "Lock", "LockState", "Part", "Record",
    "RefusedError", "Retry", "StaleTokenError", "TimedOutError", "UnavailableError", "Waiter", "bearer_file", "current", "fenced",
]

_IDLE = 64  # connections that are kept to each server
_READ = 65536  # bytes
_HURRY = 0.3  # seconds that a cancelled task waits for the release of its lease

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
R = TypeVar("R")
_Connection = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Client:
    """Talks to one lock service through any of its servers, for any number of tasks of one
    event loop. The settings are those of ``fencelock.Client``; a function for ``bearer`` must not
    block for long.

    While ``batch_after`` requests are under way to a server, further acquires with ``wait=0``, extends and releases
    gather for up to 5 ms, to be sent together in one POST /locks/batch. Each has its own outcome and time limit. 0 sends every
    such call in a batch, and a negative number none."""

    def __init__(
        self, servers: Resources, *, bearer: Bearer = None, holder: str = "", ssl_context: Optional[ssl.SSLContext] = None,
        timeout: float = 5.0, patience: float = 15.0, poll: float = 45.0, on_retry: Optional[Callable[[Retry], object]] = None,
        batch_after: int = _batch.AFTER,
    ) -> None:
        self._protocol = Protocol(servers, bearer=bearer, holder=holder, timeout=timeout, patience=patience, poll=poll, on_retry=on_retry)
        self._context, self._batch_after = ssl_context, batch_after
        self._batchers: Dict[Server, _batch.Batcher] = {}
        self._idle: Dict[Server, List[_Connection]] = {}
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._background: Set["asyncio.Task[None]"] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<fencelock.aio.Client of {', '.join(map(str, self._protocol.servers))}>"

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for what requests that were given up left to do, at most a second, and closes
        the connections. Leases that are held end with their TTL."""
        if self._background:
            await asyncio.wait(self._background, timeout=GRACE)
        self._closed = True
        closing = [writer for idle in self._idle.values() for _, writer in idle]
        self._idle.clear()
        for writer in closing:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in closing), return_exceptions=True)

    # Leases

    def lock(
        self, resource: Resources, *, ttl: Optional[float] = None, wait: Optional[float] = None, min_hold: Optional[float] = None,
        max_hold: Optional[float] = None, holder: Optional[str] = None, metadata: Any = None, slots: Optional[int] = None,
        margin: Optional[float] = None, on_lost: Optional[Callable[["Lease"], object]] = None, timeout: Optional[float] = None,
    ) -> "Lock":
        """A lock for an ``async with`` statement; the options are those of ``fencelock.Client.lock``.
        When the lease is lost the task is cancelled where it is, and the statement raises LeaseLostError.

        A task that the block starts (``create_task``, ``gather``, a task group, before Python 3.12 also ``wait_for``) joins
        by ``async with lease.join()``; a lock of the same resource in it raises RefusedError at once."""
        options = Options(ttl, wait, min_hold, max_hold, holder, metadata, slots, timeout)
        return Lock(self, resource, options, margin, on_lost)

    def locked(self, resource: str, **options: Any) -> Callable[[F], F]:
        """A decorator for coroutine functions, as ``fencelock.Client.locked``."""

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
        timeout: Optional[float] = None,
    ) -> "Lease":
        """Takes a lease that is not kept alive: the caller extends and releases it. A caller that
        is cancelled returns at once; what a request may have been granted whose answer is missing is released in the background."""
        return await self._acquire(resource, Options(ttl, wait, min_hold, max_hold, holder, metadata, slots, timeout))

    async def _acquire(self, resource: Resources, options: Options) -> "Lease":
        acquisition = self._protocol.acquisition(resource, options)
        refuse_to_wait_for_oneself(self, self._protocol, resource, options)
        grant: Optional[Grant] = None
        try:
            grant = await self._run(acquisition.take())
            return Lease(self, grant)
        finally:
            if acquisition.late or grant is None and acquisition.in_doubt():
                self._in_background(self._end_late(acquisition, grant))

    async def _end_late(self, acquisition: Acquisition, got: Optional[Grant]) -> None:
        """Ends what tries of an acquisition may be granted that it has given up."""
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
        """As ``fencelock.Client.inspect``."""
        return await self._run(self._protocol.within(timeout, f"inspect {resource!r}", self._protocol.inspect(resource)))

    async def elect(self, resource: str, lead: Callable[["Lease"], Awaitable[R]], **options: Any) -> R:
        """As ``fencelock.Client.elect``; ``lead`` is a coroutine function, which is cancelled when
        the lease is lost."""
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
        """As ``fencelock.Client.watch``, for ``async for``."""
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
        """As ``fencelock.Client.read_record``."""
        return await self._run(self._protocol.read_record(resource))

    async def claim_record(self, lease: Presented) -> Record:
        """As ``fencelock.Client.claim_record``."""
        return await self._run(self._protocol.claim_record(lease))

    async def write_record(self, lease: Presented, value: Any) -> Record:
        """As ``fencelock.Client.write_record``."""
        return await self._run(self._protocol.write_record(lease, value))

    async def delete_record(self, lease: Presented) -> Record:
        """As ``fencelock.Client.delete_record``."""
        return await self._run(self._protocol.delete_record(lease))

    async def lease(self, lease_id: str) -> "Lease":
        """As ``fencelock.Client.lease``."""
        return Lease(self, await self._run(self._protocol.look_up(lease_id)))

    async def break_lock(self, resource: str, token: int) -> None:
        """As ``fencelock.Client.break_lock``."""
        await self._run(self._protocol.break_lock(resource, token))

    async def break_any(self, resource: str) -> None:
        """As ``fencelock.Client.break_any``."""
        await self._run(self._protocol.break_any(resource))

    def list(self, prefix: str = "") -> AsyncIterator[LockState]:
        """As ``fencelock.Client.list``, for ``async for``."""
        return self._pages(f"list {shown(prefix)}", "/locks", {"prefix": prefix}, "locks", lock_state)

    def records(self, prefix: str = "") -> AsyncIterator[Record]:
        """As ``fencelock.Client.records``, for ``async for``."""
        return self._pages(f"list the records {shown(prefix)}", "/guarded", {"prefix": prefix}, "records", record)

    def history(self, resource: str) -> AsyncIterator[Attempt]:
        """As ``fencelock.Client.history``, for ``async for``."""
        return self._pages(f"history {shown(resource)}", "/history", {"resource": checked(resource)}, "attempts", attempt)

    async def _pages(self, operation: str, path: str, query: Dict[str, str], member: str, read: Callable[[Dict[str, Any]], R]) -> AsyncIterator[R]:
        following: Optional[Dict[str, str]] = query
        while following is not None:
            page, following = await self._run(self._protocol.page(operation, path, following))
            for each in page[member]:
                yield read(each)

    # Running the protocol

    async def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Send):
                    try:
                        answer = await self._send(step)
                    except NoAnswer as e:
                        step = steps.throw(e)
                    else:
                        step = steps.send(answer)
                else:
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
        except StopIteration as end:
            return cast(T, end.value)

    async def _send(self, request: Send) -> _http.Answer:
        """Sends a request, alone or in a batch."""
        if not request.gathers:
            return await self._exchange(request)
        self._here()
        batcher = self._batchers.get(request.server)
        if batcher is None:
            batcher = self._batchers[request.server] = _batch.Batcher(request.server, self._batch_after, self._exchange)
        return await batcher.send(request)

    async def _exchange(self, request: Send) -> _http.Answer:
        deadline, data = time.monotonic() + request.limit, request.data
        sent, writer = False, None
        try:
            reader, writer = await self._take(request.server, deadline)
            sent = True
            writer.write(data)
            parser = _http.Parser()
            answer = await self._read((reader, writer), parser, request, deadline)
            if parser.keep_alive:
                self._put(request.server, (reader, writer))
                writer = None
            return answer
        except (OSError, _http.Malformed, asyncio.TimeoutError) as e:
            self._drop(request.server)
            if writer is not None:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()  # or the collector reports that nobody looked at why it ended
            raise NoAnswer("no response in time" if isinstance(e, asyncio.TimeoutError) else str(e), sent) from None
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _read(self, connection: _Connection, parser: _http.Parser, request: Send, deadline: float) -> _http.Answer:
        reader, writer = connection
        timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), writer.transport.abort)
        try:
            answer = None
            while answer is None:
                answer = parser.feed(await (self._probing(reader, request) if request.probe else reader.read(_READ)))
            return answer
        except _http.Malformed:
            if time.monotonic() >= deadline:
                raise asyncio.TimeoutError from None
            raise
        finally:
            timer.cancel()

    async def _probing(self, reader: asyncio.StreamReader, request: Send) -> bytes:
        """Reads, and raises if the server does not answer at all: a frozen one would keep a
        request that waits in the queue until the end of its wait."""
        reading, pause = asyncio.ensure_future(reader.read(_READ)), request.probe
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=pause)
                if not reading.done():
                    await self._probe(request.server, request.probe)
                pause = PROBE_EVERY
            return reading.result()
        finally:
            reading.cancel()

    async def _probe(self, server: Server, limit: float) -> None:
        try:
            await self._send(self._protocol.probe(server, limit))
        except NoAnswer as e:
            if self._protocol.shared(server):
                return
            raise OSError(f"the server does not answer while the request waits: {e}") from None

    async def _take(self, server: Server, deadline: float) -> _Connection:
        if self._closed:
            raise ClosedError("this client is closed")
        self._here()
        idle = self._idle.get(server, [])
        while idle:
            reader, writer = idle.pop()
            if not reader.at_eof() and not writer.transport.is_closing():
                return reader, writer
            writer.transport.abort()
        return await self._connect(server, deadline)

    def _here(self) -> None:
        """Drops connections and calls of another event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._idle.clear()
            self._batchers.clear()
            self._loop = loop

    async def _connect(self, server: Server, deadline: float) -> _Connection:
        context = (self._context or ssl.create_default_context()) if server.tls else None
        # Not wait_for: before Python 3.12 it may swallow a cancel.
        opening = asyncio.ensure_future(asyncio.open_connection(server.name, server.port, ssl=context))
        try:
            await asyncio.wait({opening}, timeout=max(0.0, deadline - time.monotonic()))
            if not opening.done():
                raise asyncio.TimeoutError
            reader, writer = opening.result()
            if hasattr(writer.transport, "max_size"):  # asyncio's own reads into 256 KiB, memory that is mapped and unmapped each time
                writer.transport.max_size = _READ
            return reader, writer
        except BaseException:
            opening.cancel()
            opening.add_done_callback(_discard)
            raise

    def _put(self, server: Server, connection: _Connection) -> None:
        idle = self._idle.setdefault(server, [])
        if self._closed or len(idle) >= _IDLE:
            connection[1].close()
        else:
            idle.append(connection)

    def _drop(self, server: Server) -> None:
        for _, writer in self._idle.pop(server, []):
            writer.transport.abort()


class _Events:
    """The service's events about a resource: no more than a reason to look, since any of them may be missing."""

    def __init__(self, client: Client, resource: str) -> None:
        self._client, self._resource = client, resource
        self._connection: Optional[_Connection] = None
        self._reading: Optional["asyncio.Future[bytes]"] = None
        self._stream = Stream()
        self._quiet = 0.0  # when the stream counts as broken
        self._n = 0  # the server that is asked next

    async def wait(self) -> None:
        """Waits until there is a reason to look."""
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
                self._reading = asyncio.ensure_future(self._connection[0].read(_READ))
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
            self._connection = await self._client._connect(request.server, time.monotonic() + request.limit)
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


def _discard(opening: "asyncio.Future[_Connection]") -> None:
    """Closes a connection that was made too late."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()


class Lease(LeaseView):
    """A lease of a Client, for the tasks of its event loop."""

    def __init__(self, client: Client, grant: Grant) -> None:
        super().__init__(grant, client, client._protocol.servers)
        self._client = client
        self._released = False
        self._alarm: Optional[asyncio.TimerHandle] = None
        self._keeper: Optional["asyncio.Task[None]"] = None
        self._locks: List["Lock"] = []  # one for each task that works under it

    async def extend(self, *, timeout: Optional[float] = None) -> None:
        """As ``fencelock.Lease.extend``."""
        self._of_this_process()
        await self._client._run(self._client._protocol.within(timeout, f"extend {self.resource!r}", self._client._protocol.extend(self._grant)))

    async def release(self, *, timeout: Optional[float] = None) -> None:
        """As ``fencelock.Lease.release``."""
        self._of_this_process()
        await self._stop_keeping()
        await self._client._run(self._client._protocol.within(timeout, f"release {self.resource!r}", self._client._protocol.release(self._grant)))
        self._grant.gone, self._released = RELEASED, True

    def join(self) -> "Lock":
        """As ``fencelock.Lease.join``, for an ``async with`` statement of any task, which is cancelled when the lease
        is lost. A task that was started inside a block does not work under its lease by itself."""
        return Lock(self._client, [p.resource for p in self.parts], Options(), None, None, self)

    def _includes_caller(self) -> bool:
        task = asyncio.current_task()
        return any(lock._working is task for lock in self._locks)

    def _keep(self, margin: Optional[float]) -> None:
        grant = self._grant
        grant.margin = grant.ttl / 10 if margin is None else min(margin, grant.ttl / 2)

        async def keep() -> None:
            try:
                grant.gone = await self._client._run(self._client._protocol.keep(grant))
            except ClosedError as e:
                grant.gone = str(e)
            for lock in tuple(self._locks):
                lock._notify(self)

        def start() -> None:
            self._keeper = loop.create_task(keep())

        loop = asyncio.get_running_loop()  # a lease that is released before its first extension costs no task
        self._alarm = loop.call_later(max(0.0, self._client._protocol.first_extend(grant) - time.monotonic()), start)

    async def _stop_keeping(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        if self._keeper and self._keeper is not asyncio.current_task():
            self._keeper.cancel()
            await asyncio.wait({self._keeper})

    async def _finish(self, hurry: bool) -> str:
        """Ends the keep-alive, and then the lease. Returns why it was lost, or "". No answer within
        a second, or a task that was cancelled: the rest is done in the background."""
        if self._released:
            return ""
        await self._stop_keeping()
        why, protocol = self._grant.why_lost(), self._client._protocol
        ended, later = "", True
        try:
            if not hurry:
                ended, later = await self._client._run(protocol.finish(self._grant, time.monotonic() + GRACE))
        except ClosedError:
            later = False  # its TTL ends it
        finally:
            self._grant.gone = why or ended or RELEASED
            releasing = self._client._in_background(self._client._run(protocol.finish_later(self._grant))) if later else None
        if hurry and releasing:
            await asyncio.wait({releasing}, timeout=_HURRY)
        return why or ended


class Lock:
    """What ``Client.lock`` and ``Lease.join`` make. One ``async with`` statement at a time."""

    def __init__(
        self, client: Client, resource: Resources, options: Options, margin: Optional[float], on_lost: Optional[Callable[[Lease], object]],
        joins: Optional[Lease] = None,
    ) -> None:
        self._client, self._resource, self._options = client, resource, options
        self._margin, self._on_lost, self._joins = margin, on_lost, joins
        self._entered: Optional[Entered[Lease]] = None
        self._working: Optional["asyncio.Task[Any]"] = None
        self._cancelled = False

    async def __aenter__(self) -> Lease:
        if self._entered:
            raise RuntimeError("this lock is in use: make one for each async with statement")
        lease = self._joins
        if lease is not None:
            lease._enter_from_outside()
        else:
            lease = cast(Optional[Lease], joined(self._client, self._resource, self._options.slots is not None))
        if lease is None:
            lease = await self._client._acquire(self._resource, self._options)
            lease._inside = 1
            lease._keep(self._margin)
        elif lease.lost:
            raise lost_error(lease._grant, await self._left(lease))
        else:
            self._on_lost = None  # its options are ignored
        task, self._cancelled = asyncio.current_task(), False
        if all(lock._working is not task for lock in lease._locks):
            self._working = task
            lease._locks.append(self)
        self._entered = Entered(lease)
        return lease

    def _notify(self, lease: Lease) -> None:
        """Cancels the work, once."""
        if self._working and not self._cancelled:
            self._cancelled = True
            self._working.cancel()
        if self._on_lost:
            self._on_lost(lease)

    async def _left(self, lease: Lease, hurry: bool = False) -> str:
        """Counts a statement out, and releases the lease with the last. Returns why it was lost, or ""."""
        if self in lease._locks:
            lease._locks.remove(self)
        if lease._grant.foreign():
            return lease._grant.why_lost()  # a child: the lease is its parent's
        if lease._leave():
            return await lease._finish(hurry)
        return "" if lease._released else lease._grant.why_lost()

    async def __aexit__(self, kind: Optional[type], error: Optional[BaseException], *exc: object) -> None:
        assert self._entered
        entered, self._entered = self._entered, None
        entered.leave()
        ours = self._cancelled and kind is not None and issubclass(kind, asyncio.CancelledError)
        if self._cancelled and sys.version_info >= (3, 11) and self._working and self._working.uncancel() > 0:
            ours = False  # another cancelled the task, too
        self._working = None
        why = await self._left(entered.lease, hurry=kind is not None and not issubclass(kind, Exception) and not ours)
        if why and (kind is None or ours):
            raise lost_error(entered.lease._grant, why) from error
