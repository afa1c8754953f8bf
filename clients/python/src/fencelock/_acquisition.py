"""One attempt to get a lease: its tries, its wait, and the end of everything that its requests may have been
granted."""

from __future__ import annotations

import json
import math
import secrets
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from . import _http
from ._grant import Grant
from ._options import MAX_METADATA, MAX_RESOURCES, Options, Resources, check_seconds, check_text, checked, milliseconds
from ._steps import Sleep, Steps
from ._times import ABANDON, FIRST_PAUSE, GRACE, MAX_PAUSE
from .errors import FencelockError, HeldError, TimedOutError, UnavailableError, shown, timed_out

if TYPE_CHECKING:
    from ._core import Protocol

_RESPONSE = 0.05  # seconds before the end of a call's timeout at which its wait ends, so that a server can still say who holds the resource
_LONGEST_WAIT = 600.0  # seconds: the longest wait of one request
_FOREVER = 100 * 365 * 86400.0  # seconds


class Tries:
    """The progress of a call: until when it waits in the queue, and how long the next request of that wait may
    take."""

    def __init__(self, until: float, poll: float, late: Optional[List[Any]] = None) -> None:
        self.until, self.poll = until, poll
        self.late = late
        self.number = 0
        self.silent = 0  # rounds over all servers without a final response
        self.ambiguous = False  # a try without a response may have taken effect
        self.queued = False  # a poll has kept a place in the queue
        self.under_way = False  # a try has not failed: it was granted, or interrupted

    def wait(self, now: float) -> Tuple[float, float]:
        """The rest of the wait, and the part of it that the next request may wait; in seconds."""
        left = math.floor(min(max(0.0, self.until - now), _LONGEST_WAIT) * 1000) / 1000
        return left, min(left, self.poll)


