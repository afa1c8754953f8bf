"""A lock service in memory, for the tests of an application.

    from fencelock.testing import Service

    def test_deposit(fencelock_service):       # the fixture for pytest; elsewhere: with Service() as service:
        client = fencelock_service.client()
        …
        fencelock_service.end("accounts/1")      # as if its time to live had passed
        fencelock_service.lose_next_answer()     # of a request that was carried out
        other = fencelock_service.hold("accounts/1")  # another process has it
        other.release()

It answers like a server of fencelock, over HTTP: locks and their queue, several resources, slots,
idempotency keys, breaks, guarded records and events. There is no access control and no persistence,
min_hold and max_hold change nothing, and proofs are not made.

No lease ends by the clock: what a test does not end lasts until it is released. Each gets a time to
live of 1.5 s, whatever was asked for (``Service(ttl=…)``), so that who keeps it alive notices within half
a second that it was ended.

For pytest, name the plugin in conftest.py: ``pytest_plugins = ["fencelock.testing"]``.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import secrets
import socket
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from . import aio
from ._sync import Client

__all__ = ["Other", "Service"]

_TIMEOUT = 10.0  # seconds that await_waiters waits

Json = Dict[str, Any]
Reply = Tuple[int, Optional[Json]]


@dataclass(eq=False)
class _Lease:
    id: str
    asked: Json
    parts: List[Tuple[str, int]]  # resources and tokens
    slot: int
    since: float


@dataclass(eq=False)
class _Waiter:
    asked: Json
    key: str
    since: float
    granted: Optional[_Lease] = None
    cancelled: bool = False


@dataclass
class _Record:
    token: int = 0
    value: Any = None
    version: int = 0
    attempts: List[Json] = field(default_factory=list)


def _resources(asked: Json) -> List[str]:
    return [asked["resource"]] if asked.get("resource") else sorted(asked.get("resources") or [])


class Other:
    """A lease of another process."""

    def __init__(self, service: "Service", lease: _Lease) -> None:
        self._service, self._lease = service, lease

    @property
    def token(self) -> int:
        """The fencing token of its first resource."""
        return self._lease.parts[0][1]

    def release(self) -> None:
        """Ends the lease, if it still holds. The next in the queue gets the resources."""
        with self._service._changed:
            self._service._end(self._lease)


class Service:
    """A lock service in memory, on a port of its own."""

    def __init__(self, ttl: float = 1.5) -> None:
        self._ttl_ms = round(ttl * 1000)
        self._changed = threading.Condition()
        self._minted = 0
        self._leases: Dict[str, _Lease] = {}
        self._holders: Dict[str, _Lease] = {}
        self._keys: Dict[str, _Lease] = {}
        self._queue: List[_Waiter] = []
        self._records: Dict[str, _Record] = {}
        self._changes = 0  # so many events
        self._lose = 0
        self._closed = False
        self._lost = 0
        self._clients: List[Client] = []
        self._http = _Server(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="fencelock testing", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the service, and the clients of ``client``."""
        for client in self._clients:
            client.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def client(self, **options: Any) -> Client:
        """A client of the service, which is closed with it. The options are those of ``fencelock.Client``."""
        client = Client(self.url, **options)
        self._clients.append(client)
        return client

    def aio_client(self, **options: Any) -> aio.Client:
        """A client on asyncio, for ``async with``."""
        return aio.Client(self.url, **options)

    def end(self, resource: str) -> None:
        """Ends the lease of a resource now, as if its time to live had passed. Its holder learns of it
        with its next extend."""
        with self._changed:
            lease = self._holders.get(resource)
            if lease is None:
                raise AssertionError(f"no lease holds {resource!r}")
            self._end(lease)

    def lose_next_answer(self) -> None:
        """Has the next request carried out, and closes its connection in place of an answer. Called twice,
        it is for two requests."""
        with self._changed:
            self._lose += 1

    @property
    def lost(self) -> int:
        """How many answers were lost."""
        return self._lost

    def hold(self, *resources: str) -> Other:
        """Has another process hold the resources."""
        with self._changed:
            if not resources or any(r in self._holders for r in resources):
                raise AssertionError(f"another process cannot hold {', '.join(resources)}: it is held")
            return Other(self, self._grant({"holder": "another process"}, sorted(resources), 0, ""))

    def await_waiters(self, resource: str, n: int = 1) -> None:
        """Waits until so many requests wait for the resource."""
        with self._changed:
            if not self._changed.wait_for(lambda: sum(resource in _resources(w.asked) for w in self._queue) >= n, _TIMEOUT):
                raise AssertionError(f"no {n} requests wait for {resource!r}")

    # Locks; all of it is called with the lock of _changed held

    def _free(self, asked: Json, reserved: Set[str]) -> Optional[Tuple[List[str], int]]:
        """What a request may have now: its resources, or the name and number of a slot."""
        if not asked.get("slots"):
            names = _resources(asked)
            return None if any(n in self._holders or n in reserved for n in names) else (names, 0)
        for n in range(1, asked["slots"] + 1):
            name = f"{asked['resource']}#slot{n}"
            if name not in self._holders and name not in reserved:
                return [name], n
        return None

    def _grant(self, asked: Json, names: List[str], slot: int, key: str) -> _Lease:
        parts = [(name, self._minted + n) for n, name in enumerate(names, 1)]
        self._minted += len(names)
        lease = _Lease(secrets.token_urlsafe(16), asked, parts, slot, time.monotonic())
        self._leases[lease.id] = lease
        for name in names:
            self._holders[name] = lease
        if key:
            self._keys[key] = lease
        self._tell()
        return lease

    def _end(self, lease: _Lease) -> None:
        if self._leases.pop(lease.id, None) is None:
            return
        for name, _ in lease.parts:
            del self._holders[name]
        self._wake()
        self._tell()

    def _wake(self) -> None:
        """Grants what may be granted, in the order of arrival."""
        reserved: Set[str] = set()
        for waiter in list(self._queue):
            free = self._free(waiter.asked, reserved)
            if free is None:
                reserved.update(_resources(waiter.asked))
                continue
            self._queue.remove(waiter)
            waiter.granted = self._grant(waiter.asked, *free, waiter.key)

    def _tell(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def _acquire(self, handler: "_Handler", asked: Json) -> Reply:
        names, key = _resources(asked), handler.headers.get("Idempotency-Key", "")
        if not all(isinstance(n, str) and n for n in names) or not names or asked.get("slots") and len(names) > 1:
            return _problem(400, "invalid-request", "Name a resource")
        with self._changed:
            known = self._keys.get(key)
            if known and known.id in self._leases:
                return 200, self._body(known)
            self._queue = [w for w in self._queue if not key or w.key != key]  # its last poll
            reserved = {name for w in self._queue for name in _resources(w.asked)}
            free = self._free(asked, reserved)
            if free is not None:
                return 201, self._body(self._grant(asked, *free, key))
            if not asked.get("wait_ms"):
                return self._held(asked, "lock-held")
            return self._wait(handler, asked, key)

    def _wait(self, handler: "_Handler", asked: Json, key: str) -> Reply:
        waiter = _Waiter(asked, key, time.monotonic())
        self._queue.append(waiter)
        self._tell()
        wait = asked["wait_ms"] / 1000
        prefer = handler.headers.get("Prefer", "")
        if prefer.startswith("wait="):
            wait = min(wait, float(prefer[5:]))
        deadline = waiter.since + wait
        while waiter.granted is None and not waiter.cancelled and not self._closed and time.monotonic() < deadline:
            self._changed.wait(min(0.1, max(0.0, deadline - time.monotonic())))
            if handler.gone():
                waiter.cancelled = True
        if waiter in self._queue:
            self._queue.remove(waiter)
        if waiter.granted is None:
            self._wake()
            return self._held(asked, "wait-timeout")
        if handler.gone():
            self._end(waiter.granted)
        return 201, {**self._body(waiter.granted), "waited_ms": int((time.monotonic() - waiter.since) * 1000)}

    def _held(self, asked: Json, kind: str) -> Reply:
        names = set(_resources(asked))
        details: Json = {"holder": "", "remaining_ms": 0, "waiters": len(self._queue)}
        for name in sorted(names):
            lease = self._holders.get(name)
            if lease:
                details = {**details, "resource": name, "holder": lease.asked.get("holder", ""), "remaining_ms": self._ttl_ms, "fencing_token": dict(lease.parts)[name]}
                break
        return _problem(409, kind, "The resource is held", **details)

    def _cancel(self, handler: "_Handler", asked: Json) -> Reply:
        key = handler.headers.get("Idempotency-Key", "")
        with self._changed:
            for waiter in self._queue:
                waiter.cancelled = waiter.cancelled or waiter.key == key
            self._queue = [w for w in self._queue if not w.cancelled]
            if key in self._keys:
                self._end(self._keys[key])
            self._wake()
            self._tell()
        return 204, None

    def _body(self, lease: _Lease) -> Json:
        body: Json = {
            "kind": "lease", "lease_id": lease.id, "ttl_ms": self._ttl_ms, "validity_ms": self._ttl_ms, "waited_ms": 0, "max_hold_remaining_ms": None,
            "holder": lease.asked.get("holder", ""), "metadata": lease.asked.get("metadata"),
        }
        if len(lease.parts) > 1:
            return {**body, "kind": "bundle", "resources": [{"resource": r, "fencing_token": t} for r, t in lease.parts]}
        if lease.slot:
            body["slot"] = lease.slot
        return {**body, "resource": lease.parts[0][0], "fencing_token": lease.parts[0][1]}

    def _of_lease(self, handler: "_Handler", release: bool) -> Reply:
        with self._changed:
            lease = self._leases.get(handler.headers.get("Fencelock-Lease", ""))
            if lease is None:
                return _problem(404, "lease-not-held", "The lease has ended")
            if not release:
                return 200, self._body(lease)
            self._end(lease)
            return 204, None

    def _break(self, asked: Json) -> Reply:
        with self._changed:
            resource = asked.get("resource", "")
            lease = self._holders.get(resource)
            if lease is None:
                return _problem(404, "lock-not-held", "No lease holds the resource")
            token = dict(lease.parts)[resource]
            if not asked.get("any") and asked.get("fencing_token") != token:
                details = {"resource": resource, "holder": lease.asked.get("holder", ""), "fencing_token": token, "remaining_ms": self._ttl_ms, "waiters": 0}
                return _problem(412, "other-lease", "Another lease holds the resource", **details)
            self._end(lease)
            return 204, None

    def _lock(self, resource: str) -> Json:
        waiters = [w for w in self._queue if resource in _resources(w.asked)]
        now = time.monotonic()
        queue = [{"holder": w.asked.get("holder", ""), "waiting_ms": int((now - w.since) * 1000)} for w in waiters]
        lock: Json = {"resource": resource, "held": False, "waiters": len(waiters), "queue": queue}
        lease = self._holders.get(resource)
        if lease is None:
            return lock
        return {
            **lock, "held": True, "holder": lease.asked.get("holder", ""), "fencing_token": dict(lease.parts)[resource], "remaining_ms": self._ttl_ms,
            "ttl_ms": self._ttl_ms, "held_ms": int((now - lease.since) * 1000), "metadata": lease.asked.get("metadata"),
        }

    def _locks(self, prefix: str) -> Json:
        with self._changed:
            return {"locks": [self._lock(r) for r in sorted(self._holders) if r.startswith(prefix)]}

    # Guarded records

    def _attempt(self, handler: "_Handler", resource: str, kind: str, value: Any) -> Reply:
        text = handler.headers.get("Fencing-Token")
        if text is None:
            return _problem(428, "token-required", "Send the header Fencing-Token")
        if not text.isdigit() or not int(text):
            return _problem(400, "invalid-request", "The token is malformed")
        token = int(text)
        with self._changed:
            record = self._records.setdefault(resource, _Record())
            accepted, highest = token >= record.token, record.token
            if accepted:
                record.token = token
                if kind == "write":
                    record.value, record.version = value, record.version + 1
            at = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            record.attempts.insert(0, {"fencing_token": token, "highest_token": highest, "kind": kind, "accepted": accepted, "version": record.version, "at": at})
            if not accepted:
                return _problem(412, "stale-token", "The fencing token is stale", resource=resource, presented=token, highest_token=highest)
            return 200, self._record(resource, record)

    @staticmethod
    def _record(resource: str, record: _Record) -> Json:
        return {"resource": resource, "highest_token": record.token, "value": record.value, "version": record.version}

    def _list_records(self, prefix: str) -> Reply:
        with self._changed:
            found = [self._record(resource, record) for resource, record in sorted(self._records.items()) if resource.startswith(prefix)]
        return 200, {"records": [{name: each[name] for name in ("resource", "highest_token", "version")} for each in found]}

    def _read(self, resource: str, history: bool) -> Reply:
        with self._changed:
            record = self._records.get(resource)
            if record is None:
                return _problem(404, "record-not-found", "The record was neither written nor claimed")
            return 200, ({"resource": resource, "attempts": list(record.attempts)} if history else self._record(resource, record))

    # HTTP

    def _answer(self, handler: "_Handler") -> Reply:
        url = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        head, _, rest = url.path[1:].partition("/")
        body = handler.body()
        routes: Dict[str, Callable[[], Reply]] = {
            "POST /locks": lambda: self._acquire(handler, body),
            "GET /locks": lambda: (200, self._locks(query.get("prefix", ""))),
            "POST /cancel": lambda: self._cancel(handler, body),
            "POST /breaks": lambda: self._break(body),
            "GET /leases/current": lambda: self._of_lease(handler, release=False),
            "POST /leases/current/extend": lambda: self._of_lease(handler, release=False),
            "DELETE /leases/current": lambda: self._of_lease(handler, release=True),
            "GET /guarded": lambda: self._list_records(query.get("prefix", "")),
            "GET /history": lambda: self._read(query.get("resource", ""), history=True),
            "GET /healthz": lambda: (200, {"status": "ok"}),
            "GET /readyz": lambda: (200, {"ready": True, "reason": "", "quorum": 1, "voting": 1, "nodes": []}),
            "GET /whoami": lambda: (200, {"name": "", "rules": [{"prefix": "", "right": "admin"}]}),
        }
        route = routes.get(f"{handler.command} {url.path}")
        if route:
            return route()
        if handler.command == "GET" and head == "locks":
            with self._changed:
                return 200, self._lock(urllib.parse.unquote(rest))
        if head == "guarded":
            return self._guarded(handler, rest, body)
        return _problem(404, "not-found", "No such operation")

    def _guarded(self, handler: "_Handler", rest: str, body: Any) -> Reply:
        resource = urllib.parse.unquote(rest)
        if handler.command == "POST":
            return self._attempt(handler, resource, "claim", None)
        if handler.command == "GET":
            return self._read(resource, history=False)
        return self._attempt(handler, resource, "write", body if handler.command == "PUT" else None)

    def _loses(self, handler: "_Handler") -> bool:
        with self._changed:
            if not self._lose or handler.path == "/healthz":
                return False
            self._lose -= 1
            self._lost += 1
            return True


def _problem(status: int, kind: str, title: str, **members: Any) -> Reply:
    return status, {"type": f"/problems/{kind}", "title": title, "status": status, "detail": "fencelock.testing answers so", **members}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, service: Service) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.service = service

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that is gone


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def do(self) -> None:
        service = self.server.service
        if self.command == "GET" and self.path.startswith("/events"):
            return self.events(service)
        loses = service._loses(self)
        status, body = service._answer(self)
        if loses:
            self.close_connection = True
            return
        raw = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Fencelock-Server", "testing")
        self.send_header("Content-Type", "application/json" if status < 400 else "application/problem+json")
        if status != 204:
            self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = do_PUT = do_DELETE = do

    def body(self) -> Any:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(raw) if raw else {}

    def gone(self) -> bool:
        """Whether the client has closed the connection."""
        self.connection.setblocking(False)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.settimeout(self.timeout)

    def events(self, service: Service) -> None:
        """Says that something has changed, and not what: a reader looks."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        seen = service._changes
        while not service._closed and not self.gone():
            with service._changed:
                service._changed.wait_for(lambda: service._changes != seen or service._closed, 1.0)
                news, seen = service._changes != seen, service._changes
            if news:
                self.wfile.write(b"event: gap\ndata: {}\n\n")

    def log_message(self, *_: Any) -> None:
        pass


def _service() -> Iterator[Service]:
    """A lock service in memory, which ends with the test."""
    with Service() as service:
        yield service


with contextlib.suppress(ImportError):
    fencelock_service = importlib.import_module("pytest").fixture(name="fencelock_service")(_service)
