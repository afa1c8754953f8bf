"""The protocol, without threads, sockets or an event loop.

Each operation is a generator. It yields the step that it needs (a Turn, a Send or a Sleep), and gets the Answer as
the value of the yield, or NoAnswer as an exception. So the rules of docs/how-to/write-a-client.md are written once,
for the client with threads and the one on asyncio.
"""

from __future__ import annotations

import json
import logging
import math
import random
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, cast

from . import _http
from ._acquisition import Acquisition, Tries
from ._grant import Grant, Presented
from ._options import Bearer, Options, Resources, check_seconds, checked, milliseconds
from ._state import LockState, Record, lock_state, record
from ._steps import NOTHING, T, NoAnswer, Send, Server, Sleep, Steps, Turn, bounded
from ._times import ABANDON, FIRST_PAUSE, MAX_PAUSE
from .errors import ClosedError, FencelockError, LeaseLostError, OtherLeaseError, RefusedError, UnavailableError, lost, of_problem, shown, timed_out

_log = logging.getLogger("fencelock")
_SHORT_POLL = 1.0  # seconds: the first poll after one that got no response
_SHORTEST_LAST = 1.0  # seconds: the minimum time of the last try, even if patience ends earlier
_SHORTEST_TRY = 0.25  # seconds
PROBE_EVERY = 5.0  # seconds between two probes while a request waits in the queue


def told(observer: Callable[..., object], *args: object) -> None:
    """Calls an observer of the application. If the observer raises, the exception is logged and has no other effect,
    so that no lease ends because of it."""
    try:
        observer(*args)
    except Exception:
        try:
            _log.exception("an observer of fencelock raised: %r", observer)
        except Exception:
            pass  # the application's logger raised, too


@dataclass(frozen=True)
class Retry:
    """A call that failed and is repeated. Durations in seconds."""

    error: FencelockError  # of the last try: an UnavailableError
    tries: int  # so far
    failing: float  # since the first failure
    pause: float  # before the next try


