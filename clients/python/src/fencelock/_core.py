"""The protocol, without threads, sockets or an event loop.

Each operation is a generator. It yields what it wants done, a Send or a Sleep, and gets
the Answer sent into it, or NoAnswer raised. So the rules of docs/reference/clients.md
are written once, for the client with threads and the one on asyncio.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import secrets
import time
import urllib.parse
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Generator, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar, Union, cast
from typing import Protocol as Protocol_

from . import _http
from ._state import LockState, Record, lock_state, record
from .errors import FencelockError, HeldError, LeaseLostError, OtherLeaseError, RefusedError, TimedOutError, UnavailableError, lost, of_problem, shown

T = TypeVar("T")

NOTHING = object()  # no body: null is one
QUIET = 30.0  # seconds without a line of events, of which a server sends one every 10 s
LOOK_EVERY = 10.0  # seconds between two looks of a watch while events come
LOOK_BLIND = 1.0  # seconds while none do

RELEASED = "it was released"  # why such a lease is over
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 1.0  # seconds between tries
_ABANDON = 10.0  # seconds to end what a request that was given up may have
_LONGEST_WAIT = 600.0  # seconds that a request may ask a server to wait
_SHORT_POLL = 1.0  # seconds of the first poll after one that got no response
GRACE = 1.0  # seconds after its wait in which an acquire ends, and a release at the end of a block
_SHORTEST_LAST = 1.0  # seconds that the last try has, though patience ends earlier
_SHORTEST_TRY = 0.25  # seconds
PROBE_EVERY = 5.0  # seconds, while a request waits in the queue
_FOREVER = 100 * 365 * 86400.0  # seconds

Bearer = Union[str, Callable[[], str], None]
Resources = Union[str, Sequence[str]]


def bearer_file(path: str) -> Callable[[], str]:
    """A bearer token that is read from a file before each request, so that a file that is
    replaced needs no restart. White space around it is dropped."""

    def read() -> str:
        with open(path, encoding="utf-8") as f:
            credential = f.read().strip()
        if not credential:
            raise ValueError(f"the bearer token file {path} is empty")
        return credential

    return read


@dataclass(frozen=True)
class Server:
    host: str  # as it stands in the header Host
    name: str
    port: int
    tls: bool
    prefix: str  # of every path

    @staticmethod
    def parse(url: str) -> "Server":
        parts = urllib.parse.urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
            raise ValueError("every server must be a URL such as http://127.0.0.1:8080, without a password")
        tls = parts.scheme == "https"
        return Server(parts.netloc, parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}{self.prefix}"


@dataclass(frozen=True)
class Operation:
    """What a request is in a batch of requests (POST /locks/batch)."""

    text: bytes = field(repr=False)  # JSON
    credential: str = field(repr=False)


@dataclass(frozen=True)
class Send:
    """Wants one request sent to one server."""

    server: Server
    method: str
    path: str
    headers: Sequence[Tuple[str, str]] = field(repr=False)
    content: Optional[bytes] = field(repr=False)
    credential: str = field(repr=False)
    limit: float  # seconds for all of it
    probe: float = 0.0  # it waits in the queue: seconds after which the server is probed, which has as long to answer; 0 for no probe
    waits: bool = False  # it may wait in the queue
    late: Optional[List[Any]] = field(default=None, repr=False)  # gets the outcome of a request that was given up and goes on in a batch

    @property
    def data(self) -> bytes:
        """The request in HTTP."""
        headers = list(self.headers)
        if self.content is not None:
            headers.append(("Content-Type", "application/json"))
        if self.credential:
            headers.append(("Authorization", f"Bearer {self.credential}"))
        return _http.encode(self.method, self.server.host, self.server.prefix + self.path, headers, self.content)

    def within(self, limit: float) -> "Send":
        return replace(self, limit=min(self.limit, limit))

    @property
    def gathers(self) -> bool:
        """Whether it is a request of those that may be in a batch."""
        return not self.waits and (self.method, self.path) in _OPERATIONS

    def operation(self) -> Optional[Operation]:
        """What it is in a batch; None if it is to be sent alone."""
        text = b'{"operation":"' + _OPERATIONS[self.method, self.path]
        for header, member in _IN_OPERATION:
            for name, value in self.headers:
                if name == header:
                    if not _PLAIN.fullmatch(value):
                        return None  # it may not be the same in JSON as in a header
                    text += member + value.encode() + b'"'
        if self.content is not None:
            text += b',"body":' + self.content
        return Operation(text + b"}", self.credential) if len(text) < _LARGEST else None


_OPERATIONS = {("POST", "/locks"): b'acquire"', ("POST", "/leases/current/extend"): b'extend"', ("DELETE", "/leases/current"): b'release"'}
_IN_OPERATION = (("Idempotency-Key", b',"idempotency_key":"'), ("Fencelock-Lease", b',"lease_id":"'))
_PLAIN = re.compile(r"[!#-\[\]-~]+")
_LARGEST = 3840  # bytes of an operation: 16 fill a batch


def batch(server: Server, operations: Sequence[Operation], limit: float) -> Send:
    """The request that does all operations, which have one credential."""
    content = b'{"operations":[' + b",".join(o.text for o in operations) + b"]}"
    return Send(server, "POST", "/locks/batch", (), content, operations[0].credential, limit)


@dataclass(frozen=True)
class Sleep:
    seconds: float


class NoAnswer(Exception):
    """A try came to nothing. ``sent`` says that the server may have seen the request."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


