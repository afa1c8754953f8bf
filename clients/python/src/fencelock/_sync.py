"""The client with threads."""

from __future__ import annotations

import atexit
import functools
import math
import os
import select
import socket
import ssl
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, TypeVar, cast

from . import _http
from ._core import LOOK_BLIND, LOOK_EVERY, QUIET, Presented, Stream, checked
from ._core import GRACE, PROBE_EVERY, RELEASED, Bearer, Grant, NoAnswer, Options, Protocol, Resources, Retry, Send, Server, Steps, T, Watched, again, lost_error, stand_again
from ._lease import Entered, LeaseView, joined, refuse_to_wait_for_oneself
from ._names import resource_of
from ._state import Attempt, LockState, Record, attempt, lock_state, record
from .errors import ClosedError, UnavailableError, shown

_IDLE = 64  # connections that are kept to each server
_AT_EXIT = 0.3  # seconds that the end of the process waits for what is done in the background

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class _Stopped(Exception):
    """The keep-alive was stopped."""


class _Stop:
    """Ends what a thread does, also in the middle of a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: Optional[socket.socket] = None
        self._set = threading.Event()

    def set(self) -> None:
        with self._lock:
            self._set.set()
            if self._sock is not None:
                _shut(self._sock)

    def is_set(self) -> bool:
        return self._set.is_set()

    def watch(self, sock: Optional[socket.socket]) -> None:
        with self._lock:
            self._sock = sock
            if self._set.is_set():
                raise _Stopped

    def sleep(self, seconds: float) -> None:
        if self._set.wait(seconds):
            raise _Stopped


class _Alarm:
    """Starts the threads that keep leases alive when their first extension is due, so that a
    lease which is released before costs none. Its own thread ends when nothing is due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: Dict["Lease", float] = {}
        self._wake = math.inf
        self._thread: Optional[threading.Thread] = None

    def add(self, lease: "Lease", at: float) -> None:
        with self._changed:
            self._due[lease] = at
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fencelock alarm", daemon=True)
                self._thread.start()
            elif at < self._wake:
                self._changed.notify()

    def remove(self, lease: "Lease") -> None:
        with self._changed:
            self._due.pop(lease, None)

    def close(self) -> None:
        with self._changed:
            self._due.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                ready = [lease for lease, at in self._due.items() if at <= now]
                for lease in ready:
                    del self._due[lease]
                if not ready:
                    if not self._due:
                        self._thread = None
                        return
                    self._wake = min(self._due.values())
                    self._changed.wait(self._wake - now)
            for lease in ready:
                try:
                    lease._start_keeping()
                except RuntimeError:  # the system has no thread to spare now
                    self.add(lease, time.monotonic() + 0.1)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class _Connections:
    """The connections of one process, its alarm, and what is done in the background."""

    def __init__(self, context: Optional[ssl.SSLContext]) -> None:
        self.pid = os.getpid()
        self.alarm = _Alarm()
        self._context = context
        self._lock = threading.Lock()
        self._idle: Dict[Server, List[socket.socket]] = {}
        self._closed = False
        self._background: Set[threading.Thread] = set()
        _open.add(self)

    def in_background(self, f: Callable[[], object]) -> None:
        """Does something in a thread that ``finish`` waits for; here if there is none to spare. The
        end of the process waits for it no longer than _AT_EXIT: the TTL ends what is left."""

        def run() -> None:
            try:
                f()
            except ClosedError:
                pass
            finally:
                with self._lock:
                    self._background.discard(thread)

        thread = threading.Thread(target=run, name="fencelock background", daemon=True)
        try:
            with self._lock:
                thread.start()
                self._background.add(thread)
        except RuntimeError:
            run()

    def finish(self, deadline: float) -> None:
        with self._lock:
            threads = list(self._background)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def take(self, server: Server, deadline: float) -> socket.socket:
        while True:
            with self._lock:
                if self._closed:
                    raise ClosedError("this client is closed")
                idle = self._idle.get(server)
                sock = idle.pop() if idle else None
            if sock is None:
                return self.connect(server, deadline)
            if not _readable(sock):
                return sock
            sock.close()  # the server closed it

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("this client is closed")

    def connect(self, server: Server, deadline: float) -> socket.socket:
        sock = socket.create_connection((server.name, server.port), _left(deadline))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not server.tls:
                return sock
            context = self._context or ssl.create_default_context()
            sock.settimeout(_left(deadline))
            return context.wrap_socket(sock, server_hostname=server.name)
        except BaseException:
            sock.close()
            raise

    def put(self, server: Server, sock: socket.socket) -> None:
        with self._lock:
            idle = self._idle.setdefault(server, [])
            if not self._closed and len(idle) < _IDLE:
                idle.append(sock)
                return
        sock.close()

    def forget(self) -> None:
        """Closes a child's copies of its parent's connections, which stay open there. Its lock may
        have been held by another thread at the fork."""
        for idle in self._idle.values():
            for sock in idle:
                sock.close()

    def drop(self, server: Optional[Server] = None, closed: bool = False) -> None:
        """Closes the idle connections, of one server or of all."""
        with self._lock:
            self._closed = self._closed or closed
            servers = [server] if server else list(self._idle)
            socks = [sock for s in servers for sock in self._idle.pop(s, [])]
        for sock in socks:
            sock.close()


