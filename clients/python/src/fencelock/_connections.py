"""The connections of the client with threads, and the queues for them.

An exception may interrupt a thread of the application at any point: from a signal handler, when a greenlet is killed,
or from a debugger. So no line here relies on the next one being executed. Threads share data only by single
operations on lists, dicts and simple queues, which C implements and no exception can interrupt. A lock is held for a
single such operation. threading.Condition is not used, because such an exception could leave its lock taken for ever.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import socket
import ssl
import threading
import time
import weakref
from typing import Dict, List, Optional

from . import _http
from ._core import PROBE_EVERY, Protocol
from ._steps import NoAnswer, Send, Server
from .errors import ClosedError

WAITS, CALLS = 192, 48  # connections to a server: for requests that may wait in its queue, and for others
HANDS = 16  # threads of the keeper, each with a connection
_MISSED = 1.0  # seconds of waiting after which lost slots are replaced


class Stopped(BaseException):
    """The thread's request was stopped (see Stop)."""


class Stop:
    """Stops what a thread does, even in the middle of a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: Optional[socket.socket] = None
        self._set = False

    def set(self) -> None:
        self._set = True
        with self._lock: _shut(self._sock)

    def is_set(self) -> bool:
        return self._set

    def watch(self, sock: Optional[socket.socket]) -> None:
        """Sets the connection that ``set`` breaks. Raises Stopped if ``set`` was called already."""
        with self._lock: self._sock = sock
        if self._set:
            raise Stopped


class Slot:
    """The right to send one request."""


class Lane:
    """Lets a limited number of requests through at once. The others queue, first come, first served.

    A slot is either in the queue or used by a request. A slot that was lost with an interrupted thread is neither.
    The next caller that waits for long notices that it is gone, and replaces it."""

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, threading.Lock()
        self._free: "queue.SimpleQueue[Slot]" = queue.SimpleQueue()
        self._made: List["weakref.ref[Slot]"] = []
        self._replace_lost()

    @property
    def crowded(self) -> bool:
        """Whether most of the slots are taken."""
        return self._free.qsize() < self._size // 2

    def take(self, limit: float) -> Optional[Slot]:
        """Waits for a slot for at most ``limit`` seconds; None if there was none in time."""
        deadline = time.monotonic() + limit
        while True:
            left = deadline - time.monotonic()
            try:
                return self._free.get(timeout=max(0.0, min(left, _MISSED)))
            except queue.Empty:
                if left <= _MISSED:
                    return None
                self._replace_lost()

    def give(self, slot: Optional[Slot]) -> None:
        if slot is not None:
            self._free.put(slot)

    def _replace_lost(self) -> None:
        with self._lock: self._make()

    def _make(self) -> None:
        self._made = [made for made in self._made if made() is not None]
        for _ in range(self._size - len(self._made)):
            slot = Slot()
            self._made.append(weakref.ref(slot))
            self._free.put(slot)


def _shut(sock: Optional[socket.socket]) -> None:
    try:
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


class Connections:
    """The connections of one process."""

    def __init__(self, protocol: Protocol, context: Optional[ssl.SSLContext]) -> None:
        self.pid = os.getpid()
        self.waits, self.calls = Lane(WAITS), Lane(CALLS)
        self._protocol, self._context = protocol, context
        self._idle: Dict[Server, List[socket.socket]] = {server: [] for server in protocol.servers}
        self._closed = False

    def send(self, request: Send, stop: Optional[Stop] = None) -> _http.Answer:
        deadline, data = time.monotonic() + request.limit, request.data
        sent = False
        sock: Optional[socket.socket] = None
        try:
            sock = self._take(request.server, deadline)
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
                idle, sock = sock, None  # the pool owns it from here on
                self._put(request.server, idle)
            return answer
        except (OSError, _http.Malformed) as e:
            if stop:
                stop.watch(None)
            # Other idle connections to a server that does not respond are probably lost, too.
            self.drop(request.server)
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
        """Raises if a server responds to nothing, because a frozen server would keep a waiting request until the end
        of its wait."""
        slot = self.calls.take(limit)
        if slot is None:
            return  # other requests to the server use all slots, and notice it
        try:
            self.send(self._protocol.probe(server, limit))
        except NoAnswer as e:
            if self._protocol.shared(server):
                return
            raise OSError(f"the server does not answer while the request waits: {e}") from None
        finally:
            self.calls.give(slot)

    def _take(self, server: Server, deadline: float) -> socket.socket:
        while True:
            self.check_open()
            try:
                sock = self._idle[server].pop()
            except IndexError:
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

    def _put(self, server: Server, sock: socket.socket) -> None:
        self._idle[server].append(sock)
        if self._closed:
            self.drop(server)

    def forget(self) -> None:
        """Closes a child's copies of its parent's connections. They stay open in the parent."""
        self.drop()

    def drop(self, server: Optional[Server] = None, closed: bool = False) -> None:
        """Closes the idle connections of one server, or of all."""
        self._closed = self._closed or closed
        for each in [server] if server else self._idle:
            idle = self._idle[each]
            while idle:
                with contextlib.suppress(IndexError):  # another thread took the last one
                    idle.pop().close()


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