Steps = Generator[Union[Send, Sleep], Optional[_http.Answer], T]


@dataclass(frozen=True)
class Retry:
    """A call that failed and is repeated. Durations in seconds."""

    error: FencelockError  # of the last try: an UnavailableError
    tries: int  # so far
    failing: float  # since the first failure
    pause: float  # before the next try


@dataclass(frozen=True)
class Part:
    """One resource of a lease. The token is the same for the whole life of the lease."""

    resource: str
    token: int
    proof: str = field(default="", repr=False)


class Presented(Protocol_):
    """What a record is written under: a lease of one resource, or one of its parts."""

    @property
    def resource(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def proof(self) -> str: ...


@dataclass(frozen=True)
class Options:
    """What to acquire; durations in seconds, None leaves them to the service."""

    ttl: Optional[float] = None
    wait: Optional[float] = None  # None for as long as it takes
    min_hold: Optional[float] = None
    max_hold: Optional[float] = None
    holder: Optional[str] = None
    metadata: Any = None
    slots: Optional[int] = None
    timeout: Optional[float] = None  # of the whole call

    def __post_init__(self) -> None:
        for name in ("ttl", "wait", "min_hold", "max_hold", "timeout"):
            check_seconds(name, getattr(self, name))


def check_seconds(name: str, value: Any) -> None:
    """Refuses what is not a duration in seconds, before anything is sent."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = "; call its total_seconds()" if hasattr(value, "total_seconds") else ""
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}{hint}")
    if not value >= 0:
        raise ValueError(f"{name} must be 0 seconds or more, not {value}")


class Grant:
    """A lease as the process that holds it knows it."""

    def __init__(self, now: Callable[[], float], sent: float, answer: Mapping[str, Any]) -> None:
        self._now = now
        self.pid = os.getpid()
        self.id = str(answer["lease_id"])
        self.ttl = int(answer["ttl_ms"]) / 1000
        of = answer.get("resources") or [answer]
        self.parts = tuple(Part(p["resource"], int(p["fencing_token"]), p.get("fencing_proof") or "") for p in of)
        self.name = ", ".join(p.resource for p in self.parts)
        self.slot = int(answer.get("slot") or 0)
        self.margin = 0.0  # seconds before the end of validity, from which it counts as lost
        self.gone = ""  # why it has ended; "" while it has not
        self.renew(sent, answer)

    def renew(self, sent: float, answer: Mapping[str, Any]) -> None:
        """Notes the validity that an answer tells, counted from when its request was sent."""
        self.until = sent + (int(answer["waited_ms"]) + int(answer["validity_ms"])) / 1000
        cap = answer.get("max_hold_remaining_ms")
        self.capped = cap is not None and int(cap) / 1000 <= self.ttl

    def asked(self) -> Set[str]:
        """The resources that the request named: a slot is asked for under its resource's name."""
        if self.slot:
            return {self.name[: -len(f"#slot{self.slot}")]}
        return {p.resource for p in self.parts}

    @property
    def left(self) -> float:
        """Seconds until the work has to stop."""
        return self.until - self.margin - self._now()

    def foreign(self) -> bool:
        """Whether another process took the lease, from which this one was forked."""
        return self.pid != os.getpid()

    def why_lost(self) -> str:
        """Why the lease is lost; "" while it is not. It looks at the clock, so that a process
        that was paused knows at once."""
        if self.gone:
            return self.gone
        if self.foreign():
            return f"it belongs to process {self.pid}, from which this one was forked"
        if self.left > 0:
            return ""
        if self.capped:
            return "it has reached its maximum hold time (max_hold, or the service's FENCELOCK_MAX_HOLD)"
        return "it was not extended in time"


class Protocol:
    """What a client knows of its servers, and how its calls go."""

    def __init__(
        self, servers: Resources, *, bearer: Bearer, holder: str, timeout: float, patience: float, poll: float,
        on_retry: Optional[Callable[[Retry], object]] = None, now: Callable[[], float] = time.monotonic,
    ) -> None:
        urls = servers.split(",") if isinstance(servers, str) else servers
        if not isinstance(urls, (list, tuple)) or not all(isinstance(url, str) for url in urls):
            raise TypeError(f"servers must be a URL, or a list of URLs, not {type(servers).__name__}")
        self.servers = tuple(Server.parse(url) for url in urls)
        if not self.servers or timeout <= 0 or patience < 0 or poll < 1:
            raise ValueError("a client needs a server, a timeout above 0, a patience of 0 or more, and a poll of a second at least")
        self.now = now
        self.timeout = timeout
        self.poll = float(int(poll))
        self._bearer, self._holder, self._patience, self._on_retry = bearer, holder, patience, on_retry
        self._first = 0  # the server that answered last
        self._slowest = _SHORTEST_TRY  # seconds that a recent answer took; old ones fade
        self._names: List[List[str]] = [[] for _ in self.servers]  # who answered at each address (Fencelock-Server)

    # Calls

    def _request(
        self, server: Server, method: str, path: str, body: Any, headers: Sequence[Tuple[str, str]], limit: float, probe: float = 0.0,
        waits: bool = False, late: Optional[List[Any]] = None,
    ) -> Send:
        content = None if body is NOTHING else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        credential = (self._bearer() if callable(self._bearer) else self._bearer or "").strip()
        if not credential.isprintable() or not credential.isascii() or " " in credential:
            raise ValueError("the bearer token has characters that no token has")
        return Send(server, method, path, headers, content, credential, limit, probe, waits, late)

    def probe(self, server: Server, limit: float) -> Send:
        """Asks whether a server responds at all, whatever it says."""
        return self._request(server, "GET", "/healthz", NOTHING, [], limit)

    def _try_limit(self, rounds: int) -> float:
        """Seconds for one try: four times what answers take, and twice as much after each round
        over all servers without one, so that slow servers are waited for and frozen ones are not."""
        return min(self.timeout, max(_SHORTEST_TRY, 4 * self._slowest) * 2.0**min(rounds, 16))

    def _call(
        self, what: str, method: str, path: str, body: Optional[Callable[[int], Any]] = None,
        header: Tuple[Tuple[str, str], ...] = (), *, resource: str = "", tries: Optional["_Tries"] = None,
        limit: float = math.inf, deadline: float = math.inf, quiet: bool = False, breaks: int = 0, once: bool = False,
    ) -> Steps[Tuple[float, Dict[str, Any]]]:
        """Sends a call until a server answers it for good, its deadline has come, or no server has
        answered for as long as the client is patient. Returns when the answered request was sent, and the answer.

        Every call but one that is to be sent ``once`` may be sent twice: an acquire carries a key, a
        break the token of the lease (``breaks``), and the others change nothing twice."""
        tries = tries or _Tries(0, 0)
        patience = self._patience
        failing = math.inf  # since when tries have failed
        pause = _FIRST_PAUSE
        while True:
            retry_after = 0.0
            failure = self._unavailable(what, resource, "no response in time")
            for i in range(len(self.servers)):
                at = (self._first + i) % len(self.servers)
                sent = self.now()
                left, kept = tries.wait(sent)
                unasked = max(len(self.servers) - i, 1 if tries.number else 2)  # there is time for another try
                share = (deadline - sent) / unasked
                # One that is not sent again is waited for: to give it up leaves its caller in doubt.
                try_limit = min(limit, share, self.timeout if once else self._try_limit(tries.silent))
                if failing < sent:
                    try_limit = min(try_limit, max(patience - (sent - failing), _SHORTEST_LAST))
                if try_limit <= 0:
                    raise failure
                headers = list(header)
                if kept < left:
                    headers.append(("Prefer", f"wait={int(kept)}"))  # a poll: it keeps the place in the queue
                content = body(_ms(left)) if body else NOTHING
                overall = min(try_limit + kept, deadline - sent)
                probe = 0.0  # a short poll is soon over, unless it takes the time of other servers
                if kept > _SHORT_POLL or kept > 0 and try_limit + kept > share:
                    probe = min(try_limit, share / 2)
                tries.number += 1
                tries.under_way = True
                try:
                    answer = yield self._request(self.servers[at], method, path, content, headers, overall, probe, left > 0, tries.late)
                    assert answer is not None
                    error = self._judge(what, resource, answer)
                except NoAnswer as e:
                    tries.under_way = False
                    tries.ambiguous = tries.ambiguous or e.sent
                    failure = self._unavailable(what, resource, f"{self.servers[at]}: {e}")
                    failure.url = str(self.servers[at])
                    tries.poll = min(tries.poll, _SHORT_POLL)
                else:
                    tries.under_way = False
                    self._note(at, answer)
                    if error is not None:
                        error.url, error.request_id = str(self.servers[at]), answer.headers.get("x-request-id", "")
                    if not kept:
                        self._slowest = max(self.now() - sent, 0.9 * self._slowest)
                    if error is None:
                        self._first = at
                        return sent, self._result(what, answer)
                    if not isinstance(error, UnavailableError):
                        self._first = at
                        if tries.ambiguous and _is_gone(method, breaks, error):
                            return sent, {}  # an earlier try did it
                        raise error
                    failure = error
                    tries.ambiguous = tries.ambiguous or answer.status >= 500
                    if answer.status == 429:
                        retry_after = max(retry_after, _seconds(answer.headers.get("retry-after", "")))
                failing = min(failing, self.now())
                if once and tries.ambiguous:
                    raise failure
            tries.silent += 1
            delay = max(random.uniform(pause / 2, pause * 3 / 2), retry_after)
            now = self.now()
            if now + delay - failing > patience or now + delay >= deadline:
                raise failure
            if self._on_retry and not quiet:
                self._on_retry(Retry(failure, tries.number, now - failing, delay))
            yield Sleep(delay)
            pause = min(2 * pause, _MAX_PAUSE)

    def _note(self, at: int, answer: _http.Answer) -> None:
        """Notes who answered at an address. A name that comes back after another shows that there
        are several servers behind it; one that only changes shows a restart."""
        name, names = answer.headers.get("fencelock-server"), self._names[at]
        if name and name != (names[-1] if names else None) and len(names) < 16:
            names.append(name)

    def shared(self, server: Server) -> bool:
        """Whether several servers answer at this address: a probe may ask another one than the
        one that keeps a request, and says nothing about it."""
        names = self._names[self.servers.index(server)]
        return len(set(names)) < len(names)

    @staticmethod
    def _unavailable(what: str, resource: str, why: str) -> FencelockError:
        error = UnavailableError(f"{what}: {why}")
        error.resource = resource
        return error

    @staticmethod
    def _judge(what: str, resource: str, answer: _http.Answer) -> Optional[FencelockError]:
        if answer.status < 300:
            return None
        problem = _json(answer)
        if answer.status < 400:
            problem = {"title": f"a redirect to {_host(answer)}, which is not followed: is the address right?"}
        return of_problem(what, resource, answer.status, problem)

    @staticmethod
    def _result(what: str, answer: _http.Answer) -> Dict[str, Any]:
        result = _json(answer)
        if answer.status != 204 and not result:
            raise RefusedError(f"{what}: the response did not come from the lock service: is the address right?")
        return result

    def within(self, timeout: Optional[float], what: str, steps: Steps[T]) -> Steps[T]:
        """Ends steps with TimedOutError when the time of the whole call is over."""
        check_seconds("timeout", timeout)
        if timeout is None:
            return (yield from steps)
        deadline, last = self.now() + timeout, None  # type: float, Optional[BaseException]
        try:
            step = next(steps)
            while True:
                left = deadline - self.now()
                if left <= 0:
                    steps.close()
                    raise self._timed_out(what, timeout) from last
                try:
                    answer = yield (step.within(left) if isinstance(step, Send) else Sleep(min(step.seconds, left)))
                except NoAnswer as e:
                    last = e
                    step = steps.throw(e)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return cast(T, end.value)
        except UnavailableError as e:
            if self.now() < deadline:
                raise
            raise self._timed_out(what, timeout) from e

    @staticmethod
    def _timed_out(what: str, timeout: float) -> TimedOutError:
        return TimedOutError(f"{what}: not done within its timeout of {timeout:g} s")

    # Operations

    def acquisition(self, resources: Resources, options: Options) -> "Acquisition":
        return Acquisition(self, resources, options, options.holder or self._holder)

    def extend(self, grant: Grant, limit: float = math.inf, deadline: float = math.inf) -> Steps[None]:
        """Gives the lease its TTL again. It names the TTL: without, it would get the one of the
        last extend, which another process may have sent."""
        sent, answer = yield from self._call(
            f"extend {shown(grant.name)}", "POST", "/leases/current/extend", lambda _: {"ttl_ms": _ms(grant.ttl)},
            (("Fencelock-Lease", grant.id),), resource=grant.name, limit=limit, deadline=deadline,
        )
        grant.renew(sent, answer)

    def release(self, grant: Grant, deadline: float = math.inf) -> Steps[None]:
        yield from self._call(
            f"release {shown(grant.name)}", "DELETE", "/leases/current", None, (("Fencelock-Lease", grant.id),), resource=grant.name, deadline=deadline,
        )

    def finish(self, grant: Grant, deadline: float) -> Steps[Tuple[str, bool]]:
        """Releases a lease whose work has ended. Returns why the lease had ended before, "" if it
        had not, and whether it may still be there: if no server responds at all, its TTL ends it."""
        try:
            yield from self.release(grant, deadline)
        except LeaseLostError:
            return "it had ended when it was released", False
        except FencelockError:
            return "", True
        return "", False

    def finish_later(self, grant: Grant) -> Steps[None]:
        """Releases a lease for which no caller waits any more."""
        yield from self.finish(grant, self.now() + _ABANDON)

    def keep(self, grant: Grant) -> Steps[str]:
        """Extends a lease at a third of its TTL. It returns why the lease is lost, a margin
        before its validity ends, or never: whoever runs it stops it."""
        due = self._due(grant)
        while True:
            left = grant.left
            if left <= 0:
                return grant.why_lost()
            yield Sleep(left if grant.capped else min(due, left))
            left = grant.left
            if grant.capped or left <= 0:
                continue
            try:
                # There is time for every server twice.
                yield from self.extend(grant, left / (2 * len(self.servers)), self.now() + left)
            except LeaseLostError as e:
                if e.kind != "max-hold-reached":
                    return str(e)
                grant.capped = True  # it lasts as long as before
            except FencelockError:
                due = grant.ttl / 20  # a short outage is to be outlived
            else:
                due = self._due(grant)

    def first_extend(self, grant: Grant) -> float:
        """When ``keep`` first has something to do: it need not run before."""
        return self.now() + (grant.left if grant.capped else min(self._due(grant), grant.left))

    @staticmethod
    def _due(grant: Grant) -> float:
        """Seconds until a third of the TTL has passed since validity began."""
        return max(0.0, grant.left + grant.margin - grant.ttl * 2 / 3)

    def look_up(self, lease_id: str) -> Steps[Grant]:
        sent, answer = yield from self._call("look up", "GET", "/leases/current", None, (("Fencelock-Lease", lease_id),))
        return Grant(self.now, sent, answer)

    def inspect(self, resource: str) -> Steps[LockState]:
        name = urllib.parse.quote(checked(resource), safe="")
        # The name again, where no proxy rewrites it.
        header = (("Fencelock-Resource", name),)
        _, answer = yield from self._call(f"inspect {shown(resource)}", "GET", "/locks/" + name, None, header, resource=resource)
        return lock_state(answer)

    def read_record(self, resource: str) -> Steps[Record]:
        try:
            return (yield from self._record("read", "GET", resource))
        except RefusedError as e:
            if e.kind != "record-not-found":
                raise
            return Record(resource)

    def claim_record(self, lease: Presented) -> Steps[Record]:
        return (yield from self._record("claim", "POST", lease.resource, lease))

    def write_record(self, lease: Presented, value: Any) -> Steps[Record]:
        json.dumps(value)  # raises TypeError for what is not JSON
        return (yield from self._record("write", "PUT", lease.resource, lease, body=lambda _: value, once=True))

    def delete_record(self, lease: Presented) -> Steps[Record]:
        return (yield from self._record("delete", "DELETE", lease.resource, lease, once=True))

    def _record(
        self, operation: str, method: str, resource: str, lease: Optional[Presented] = None, *,
        body: Optional[Callable[[int], Any]] = None, once: bool = False,
    ) -> Steps[Record]:
        name = urllib.parse.quote(checked(resource), safe="")
        headers = [("Fencelock-Resource", name)]
        if lease is not None:
            headers.append(("Fencing-Token", str(lease.token)))
            if lease.proof:
                headers.append(("Fencing-Proof", lease.proof))
        what = f"{operation} the record {shown(resource)}"
        _, answer = yield from self._call(what, method, f"/guarded/{name}", body, tuple(headers), resource=resource, once=once)
        return record(answer)

    def events(self, n: int, resource: str, limit: float) -> Send:
        """Asks for the events of a resource, at one server after the other."""
        server = self.servers[(self._first + n) % len(self.servers)]
        return self._request(server, "GET", "/events?" + urllib.parse.urlencode({"resource": checked(resource)}), NOTHING, [], limit)

    def break_lock(self, resource: str, token: int) -> Steps[None]:
        body = {"resource": checked(resource), "fencing_token": token}
        yield from self._call(f"break {shown(resource)}", "POST", "/breaks", lambda _: body, resource=resource, breaks=token)

    def break_any(self, resource: str) -> Steps[None]:
        body = {"resource": checked(resource), "any": True}
        yield from self._call(f"break {shown(resource)}", "POST", "/breaks", lambda _: body, resource=resource, once=True)

    def page(self, operation: str, path: str, query: Dict[str, str]) -> Steps[Tuple[Dict[str, Any], Optional[Dict[str, str]]]]:
        """A page, and the query of the next one; None after the last."""
        _, answer = yield from self._call(operation, "GET", f"{path}?{urllib.parse.urlencode({'limit': '1000', **query})}")
        cursor = answer.get("next_cursor")
        return answer, {**query, "cursor": cursor} if cursor else None


class _Tries:
    """How a call has gone so far: until when it waits in the queue, and how long the next request of that wait may take."""

    def __init__(self, until: float, poll: float, late: Optional[List[Any]] = None) -> None:
        self.until, self.poll = until, poll
        self.late = late
        self.number = 0
        self.silent = 0  # rounds over all servers without an answer for good
        self.ambiguous = False  # a try without an answer may have taken effect
        self.queued = False  # a poll has kept a place in the queue
        self.under_way = False  # a try was broken off, if it is still set when the call has ended

    def wait(self, now: float) -> Tuple[float, float]:
        """What is left of the wait, and how much of it one request waits; in seconds."""
        left = math.floor(min(max(0.0, self.until - now), _LONGEST_WAIT) * 1000) / 1000
        return left, min(left, self.poll)


class Acquisition:
    """One attempt to get a lease: all its tries have one key, on every server."""

    def __init__(self, protocol: Protocol, resources: Resources, options: Options, holder: str) -> None:
        self._protocol = protocol
        if not isinstance(resources, (str, list, tuple, set, frozenset)):
            raise TypeError(f"a resource must be a str, or a list of str, not {type(resources).__name__}")
        names = [resources] if isinstance(resources, str) else list(resources)
        if not names:
            raise ValueError("name a resource")
        self._name = ", ".join(checked(n) for n in names)
        self._shown = shown(self._name)
        self._options = options
        self.late: List[Any] = []  # the outcomes of tries that were given up in batches
        self._begin(0)
        body: Dict[str, Any] = {"resource": names[0]} if len(names) == 1 else {"resources": names}
        if holder:
            body["holder"] = holder
        if options.metadata is not None:
            body["metadata"] = options.metadata
        if options.slots is not None:
            body["slots"] = options.slots
        for member, seconds in (("ttl_ms", options.ttl), ("min_hold_ms", options.min_hold), ("max_hold_ms", options.max_hold)):
            if seconds is not None:
                body[member] = _ms(seconds)
        self._body = body

    def take(self) -> Steps[Grant]:
        return self._protocol.within(self._options.timeout, f"acquire {self._shown}", self._take())

    def _take(self) -> Steps[Grant]:
        """Waits in polls that are shorter than what proxies allow; the key keeps the place. It ends
        within a second of its wait, whatever the servers do."""
        p = self._protocol
        wait = self._options.wait
        deadline = math.inf if wait is None else p.now() + min(max(wait, 0.0), _FOREVER) + GRACE
        self._tries.until = p.now() + (_FOREVER if wait is None else min(max(wait, 0.0), _FOREVER))
        while True:
            tries = self._tries
            try:
                sent, answer = yield from self._acquire(tries, deadline)
            except HeldError:
                tries.queued = tries.wait(p.now())[0] > 0
                if not tries.queued:
                    raise
                tries.poll = min(2 * tries.poll, p.poll)
                yield Sleep(_FIRST_PAUSE)
                continue
            grant = Grant(p.now, sent, answer)
            if grant.left > 0:
                return grant
            # This process was paused, or the answer was late: what is left of the wait is another's turn.
            yield from p.finish(grant, min(deadline, p.now() + GRACE))
            if tries.wait(p.now())[0] <= 0:
                raise p._unavailable(f"acquire {self._shown}", self._name, "the lease expired before the response arrived; a longer ttl may help")
            self._begin(tries.until)

    def _begin(self, until: float) -> None:
        """Begins an acquisition of its own."""
        self._key, self._tries = secrets.token_urlsafe(24), _Tries(until, self._protocol.poll, self.late)

    def _acquire(self, tries: _Tries, deadline: float) -> Steps[Tuple[float, Dict[str, Any]]]:
        def body(wait_ms: int) -> Mapping[str, Any]:
            return {**self._body, "wait_ms": wait_ms} if wait_ms else self._body

        return self._protocol._call(
            f"acquire {self._shown}", "POST", "/locks", body, (("Idempotency-Key", self._key),),
            resource=self._name, tries=tries, deadline=deadline,
        )

    def granted_late(self, answer: _http.Answer, got: Optional[Grant]) -> Optional[Grant]:
        """The lease that a try was granted after its call had given it up, unless another try found the same one."""
        if answer.status >= 300 or not _json(answer):
            return None
        grant = Grant(self._protocol.now, 0, _json(answer))
        same = got is not None and [(p.resource, p.token) for p in got.parts] == [(p.resource, p.token) for p in grant.parts]
        return None if same else grant

    def in_doubt(self) -> bool:
        """Whether a request that failed may have been granted, or has a place in the queue: it was broken off, a try of it
        got no response, or a poll has kept the place."""
        return self._tries.ambiguous or self._tries.under_way or self._tries.queued

    def abandon(self) -> Steps[None]:
        """Ends all that a request that was given up may have: its lease, and its place in the queue."""
        p = self._protocol
        try:
            yield from p._call(
                f"cancel {self._shown}", "POST", "/cancel", lambda _: self._body, (("Idempotency-Key", self._key),),
                resource=self._name, deadline=p.now() + _ABANDON, quiet=True,
            )
        except FencelockError:
            pass  # the TTL ends the lease, if there is one


class Watched:
    """What a watch has reported of a resource."""

    def __init__(self) -> None:
        self._last: Tuple[Any, ...] = ()
        self._newest = 0

    def is_news(self, lock: Optional[LockState]) -> bool:
        """Notes a lock, None for an unknown one, and says whether it is to be reported. With few nodes
        that answer, one may show that was released: tokens never fall."""
        now: Tuple[Any, ...] = (None,) if lock is None else (lock.held, lock.token)
        if lock is not None and lock.held:
            if now[1] < self._newest:
                return False
            self._newest = now[1]
        last, self._last = self._last, now
        return last != now


def again(lost: bool, led: bool, error: Exception) -> bool:
    """Whether a candidate stands again after an error, dropping it: its lease was lost while it
    led, or it has not led yet, and the service is unavailable."""
    return lost or not led and isinstance(error, (UnavailableError, LeaseLostError))


def stand_again() -> float:
    """Seconds before a candidate stands again."""
    return random.uniform(_FIRST_PAUSE, 2 * _FIRST_PAUSE)


def checked(resource: str) -> str:
    """Refuses what is not text, or not UTF-8: a server would see another name."""
    if not isinstance(resource, str):
        raise TypeError(f"a resource must be a str, not {type(resource).__name__}")
    try:
        resource.encode()
    except UnicodeEncodeError:
        raise ValueError("a resource must be valid Unicode, without half a surrogate pair") from None
    return resource


def lost_error(grant: Grant, why: str) -> LeaseLostError:
    return lost(grant.name, why)


def _is_gone(method: str, breaks: int, error: FencelockError) -> bool:
    """Whether a refusal means that what a release, or a break of a token, was to end has ended."""
    if method == "DELETE":
        return error.kind == "lease-not-held"
    if isinstance(error, OtherLeaseError):
        return 0 < breaks < error.token
    return breaks > 0 and error.kind == "lock-not-held"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _seconds(header: str) -> float:
    return float(header) if header.isdigit() else 0.0


def _host(answer: _http.Answer) -> str:
    """Where a redirect points, without the path, which may have a lease id in it."""
    try:
        parts = urllib.parse.urlsplit(answer.headers.get("location", ""))
    except ValueError:
        return "nowhere"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else "another path"


def _json(answer: _http.Answer) -> Dict[str, Any]:
    if answer.value is not None:
        return answer.value
    try:
        value = json.loads(answer.body) if answer.body else {}
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}


class Stream:
    """The bytes of an event stream: whether it has begun, and whether something happened."""

    def __init__(self) -> None:
        self.open = False
        self._data = b""

    def feed(self, data: bytes) -> bool:
        """Takes bytes as they come, and says whether an event is among them, or the stream has begun. Raises NoAnswer for
        what is no stream, and at its end."""
        if not data:
            raise NoAnswer("the stream of events has ended", True)
        self._data += data
        if not self.open:
            head, end, rest = self._data.partition(b"\r\n\r\n")
            if not end:
                if len(self._data) > 65536:
                    raise NoAnswer("the server streams no events", True)
                return False
            status = head.partition(b"\r\n")[0].split(b" ")[1:2]
            if status != [b"200"] or b"text/event-stream" not in head.lower():
                raise NoAnswer("the server streams no events", True)
            self.open, self._data = True, rest
            return True  # what happened before is not told
        happened = b"event:" in self._data
        self._data = self._data[-6:]  # its beginning may have come
        if happened and self._data.startswith(b"event:"):
            self._data = b""
        return happened