_open: "weakref.WeakSet[_Connections]" = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
    deadline = time.monotonic() + _AT_EXIT
    for connections in list(_open):
        if connections.pid == os.getpid():
            connections.finish(deadline)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout("no response in time")
    return left


def _readable(sock: socket.socket) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


class Client:
    """Talks to one lock service through any of its servers, for use by any number of threads.

    servers   URLs: several in a list, or with commas between them. When one does not
              answer, the next is asked.
    bearer    the caller's credential, or a function that is called for it before each request
              (see ``bearer_file``).
    holder    a public label that leases show.
    ssl_context  which authorities are trusted, and the certificate of a client that has one.
    timeout   the most seconds for one try at one server, beyond what it waits in the queue. A try
              ends earlier when its answer is overdue by what answers have taken: the next server is asked then.
    patience  seconds for which a call is repeated that fails, from its first failure: that no
              server answers, or none has a quorum. Then it raises UnavailableError. Every server is
              asked at least once; a wait in the queue is no failure. An acquire with ``wait`` ends
              a second after it at most, whatever the servers do, and a lease that is kept alive is
              extended for as long as it lives.
    poll      seconds that one request waits in the queue at the longest; a longer wait is several
              requests, which keep the place. Whole seconds, less than the time limits of proxies:
              60 in nginx and most load balancers of clouds, 50 in Debian's HAProxy, 15 in Envoy.

    on_retry  called with a Retry for every try that failed and is repeated, by the thread of the call.

    A client may be made before a process forks: the child opens connections of its own.
    """

    def __init__(
        self, servers: Resources, *, bearer: Bearer = None, holder: str = "", ssl_context: Optional[ssl.SSLContext] = None,
        timeout: float = 5.0, patience: float = 15.0, poll: float = 45.0, on_retry: Optional[Callable[[Retry], object]] = None,
    ) -> None:
        self._protocol = Protocol(servers, bearer=bearer, holder=holder, timeout=timeout, patience=patience, poll=poll, on_retry=on_retry)
        self._context = ssl_context
        self._pool = _Connections(ssl_context)

    def __repr__(self) -> str:
        return f"<fencelock.Client of {', '.join(map(str, self._protocol.servers))}>"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for what requests that were given up left to do, at most a second, and closes
        the connections. Leases that are held end with their TTL."""
        connections = self._connections()
        connections.alarm.close()
        connections.finish(time.monotonic() + GRACE)
        connections.drop(closed=True)

    # Leases

    def lock(
        self, resource: Resources, *, ttl: Optional[float] = None, wait: Optional[float] = None, min_hold: Optional[float] = None,
        max_hold: Optional[float] = None, holder: Optional[str] = None, metadata: Any = None, slots: Optional[int] = None,
        margin: Optional[float] = None, on_lost: Optional[Callable[["Lease"], object]] = None, timeout: Optional[float] = None,
    ) -> "Lock":
        """A lock for a ``with`` statement, which waits for the lease, keeps it alive in a
        thread, and releases it at the end. With several resources it takes all or none.

        wait      seconds to wait in the queue: 0 tries once, None waits for as long as it takes.
        ttl       seconds that the lease lives unless it is extended; None leaves it to the service.
        min_hold  seconds from the grant for which the resource stays taken, though it is released.
        max_hold  seconds from the grant after which the lease is not extended.
        slots     takes one of this many slots of the resource, which ``lease.resource`` names and
                  ``lease.slot`` numbers, each with tokens of its own: a semaphore.
        margin    seconds before the end of validity from which it counts as lost; a tenth of the
                  TTL unless set, half of it at most.
        on_lost   called when the lease is lost, by the thread that keeps it alive: it must not block.
        timeout   seconds for entering at most, whatever else is set; then it raises TimedOutError.

        The block should call ``lease.check()`` before each write. At its end it raises
        LeaseLostError if the lease was lost meanwhile; an exception of the block's own comes first.
        Entering raises HeldError, UnavailableError, DeniedError or RefusedError.

        It nests: inside the block, a lock of the same resources (or of a slot of the same
        resource, where the lease is of one) and the same client joins the lease instead of
        waiting for itself, and its options are ignored. The lease is released by the last of them.
        What would wait for the block itself raises RefusedError at once: some of its resources, or the same through
        another client. Another thread joins by ``with lease.join()``, or if it runs in a copy of the block's context."""
        options = Options(ttl, wait, min_hold, max_hold, holder, metadata, slots, timeout)
        return Lock(self, resource, options, margin, on_lost)

    def locked(self, resource: str, **options: Any) -> Callable[[F], F]:
        """A decorator: each call runs under a lease. ``resource`` is formatted with the
        function's arguments: ``@client.locked("orders/{order}", ttl=30)``. The options are those of
        ``lock``; inside, ``fencelock.current()`` is the lease."""

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
        timeout: Optional[float] = None,
    ) -> "Lease":
        """Takes a lease, as ``lock`` does, that is not kept alive: the caller extends and releases it.
        What a request may have been granted whose answer is missing is released in the background."""
        return self._acquire(resource, Options(ttl, wait, min_hold, max_hold, holder, metadata, slots, timeout))

    def _acquire(self, resource: Resources, options: Options) -> "Lease":
        acquisition = self._protocol.acquisition(resource, options)
        refuse_to_wait_for_oneself(self, self._protocol, resource, options)
        try:
            return Lease(self, self._run(acquisition.take()))
        except BaseException:
            if acquisition.in_doubt():
                self._connections().in_background(functools.partial(self._run, acquisition.abandon()))
            raise

    def inspect(self, resource: str, *, timeout: Optional[float] = None) -> LockState:
        """Whether a resource is held, by which holder, for how much longer, and its queue."""
        return self._run(self._protocol.within(timeout, f"inspect {resource!r}", self._protocol.inspect(resource)))

    def elect(self, resource: str, lead: Callable[["Lease"], R], **options: Any) -> R:
        """Stands for the leadership of all that call it for the same resource: who holds its lease
        leads. It calls ``lead`` with the lease while this process leads; the options are those of
        ``lock``. To resign, return from ``lead``: elect returns what it returned, or raises what
        it raised, and the next candidate leads at once.

        When the lease is lost, ``lead`` must return, and should look at ``lease.check()``,
        ``lease.lost`` or ``lease.wait_lost()`` to learn it. Then, and after an outage, elect stands
        again, and drops what ``lead`` returned or raised."""
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
        """Tells who holds a resource, as ``inspect`` does: now, and after each change; None while
        it is unknown, because no server responds or there is no quorum. A change is told as soon as the
        service's events show it, or after 10 s; after 1 s while no server sends events.
        Tokens never fall; a holder that comes and goes between two looks is left out."""
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
        """Reads a guarded record, and claims nothing: before a write use ``claim_record``. One that was
        never written has version 0."""
        return self._run(self._protocol.read_record(resource))

    def claim_record(self, lease: Presented) -> Record:
        """Claims a guarded record for a lease, and reads it: from then on no smaller token writes it.
        Raises StaleTokenError. ``lease`` is of one resource; of several, pass one of its parts."""
        return self._run(self._protocol.claim_record(lease))

    def write_record(self, lease: Presented, value: Any) -> Record:
        """Writes a JSON value under the token of a lease. Raises StaleTokenError, and nothing is written.
        It is not sent again once a server may have done it: after UnavailableError it may be written, now or later."""
        return self._run(self._protocol.write_record(lease, value))

    def delete_record(self, lease: Presented) -> Record:
        """Deletes the value of a record under the token of a lease, as ``write_record`` writes it: its history
        and its highest token stay."""
        return self._run(self._protocol.delete_record(lease))

    def lease(self, lease_id: str) -> "Lease":
        """Looks up a live lease by its lease id, for a process that works under a lease which another
        one acquired. Raises LeaseLostError if it has ended."""
        return Lease(self, self._run(self._protocol.look_up(lease_id)))

    def break_lock(self, resource: str, token: int) -> None:
        """Ends the lease of a resource that has the fencing token, which ``inspect`` shows, and never
        a later one. That is for administrators; the holder learns it from its next request. Raises
        RefusedError of the kind "lock-not-held" if the resource is free, and OtherLeaseError if another lease
        holds it."""
        self._run(self._protocol.break_lock(resource, token))

    def break_any(self, resource: str) -> None:
        """Ends whatever lease holds a resource. After UnavailableError the lease may have ended, and
        another ``break_any`` may end the next one: ``inspect`` first."""
        self._run(self._protocol.break_any(resource))

    def list(self, prefix: str = "") -> Iterator[LockState]:
        """The held resources that begin with a prefix, in no particular order. A lock that is taken or released meanwhile may be missed or come twice."""
        return map(lock_state, self._pages(f"list {shown(prefix)}", "/locks", {"prefix": prefix}, "locks"))

    def records(self, prefix: str = "") -> Iterator[Record]:
        """The guarded records whose resources begin with a prefix, in the order of their bytes and without their values."""
        return map(record, self._pages(f"list the records {shown(prefix)}", "/guarded", {"prefix": prefix}, "records"))

    def history(self, resource: str) -> Iterator[Attempt]:
        """The newest hundred writes and claims of a guarded record, refused ones too, the newest first."""
        return map(attempt, self._pages(f"history {shown(resource)}", "/history", {"resource": checked(resource)}, "attempts"))

    def _pages(self, operation: str, path: str, query: Dict[str, str], member: str) -> Iterator[Dict[str, Any]]:
        following: Optional[Dict[str, str]] = query
        while following is not None:
            page, following = self._run(self._protocol.page(operation, path, following))
            yield from page[member]

    # Running the protocol

    def _run(self, steps: Steps[T], stop: Optional[_Stop] = None) -> T:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Send):
                    try:
                        answer = self._send(step, stop)
                    except NoAnswer as e:
                        step = steps.throw(e)
                    else:
                        step = steps.send(answer)
                else:
                    (stop.sleep if stop else time.sleep)(step.seconds)
                    step = next(steps)
        except StopIteration as end:
            return cast(T, end.value)

    def _connections(self) -> _Connections:
        """The connections of this process: after a fork, others than the parent's."""
        if self._pool.pid != os.getpid():
            parents, self._pool = self._pool, _Connections(self._context)
            parents.forget()
        return self._pool

    def _send(self, request: Send, stop: Optional[_Stop] = None) -> _http.Answer:
        pool, deadline, data = self._connections(), time.monotonic() + request.limit, request.data
        sent = False
        sock: Optional[socket.socket] = None
        try:
            sock = pool.take(request.server, deadline)
            if stop:
                stop.watch(sock)
            sock.settimeout(_left(deadline))
            sent = True
            sock.sendall(data)
            parser = _http.Parser()
            answer = self._read(sock, parser, request, deadline)
            if stop:
                stop.watch(None)
            if parser.keep_alive:
                pool.put(request.server, sock)
                sock = None
            return answer
        except (OSError, _http.Malformed) as e:
            if stop:
                stop.watch(None)
            # Other connections to a server that swallows requests are no better.
            pool.drop(request.server)
            raise NoAnswer("no response in time" if isinstance(e, socket.timeout) else str(e), sent) from None
        finally:
            if sock is not None:
                sock.close()

    def _read(self, sock: socket.socket, parser: _http.Parser, request: Send, deadline: float) -> _http.Answer:
        answer, probe = None, request.probe or math.inf
        while answer is None:
            left = _left(deadline)
            sock.settimeout(min(left, probe))
            try:
                answer = parser.feed(sock.recv(65536))
            except socket.timeout:
                if left <= probe:
                    raise
                self._probe(request.server, request.probe)
                probe = PROBE_EVERY
        return answer

    def _probe(self, server: Server, limit: float) -> None:
        """Raises if a server does not answer at all: a frozen one would keep a request that
        waits in the queue until the end of its wait."""
        try:
            self._send(self._protocol.probe(server, limit))
        except NoAnswer as e:
            if self._protocol.shared(server):
                return
            raise OSError(f"the server does not answer while the request waits: {e}") from None