class Protocol:
    """What a client knows about its servers, and the rules of its calls."""

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
        self._bearer, self._holder, self.patience, self._on_retry = bearer, holder, patience, on_retry
        self._first = 0  # the index of the server that responded last
        self._slowest = _SHORTEST_TRY  # seconds: the slowest recent response; earlier ones fade
        self._names: List[List[str]] = [[] for _ in self.servers]  # by address: the names of the servers that responded there (Fencelock-Server)

    # Calls

    def _request(
        self, server: Server, method: str, path: str, body: Any, headers: Sequence[Tuple[str, str]], limit: float, probe: float = 0.0,
        waits: bool = False, late: Optional[List[Any]] = None,
    ) -> Send:
        content = None if body is NOTHING else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            credential = (self._bearer() if callable(self._bearer) else self._bearer or "").strip()
        except Exception as e:  # the next try may succeed, for example after the file was replaced
            raise NoAnswer(f"the bearer token cannot be had: {type(e).__name__}: {e}", False) from e
        if not credential.isprintable() or not credential.isascii() or " " in credential:
            raise ValueError("the bearer token has characters that no token has")
        return Send(server, method, path, headers, content, credential, limit, probe, waits, late)

    def probe(self, server: Server, limit: float) -> Send:
        """A request to which any response shows that the server responds at all."""
        return self._request(server, "GET", "/healthz", NOTHING, [], limit)

    def _try_limit(self, rounds: int) -> float:
        """Seconds for one try: four times what recent responses took, doubled after each round over all servers
        without a response. So the client waits for slow servers, and leaves frozen ones."""
        return min(self.timeout, max(_SHORTEST_TRY, 4 * self._slowest) * 2.0**min(rounds, 16))

    def _call(
        self, what: str, method: str, path: str, body: Optional[Callable[[int], Any]] = None,
        header: Tuple[Tuple[str, str], ...] = (), *, resource: str = "", tries: Optional["Tries"] = None,
        limit: float = math.inf, deadline: float = math.inf, ahead: bool = False, breaks: int = 0, once: bool = False,
        patience: Optional[float] = None, quiet: bool = False,
    ) -> Steps[Tuple[float, Dict[str, Any]]]:
        """Sends a call until a server gives a final response, the deadline has come, or no server has served it for
        the client's patience. Returns when the successful request was sent, and its response.

        Every call without ``once`` may be sent twice: an acquire carries a key, a break carries the token of the
        lease (``breaks``), and repeating the other calls has no further effect. A call with ``ahead`` comes from the
        client itself, and does not wait for a turn."""
        tries = tries or Tries(0, 0)
        patience = self.patience if patience is None else patience
        failing = math.inf  # when the first of the recent failures was
        pause = FIRST_PAUSE
        crowded = False
        while True:
            retry_after = 0.0
            failure = self._unavailable(what, resource, "no response in time")
            for i in range(len(self.servers)):
                at = (self._first + i) % len(self.servers)
                if not ahead:
                    asked = self.now()
                    crowded = yield Turn(tries.wait(asked)[0] > 0)
                    queued = self.now() - asked
                    deadline, failing, tries.until = deadline + queued, failing + queued, tries.until + queued
                sent = self.now()
                left, kept = tries.wait(sent)
                if crowded:
                    kept = min(kept, _SHORT_POLL)  # other calls need the connection, too; the key keeps the place
                unasked = max(len(self.servers) - i, 1 if tries.number else 2)  # leaves time for another try
                share = (deadline - sent) / unasked
                # A call that is not repeated gets the whole timeout, because giving it up would leave its caller in doubt.
                try_limit = min(limit, share, self.timeout if once else self._try_limit(tries.silent))
                if failing < sent:
                    try_limit = min(try_limit, max(patience - (sent - failing), _SHORTEST_LAST))
                if try_limit <= 0:
                    raise failure
                headers = list(header)
                if kept < left:
                    headers.append(("Prefer", f"wait={int(kept)}"))  # a poll: it keeps the place in the queue
                content = body(milliseconds(left)) if body else NOTHING
                overall = min(try_limit + kept, deadline - sent)
                probe = 0.0  # 0 for no probe: a short poll ends soon, unless it takes the time that other servers need
                if kept > _SHORT_POLL or kept > 0 and try_limit + kept > share:
                    probe = min(try_limit, share / 2)
                tries.number += 1
                tries.under_way = True
                try:
                    answer = yield self._request(self.servers[at], method, path, content, headers, overall, probe, left > 0, tries.late)
                    error = self._judge(what, resource, answer)
                except NoAnswer as e:
                    tries.under_way = False
                    tries.ambiguous = tries.ambiguous or e.sent
                    failure = self._unavailable(what, resource, f"{self.servers[at]}: {e}")
                    failure.url, failure.__cause__ = str(self.servers[at]), e.__cause__
                    tries.poll = min(tries.poll, _SHORT_POLL)
                else:
                    self._note(at, answer)
                    if error is not None:
                        error.url, error.request_id = str(self.servers[at]), answer.headers.get("x-request-id", "")
                    if not kept:
                        self._slowest = max(self.now() - sent, 0.9 * self._slowest)
                    if error is None:
                        self._first = at
                        return sent, self._result(what, answer)
                    tries.under_way = False
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
                told(self._on_retry, Retry(failure, tries.number, now - failing, delay))
            yield Sleep(delay)
            pause = min(2 * pause, MAX_PAUSE)

    def _note(self, at: int, answer: _http.Answer) -> None:
        """Records which server responded at an address. If an earlier name returns, several servers are behind the
        address; a name that only changes means a restart."""
        name, names = answer.headers.get("fencelock-server"), self._names[at]
        if name and name != (names[-1] if names else None) and len(names) < 16:
            names.append(name)

    def shared(self, server: Server) -> bool:
        """Whether several servers respond at this address. Then a probe proves nothing, because it may reach another
        server than the waiting request."""
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
        problem = _http.object_of(answer)
        if answer.status < 400:
            problem = {"title": f"a redirect to {_host(answer)}, which is not followed: is the address right?"}
        return of_problem(what, resource, answer.status, problem)

    @staticmethod
    def _result(what: str, answer: _http.Answer) -> Dict[str, Any]:
        result = _http.object_of(answer)
        if answer.status != 204 and not result:
            raise RefusedError(f"{what}: the response did not come from the lock service: is the address right?")
        return result

    def within(self, timeout: Optional[float], what: str, steps: Steps[T]) -> Steps[T]:
        """Runs steps, and raises TimedOutError when the time of the whole call is over."""
        check_seconds("timeout", timeout)
        if timeout is None:
            return (yield from steps)
        deadline, last = self.now() + timeout, None  # type: float, Optional[BaseException]
        try:
            step = next(steps)
            while (left := deadline - self.now()) > 0:
                try:
                    answer = yield bounded(step, left)
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
            last = e
        steps.close()
        raise timed_out(what, timeout, last)

    # Operations

    def acquisition(self, resources: Resources, options: Options) -> "Acquisition":
        return Acquisition(self, resources, options, options.holder or self._holder)

    def extend(self, grant: Grant, limit: float = math.inf, deadline: float = math.inf, ahead: bool = False) -> Steps[None]:
        """Restarts the TTL of the lease. It names the TTL, because otherwise the lease would get the TTL of its last
        extend, which another process may have sent."""
        sent, answer = yield from self._call(
            f"extend {shown(grant.name)}", "POST", "/leases/current/extend", lambda _: {"ttl_ms": milliseconds(grant.ttl)},
            (("Fencelock-Lease", grant.id),), resource=grant.name, limit=limit, deadline=deadline, ahead=ahead,
        )
        grant.renew(sent, answer)

    def release(self, grant: Grant, deadline: float = math.inf, ahead: bool = False) -> Steps[None]:
        yield from self._call(
            f"release {shown(grant.name)}", "DELETE", "/leases/current", None, (("Fencelock-Lease", grant.id),), resource=grant.name, deadline=deadline, ahead=ahead,
        )

    def finish(self, grant: Grant, deadline: float, ahead: bool = False) -> Steps[Tuple[str, bool]]:
        """Releases a lease after its work. Returns why the lease had ended before ("" if it had not), and whether it
        may still exist. If no server responds, its TTL ends it."""
        try:
            yield from self.release(grant, deadline, ahead)
        except LeaseLostError:
            return "it had ended when it was released", False
        except FencelockError:
            return "", True
        return "", False

    def finish_later(self, grant: Grant) -> Steps[None]:
        """Releases a lease for which no caller waits any more."""
        yield from self.finish(grant, self.now() + ABANDON, ahead=True)

    def keep(self, grant: Grant) -> Steps[str]:
        """Extends a lease at a third of its TTL until the lease is lost, and then returns the reason. That is a margin
        before the validity ends at the latest. While the lease is not lost, only the caller stops the renewal.

                          extended
                 ┌────────────────────────┐
                 ▼                        │
            not yet due ──a third of──► trying ──refused (404)───────────► lost, at once
                 ▲        the TTL         │ ├──refused (409)──┐
                 └────────────────────────┘ │                 ▼
                  any failure: again after  │       valid as long as before,
                  a twentieth of the TTL    │       and no longer
                                            └──a margin before──┴────────► lost
                                               the end

        A failed try never ends the renewal by itself, whatever raised the error: a server that does not respond, the
        application's function for the bearer token, or a bug in this client. The renewal ends only when the lease
        cannot be relied on any more."""
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
                # The limit leaves time to ask every server twice.
                yield from self.extend(grant, left / (2 * len(self.servers)), self.now() + left, ahead=True)
            except LeaseLostError as e:
                if e.kind != "max-hold-reached":
                    return str(e)
                grant.capped = True  # it stays valid until its present end
            except ClosedError as e:
                return str(e)
            except Exception:
                due = grant.ttl / 20  # soon, to survive a short outage
            else:
                due = self._due(grant)

    def first_extend(self, grant: Grant) -> float:
        """The time at which ``keep`` first has work. It need not run before."""
        return self.now() + (grant.left if grant.capped else min(self._due(grant), grant.left))

    @staticmethod
    def _due(grant: Grant) -> float:
        """Seconds until a third of the TTL has passed since the validity began."""
        return max(0.0, grant.left + grant.margin - grant.ttl * 2 / 3)

    def look_up(self, lease_id: str) -> Steps[Grant]:
        sent, answer = yield from self._call("look up", "GET", "/leases/current", None, (("Fencelock-Lease", lease_id),))
        return Grant(self.now, sent, answer)

    def inspect(self, resource: str) -> Steps[LockState]:
        name = urllib.parse.quote(checked(resource), safe="")
        # The header repeats the name, because a proxy may rewrite the path.
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
        json.dumps(value)  # raises TypeError if the value is not JSON
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
        """A request for the events of a resource. ``n`` counts the requests, which go to one server after the
        other."""
        server = self.servers[(self._first + n) % len(self.servers)]
        return self._request(server, "GET", "/events?" + urllib.parse.urlencode({"resource": checked(resource)}), NOTHING, [], limit)

    def break_lock(self, resource: str, token: int) -> Steps[None]:
        body = {"resource": checked(resource), "fencing_token": token}
        yield from self._call(f"break {shown(resource)}", "POST", "/breaks", lambda _: body, resource=resource, breaks=token)

    def break_any(self, resource: str) -> Steps[None]:
        body = {"resource": checked(resource), "any": True}
        yield from self._call(f"break {shown(resource)}", "POST", "/breaks", lambda _: body, resource=resource, once=True)

    def page(self, operation: str, path: str, query: Dict[str, str]) -> Steps[Tuple[Dict[str, Any], Optional[Dict[str, str]]]]:
        """Requests a page. Returns it with the query for the next page; None after the last."""
        _, answer = yield from self._call(operation, "GET", f"{path}?{urllib.parse.urlencode({'limit': '1000', **query})}")
        cursor = answer.get("next_cursor")
        return answer, {**query, "cursor": cursor} if cursor else None


def again(lost: bool, led: bool, error: Exception) -> bool:
    """Whether a candidate competes again after an error, and drops the error: its lease was lost while it led, or it
    has not led yet and the service is unavailable."""
    return lost or not led and isinstance(error, (UnavailableError, LeaseLostError))


def stand_again() -> float:
    """Seconds before a candidate competes again."""
    return random.uniform(FIRST_PAUSE, 2 * FIRST_PAUSE)


def _is_gone(method: str, breaks: int, error: FencelockError) -> bool:
    """Whether a refusal means that the lease which a release, or a break of a token, should end has ended."""
    if method == "DELETE":
        return error.kind == "lease-not-held"
    if isinstance(error, OtherLeaseError):
        return 0 < breaks < error.token
    return breaks > 0 and error.kind == "lock-not-held"


def _seconds(header: str) -> float:
    return float(header) if header.isdigit() else 0.0


def _host(answer: _http.Answer) -> str:
    """The target of a redirect without its path, which may contain a lease id."""
    try:
        parts = urllib.parse.urlsplit(answer.headers.get("location", ""))
    except ValueError:
        return "nowhere"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else "another path"