class Acquisition:
    """One attempt to get a lease. All its tries use one idempotency key, on every server."""

    def __init__(self, protocol: Protocol, resources: Resources, options: Options, holder: str) -> None:
        self._protocol = protocol
        if not isinstance(resources, (str, list, tuple, set, frozenset)):
            raise TypeError(f"a resource must be a str, or a list of str, not {type(resources).__name__}")
        names = [resources] if isinstance(resources, str) else list(resources)
        if not names:
            raise ValueError("name a resource")
        self._name = ", ".join(checked(n) for n in names)
        self._shown = shown(self._name)
        if len(names) > MAX_RESOURCES or len(set(names)) < len(names):
            raise ValueError(f"name {MAX_RESOURCES} resources at most, and none twice")
        if options.slots is not None and len(names) > 1:
            raise ValueError("slots are of one resource")
        check_text("the holder", holder, 0)
        self._options = options
        self.late: List[Any] = []  # the outcomes of tries that were given up in batches
        self._tries: Tries
        self._begin(0)
        body: Dict[str, Any] = {"resource": names[0]} if len(names) == 1 else {"resources": names}
        if holder:
            body["holder"] = holder
        if options.metadata is not None:
            text = json.dumps(options.metadata, ensure_ascii=False, separators=(",", ":"))
            if len(text.encode()) > MAX_METADATA:
                raise ValueError(f"metadata must be {MAX_METADATA} bytes of JSON at most")
            body["metadata"] = json.loads(text)  # only plain JSON values, so that encoding a request cannot raise
        if options.slots is not None:
            body["slots"] = options.slots
        for member, seconds in (("ttl_ms", options.ttl), ("min_hold_ms", options.min_hold), ("max_hold_ms", options.max_hold)):
            if seconds is not None:
                body[member] = milliseconds(seconds)
        self._body = body

    def take(self) -> Steps[Grant]:
        """Takes a lease within the options' timeout. If the timeout limits the wait, the wait ends a little earlier,
        so that the caller learns who holds the resource."""
        what, wait, timeout = f"acquire {self._shown}", self._options.wait, self._options.timeout
        if timeout is None or wait is not None and wait < timeout:
            return (yield from self._protocol.within(timeout, what, self._take(wait)))
        check_seconds("timeout", timeout)
        p, begun = self._protocol, self._protocol.now()
        try:
            return (yield from p.within(timeout, what, self._take(timeout - min(_RESPONSE, timeout / 2))))
        except (HeldError, UnavailableError) as e:
            # A call without a server gives up before its last pause, so that the end of the wait is not reached.
            patience = p.patience if self._options.patience is None else self._options.patience
            impatient = isinstance(e, UnavailableError) and p.now() - begun + 2 * MAX_PAUSE > patience
            if wait == 0 or impatient or isinstance(e, TimedOutError):
                raise
            raise timed_out(what, timeout, e) from e

    def _take(self, wait: Optional[float]) -> Steps[Grant]:
        """Waits in polls that are shorter than the time limits of proxies; the idempotency key keeps the place. It
        ends within a second after the wait, whatever the servers do."""
        p = self._protocol
        grace = max(GRACE, self._options.patience or 0)
        deadline = math.inf if wait is None else p.now() + min(wait, _FOREVER) + grace
        self._tries.until = p.now() + (_FOREVER if wait is None else min(wait, _FOREVER))
        while True:
            tries, until = self._tries, self._tries.until
            try:
                sent, answer = yield from self._acquire(tries, deadline)
            except HeldError:
                tries.queued = tries.wait(p.now())[0] > 0
                if not tries.queued:
                    raise
                tries.poll = min(2 * tries.poll, p.poll)
                deadline += tries.until - until  # the time that it waited in the client's own queue
                yield Sleep(FIRST_PAUSE)
                continue
            grant = Grant(p.now, sent, answer)
            if grant.left > 0:
                return grant
            # The grant had expired when it arrived: this process was paused, or the response was late. The rest of the wait uses a new key.
            _, in_doubt = yield from p.finish(grant, min(deadline, p.now() + GRACE), ahead=True)
            tries.under_way = tries.ambiguous = tries.queued = in_doubt
            if tries.wait(p.now())[0] <= 0:
                raise p._unavailable(f"acquire {self._shown}", self._name, "the lease expired before the response arrived; a longer ttl may help")
            self._begin(tries.until)

    def _begin(self, until: float) -> None:
        """Begins with a new key. The wait ends at ``until``."""
        self._key, self._tries = secrets.token_urlsafe(24), Tries(until, self._protocol.poll, self.late)

    def _acquire(self, tries: Tries, deadline: float) -> Steps[Tuple[float, Dict[str, Any]]]:
        def body(wait_ms: int) -> Mapping[str, Any]:
            return {**self._body, "wait_ms": wait_ms} if wait_ms else self._body

        return self._protocol._call(
            f"acquire {self._shown}", "POST", "/locks", body, (("Idempotency-Key", self._key),),
            resource=self._name, tries=tries, deadline=deadline, patience=self._options.patience,
        )

    def granted_late(self, answer: _http.Answer, got: Optional[Grant]) -> Optional[Grant]:
        """The lease of a try that was granted after its call had given up the try, unless another try found the same
        lease."""
        if answer.status >= 300 or not _http.object_of(answer):
            return None
        grant = Grant(self._protocol.now, 0, _http.object_of(answer))
        same = got is not None and [(p.resource, p.token) for p in got.parts] == [(p.resource, p.token) for p in grant.parts]
        return None if same else grant

    def in_doubt(self) -> bool:
        """Whether the service may have a lease or a place in the queue under the key. That is the case after a try
        without a final refusal, after a poll that keeps the place, and after a grant."""
        return self._tries.ambiguous or self._tries.under_way or self._tries.queued

    def abandon(self) -> Steps[None]:
        """Ends everything that a given-up request may have at the service: its lease, and its place in the queue."""
        p = self._protocol
        try:
            yield from p._call(
                f"cancel {self._shown}", "POST", "/cancel", lambda _: self._body, (("Idempotency-Key", self._key),),
                resource=self._name, deadline=p.now() + ABANDON, ahead=True, quiet=True,
            )
        except FencelockError:
            pass  # the TTL ends the lease, if there is one
