"""The exceptions of the client."""

from __future__ import annotations

from typing import Any, Mapping, Optional


class FencelockError(Exception):
    """Any failure of a call. ``kind`` is the problem type in the service's response ("lock-held", "no-quorum", …) and
    ``status`` its HTTP status; "" and 0 if there was no response. ``url`` is the server that was asked last, and
    ``request_id`` the X-Request-Id of its response."""

    kind: str = ""
    status: int = 0
    url: str = ""
    request_id: str = ""
    resource: str = ""


class HeldError(FencelockError):
    """Another lease holds the resource, or the wait for it ended. The call may be repeated.

    ``holder`` is the label of that lease ("" if it has none), ``token`` its fencing token (0 if unknown), and
    ``remaining`` how long it still lasts unless it is extended, in seconds."""

    holder: str = ""
    token: int = 0
    remaining: float = 0.0


class LeaseLostError(FencelockError):
    """The lease has ended, or can no longer be kept alive: stop the work, and acquire again. Earlier writes with its
    token are safe; later ones may be refused."""


class StaleTokenError(LeaseLostError):
    """A guard refused the token, because it has seen a larger one. Nothing was written. Never repeat the call with
    this token. ``presented`` and ``highest`` are the tokens, 0 if unknown."""

    presented: int = 0
    highest: int = 0


class UnavailableError(FencelockError):
    """During the client's patience no server responded, or none had a quorum, or this caller exceeded its rate limit.
    Safe to repeat."""


class TimedOutError(FencelockError, TimeoutError):
    """The call was not done within its ``timeout``; without a server it may end one pause earlier. If another lease
    held the resource, it is also a HeldError with the holder; otherwise it is also an UnavailableError, because no
    server responded in time. ``__cause__`` is the error of the last try, None if that one was under way. A lease that
    was granted meanwhile is released in the background."""


class _HeldForLonger(TimedOutError, HeldError):
    pass


class _UnavailableForLonger(TimedOutError, UnavailableError):
    pass


class ClosedError(FencelockError):
    """The client was closed."""


class DeniedError(FencelockError):
    """The service requires a credential, does not accept this one, or does not allow this request."""


class RefusedError(FencelockError):
    """Any other refusal. The same request would be refused again."""


class OtherLeaseError(RefusedError):
    """Another lease than the one to break holds the resource. ``token`` is its fencing token, and ``holder`` its
    label ("" if it has none). Nothing was changed."""

    holder: str = ""
    token: int = 0


_HELD = ("lock-held", "wait-timeout")
_LOST = ("lease-not-held", "max-hold-reached")
_AGAIN = (408, 429, 500, 502, 503, 504)


def of_problem(operation: str, resource: str, status: int, problem: Mapping[str, Any]) -> FencelockError:
    """The error for a refusal, from its problem document ({} if the response has none)."""
    kind = str(problem.get("type", "")).rpartition("/problems/")[2]
    text = f"{operation}: {problem.get('title') or 'refused'} ({status})"
    if not kind and status == 404 and not problem:
        text = f"{operation}: the 404 did not come from fencelock: check host, port and path"
    if problem.get("detail"):
        text += f": {shown(str(problem['detail']))}"
    error: FencelockError
    if kind in _HELD:
        held = HeldError(text)
        held.holder = str(problem.get("holder") or "")
        held.token = int(problem.get("fencing_token") or 0)
        held.remaining = float(problem.get("remaining_ms") or 0) / 1000
        error = held
    elif kind == "other-lease":
        other = OtherLeaseError(text)
        other.holder, other.token = str(problem.get("holder") or ""), int(problem.get("fencing_token") or 0)
        error = other
    elif kind in _LOST:
        error = LeaseLostError(text)
    elif kind == "stale-token":
        stale = StaleTokenError(text)
        stale.presented, stale.highest = int(problem.get("presented") or 0), int(problem.get("highest_token") or 0)
        error = stale
    elif status in (401, 403):
        error = DeniedError(text)
    elif status in _AGAIN:
        error = UnavailableError(text)
    else:
        error = RefusedError(text)
    error.kind, error.status, error.resource = kind, status, str(problem.get("resource") or resource)
    return error


def timed_out(what: str, timeout: float, last: Optional[BaseException]) -> TimedOutError:
    """The error of a call whose time is over; ``last`` is the error of its last try."""
    text = f"{what}: not done within its timeout of {timeout:g} s"
    error: TimedOutError = _UnavailableForLonger(text)
    if isinstance(last, HeldError):
        held = _HeldForLonger(f"{text}: {last}")
        held.holder, held.token, held.remaining = last.holder, last.token, last.remaining
        error = held
    if isinstance(last, FencelockError):
        error.kind, error.status, error.url, error.request_id, error.resource = last.kind, last.status, last.url, last.request_id, last.resource
    error.__cause__ = last
    return error


def shown(name: str) -> str:
    """A name for a message: characters that are not printable, or change the direction of the text, are escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def lost(resource: str, why: str, cause: Optional[BaseException] = None) -> LeaseLostError:
    error = LeaseLostError(f"the lease of {shown(resource)} is lost: {why}")
    error.resource, error.__cause__ = resource, cause
    return error