class _Events:
    """The service's events about a resource: no more than a reason to look, since any of them may be missing."""

    def __init__(self, client: Client, resource: str) -> None:
        self._client, self._resource = client, resource
        self._sock: Optional[socket.socket] = None
        self._stream = Stream()
        self._quiet = 0.0  # when the stream counts as broken
        self._n = 0  # the server that is asked next

    def wait(self) -> None:
        """Waits until there is a reason to look."""
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

    def __init__(self, client: Client, grant: Grant) -> None:
        super().__init__(grant, client, client._protocol.servers)
        self._client = client
        self._lost = threading.Event()
        self._guard = threading.Lock()
        self._released = False
        self._on_lost: Optional[Callable[[Lease], object]] = None
        self._alarm: Optional[_Alarm] = None
        self._stop: Optional[_Stop] = None
        self._keeper: Optional[threading.Thread] = None

    def wait_lost(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lease is lost, at most for so many seconds; says whether it is. Only a
        lease of ``lock`` notices by itself."""
        return self._lost.wait(timeout) or self.lost

    def extend(self, *, timeout: Optional[float] = None) -> None:
        """Gives the lease its TTL again. Raises LeaseLostError (final), or UnavailableError: the lease keeps
        its old validity, and the call may be repeated. A lease of ``lock`` is extended by itself."""
        self._of_this_process()
        self._client._run(self._client._protocol.within(timeout, f"extend {self.resource!r}", self._client._protocol.extend(self._grant)))

    def release(self, *, timeout: Optional[float] = None) -> None:
        """Releases the lease. Raises LeaseLostError if it had ended before, and UnavailableError if it may
        not have been released: repeat it, or let the TTL end it."""
        self._of_this_process()
        self._stop_keeping()
        self._client._run(self._client._protocol.within(timeout, f"release {self.resource!r}", self._client._protocol.release(self._grant)))
        self._grant.gone, self._released = RELEASED, True

    def join(self) -> "Lock":
        """A ``with`` statement of another thread, which works under this lease of a ``with`` statement; the last of
        them releases it. Entering raises LeaseLostError if the lease is over."""
        return Lock(self._client, [p.resource for p in self.parts], Options(), None, None, self)

    def _keep(self, margin: Optional[float], on_lost: Optional[Callable[["Lease"], object]]) -> None:
        grant = self._grant
        grant.margin = grant.ttl / 10 if margin is None else min(margin, grant.ttl / 2)
        self._on_lost, self._stop = on_lost, _Stop()
        alarm = self._alarm = self._client._connections().alarm
        alarm.add(self, self._client._protocol.first_extend(grant))

    def _start_keeping(self) -> None:
        with self._guard:
            if self._stop and not self._stop.is_set():
                self._keeper = threading.Thread(target=self._keep_alive, args=(self._stop,), name=f"fencelock {self.resource}", daemon=True)
                self._keeper.start()

    def _keep_alive(self, stop: _Stop) -> None:
        try:
            self._grant.gone = self._client._run(self._client._protocol.keep(self._grant), stop)
        except _Stopped:
            return
        except ClosedError as e:
            self._grant.gone = str(e)
        self._lost.set()
        if self._on_lost:
            self._on_lost(self)

    def _stop_keeping(self) -> None:
        if self._stop is None or self._alarm is None:
            return
        self._alarm.remove(self)
        with self._guard:
            self._stop.set()
            keeper = self._keeper
        if keeper and keeper is not threading.current_thread():
            keeper.join(GRACE)  # it sends nothing any more, but may still be connecting

    def _finish(self, hurry: bool) -> str:
        """Ends the keep-alive, and then the lease. Returns why it was lost, or "". No answer within
        a second, or a process in a hurry to end: the rest is done in the background."""
        if self._released:
            return ""
        self._stop_keeping()
        why, client = self._grant.why_lost(), self._client
        later = True  # also when this process is told to end while it waits
        ended = ""
        try:
            if not hurry:
                ended, later = client._run(client._protocol.finish(self._grant, time.monotonic() + GRACE))
        except ClosedError:
            later = False  # its TTL ends it
        finally:
            if later:
                client._connections().in_background(functools.partial(client._run, client._protocol.finish_later(self._grant)))
            self._grant.gone = why or ended or RELEASED
            if why or ended:
                self._lost.set()
        return why or ended


class Lock:
    """What ``Client.lock`` and ``Lease.join`` make. One ``with`` statement at a time."""

    def __init__(
        self, client: Client, resource: Resources, options: Options, margin: Optional[float], on_lost: Optional[Callable[[Lease], object]],
        joins: Optional[Lease] = None,
    ) -> None:
        self._client, self._resource, self._options = client, resource, options
        self._margin, self._on_lost, self._joins = margin, on_lost, joins
        self._entered: Optional[Entered[Lease]] = None

    def __enter__(self) -> Lease:
        if self._entered:
            raise RuntimeError("this lock is in use: make one for each with statement")
        lease = self._joins
        if lease is not None:
            lease._enter_from_outside()
        else:
            lease = cast(Optional[Lease], joined(self._client, self._resource, self._options.slots is not None))
        if lease is None:
            lease = self._client._acquire(self._resource, self._options)
            lease._inside = 1
            lease._keep(self._margin, self._on_lost)
        elif lease.lost:
            why = self._left(lease)
            raise lost_error(lease._grant, why)
        self._entered = Entered(lease)
        return lease

    def __exit__(self, kind: Optional[type], *exc: object) -> None:
        assert self._entered
        entered, self._entered = self._entered, None
        entered.leave()
        why = self._left(entered.lease, hurry=kind is not None and not issubclass(kind, Exception))
        if why and kind is None:
            raise lost_error(entered.lease._grant, why)

    @staticmethod
    def _left(lease: Lease, hurry: bool = False) -> str:
        """Counts a with statement out, and releases the lease with the last. Returns why it was lost, or ""."""
        if lease._grant.foreign():
            return lease._grant.why_lost()  # a child: the lease is its parent's
        if lease._leave():
            return lease._finish(hurry)
        return "" if lease._released else lease._grant.why_lost()
