"""The real lock service, for the tests of an application.

    from fencelock.testing import Service

    def test_deposit(fencelock_service):       # the fixture for pytest; elsewhere: with Service() as service:
        client = fencelock_service.client()
        …
        fencelock_service.end("accounts/1")      # as if its time to live had passed
        fencelock_service.lose_next_response()   # to a request that is carried out
        other = fencelock_service.hold("accounts/1")  # another process has it
        other.release()

It starts the program ``fencelock``, which keeps its locks in a temporary file and is ready in a tenth of a second. This is
the program that the variable FENCELOCK_PROGRAM names, or the one in PATH, or the container image that FENCELOCK_IMAGE names
(``fencelock`` unless set). So a test meets every check, limit and refusal of the service.

A lease without a ``ttl`` gets 1.5 s (``Service(ttl=…)``), so that the client that keeps it alive notices within half a second
that it was ended.

For pytest, name the plugin in conftest.py: ``pytest_plugins = ["fencelock.testing"]``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any, Dict, Iterator, List, Tuple

from . import aio
from ._sync import Client, Lease
from .errors import HeldError, RefusedError

__all__ = ["Other", "Service"]

_PATIENCE = 30.0  # seconds: the time limit of the program's start and of await_waiters
_LISTENING = re.compile(r'"msg":"listening","addr":"([^"]*):(\d+)"')
_NOT_LOST = (b"GET /healthz", b"GET /events")  # probes and streams, whose responses are never lost


class Other:
    """A lease that another process holds, as far as the code under test can see."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def token(self) -> int:
        """The fencing token of the lease's first resource."""
        return self._lease.parts[0].token

    def release(self) -> None:
        """Releases the lease. The next request in the queue gets the resources."""
        self._lease.release()


class Service:
    """A process of the lock service, on a port of its own."""

    def __init__(self, ttl: float = 1.5) -> None:
        self._clients: List[Client] = []
        self._program = _Program(ttl)
        try:
            self._proxy = _Proxy(self._program.address)
        except BaseException:
            self._program.close()
            raise
        self._others = Client(f"http://127.0.0.1:{self._program.address[1]}", holder="another process")

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the service, and the clients that ``client`` made."""
        for client in (*self._clients, self._others):
            client.close()
        self._proxy.close()
        self._program.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._proxy.port}"

    def client(self, **options: Any) -> Client:
        """Makes a client of the service, which is closed together with the service. The options are those of
        ``fencelock.Client``."""
        client = Client(self.url, **options)
        self._clients.append(client)
        return client

    def aio_client(self, **options: Any) -> aio.Client:
        """Makes a client on asyncio, for ``async with``."""
        return aio.Client(self.url, **options)

    def end(self, resource: str) -> None:
        """Ends the lease of a resource now, as if its time to live had passed. The holder learns of it with its next
        extension, at most a third of the TTL later."""
        try:
            self._others.break_any(resource)
        except RefusedError as e:
            raise AssertionError(f"no lease holds {resource!r}") from e

    def lose_next_response(self) -> None:
        """Makes the service carry out the next request but close the connection instead of responding. Two calls
        affect two requests."""
        self._proxy.lose()

    @property
    def lost(self) -> int:
        """How many responses were lost."""
        return self._proxy.lost

    def hold(self, *resources: str) -> Other:
        """Lets another process hold the resources, until it releases them."""
        try:
            return Other(self._others.acquire(list(resources), ttl=3600, wait=0))
        except HeldError as e:
            raise AssertionError(f"another process cannot hold {', '.join(resources)}: it is held") from e

    def await_waiters(self, resource: str, n: int = 1) -> None:
        """Waits until ``n`` requests wait for the resource."""
        deadline = time.monotonic() + _PATIENCE
        while self._others.inspect(resource).waiters < n:
            if time.monotonic() > deadline:
                raise AssertionError(f"fewer than {n} requests wait for {resource!r}")
            time.sleep(0.01)


class _Program:
    """The process of the service, or of the container in which it runs. It ends with this process."""

    def __init__(self, ttl: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fencelock-testing-")
        settings = {
            "FENCELOCK_DATA": os.path.join(self._folder.name, "fencelock.db"), "FENCELOCK_LISTEN": "127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN": "127.0.0.1:0",
            "FENCELOCK_BOOTSTRAP": "new", "FENCELOCK_DEFAULT_TTL": f"{ttl * 1000:.0f}ms", "FENCELOCK_MAX_TTL": "24h",
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FENCELOCK_")}
        program = os.environ.get("FENCELOCK_PROGRAM") or shutil.which("fencelock")
        command = [program, "serve"] if program else _in_container(settings)
        try:
            self._process = subprocess.Popen(command, env={**environment, **settings}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as e:
            self._folder.cleanup()
            raise RuntimeError("fencelock cannot be started: put it into PATH, name it in FENCELOCK_PROGRAM, or build its container image") from e
        atexit.register(self.close)
        self.address = self._listens()
        threading.Thread(target=self._drain, name="fencelock testing output", daemon=True).start()

    def _listens(self) -> Tuple[str, int]:
        """Reads the service's log up to the line with its address."""
        assert self._process.stdout
        late = threading.Timer(_PATIENCE, self._process.kill)
        late.start()
        said = []
        try:
            for line in self._process.stdout:
                said.append(line)
                found = _LISTENING.search(line)
                if found:
                    return "127.0.0.1", int(found[2])
        finally:
            late.cancel()
        self.close()
        raise RuntimeError("fencelock did not start:\n" + "".join(said))

    def _drain(self) -> None:
        """Reads the rest of the log, so that the process never waits for its output to be read."""
        assert self._process.stdout
        with contextlib.suppress(ValueError):
            for _ in self._process.stdout:
                pass

    def close(self) -> None:
        atexit.unregister(self.close)
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()
        self._folder.cleanup()


def _in_container(settings: Dict[str, str]) -> List[str]:
    """The command that runs the service in a container that shares this host's network."""
    inside = {**settings, "FENCELOCK_DATA": "/tmp/fencelock.db"}
    variables = [word for name, value in inside.items() for word in ("--env", f"{name}={value}")]
    return ["docker", "run", "--rm", "--network", "host", "--tmpfs", "/tmp", *variables, os.environ.get("FENCELOCK_IMAGE", "fencelock"), "serve"]


class _Proxy:
    """A proxy between the clients and the service that can lose responses."""

    def __init__(self, service: Tuple[str, int]) -> None:
        self._service, self._counting = service, threading.Lock()
        self._lose = 0
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self._closing, self._closed = socket.socketpair()  # _closed becomes readable, for every thread, when _closing is closed
        self._accepting = threading.Thread(target=self._accept, name="fencelock testing proxy", daemon=True)
        self._accepting.start()

    def lose(self) -> None:
        with self._counting:
            self._lose += 1

    def _loses(self, request: bytes) -> bool:
        with self._counting:
            if not self._lose or request.startswith(_NOT_LOST):
                return False
            self._lose -= 1
            self.lost += 1
            return True

    def close(self) -> None:
        self._closing.close()
        self._accepting.join()

    def _accept(self) -> None:
        with self._listener, self._closed:
            connections: List[threading.Thread] = []
            while self._closed not in select.select([self._listener, self._closed], [], [])[0]:
                client, _ = self._listener.accept()
                connections = [thread for thread in connections if thread.is_alive()]
                connections.append(threading.Thread(target=self._carry, args=(client,), name="fencelock testing connection", daemon=True))
                connections[-1].start()
            for thread in connections:
                thread.join()

    def _carry(self, client: socket.socket) -> None:
        """Copies bytes in both directions until one side ends. A client sends a request only after it has read the
        previous response, so the bytes that arrive from it belong to the request whose response may be lost."""
        with client, contextlib.suppress(OSError), socket.create_connection(self._service) as service:
            for sock in (client, service):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loses = False
            while True:
                ready = select.select([client, service, self._closed], [], [])[0]
                if self._closed in ready:
                    return
                if client in ready:
                    data = client.recv(65536)
                    if not data:
                        return
                    loses = loses or self._loses(data)
                    service.sendall(data)
                if service in ready:
                    data = service.recv(65536)
                    if not data or loses:
                        return
                    client.sendall(data)


def _service() -> Iterator[Service]:
    """The lock service, for one test."""
    with Service() as service:
        yield service


with contextlib.suppress(ImportError):
    fencelock_service = importlib.import_module("pytest").fixture(name="fencelock_service")(_service)
