"""What a call of the client can raise."""

from __future__ import annotations

from typing import Any, Mapping, Optional


class FencelockError(Exception):
    """Any failure of a call. ``kind`` is the problem type of the service's answer
    ("lock-held", "no-quorum", …), ``status`` its HTTP status; "" and 0 if there was no response.
    ``url`` is the server that was asked last, and ``request_id`` the X-Request-Id of its answer."""

    kind: str = ""
    status: int = 0
    url: str = ""
    request_id: str = ""
    resource: str = ""


class HeldError(FencelockError):
    """Another lease holds the resource, or the wait for it ended. Asking again is safe.

    ``holder`` is the label of that lease ("" if it has none), ``token`` its fencing token
    (0 if it is not known), ``remaining`` how long it lives still, in seconds."""

    holder: str = ""
    token: int = 0
    remaining: float = 0.0


class LeaseLostError(FencelockError):
    """The lease has ended, or can no longer be kept alive: stop the work, and acquire again.
    What was written with its token is safe; what comes may be refused."""


class StaleTokenError(LeaseLostError):
    """A guard refused the token: it has seen a larger one. Nothing was written. Never repeat
    it with the same token. ``presented`` and ``highest`` are the tokens, 0 if not known."""

    presented: int = 0
    highest: int = 0


class UnavailableError(FencelockError):
    """No server answered, or none had a quorum, or this caller sends more requests than it
    may, for as long as the client's patience. Safe to repeat."""


class TimedOutError(FencelockError, TimeoutError):
    """The call took longer than its ``timeout``. ``__cause__`` is the error of its last try, None if
    that one was under way. What may have been granted meanwhile is released in the background."""


class ClosedError(FencelockError):
    """The client was closed."""


class DeniedError(FencelockError):
    """The service requires a credential, does not accept this one, or does not allow it this."""


class RefusedError(FencelockError):
    """Any other refusal. The same request would be refused again."""


class OtherLeaseError(RefusedError):
    """The lease to break does not hold the resource: another one does, with the fencing token
    ``token`` and the label ``holder`` ("" if it has none). Nothing was changed."""

    holder: str = ""
    token: int = 0


_HELD = ("lock-held", "wait-timeout")
_LOST = ("lease-not-held", "max-hold-reached")
_AGAIN = (408, 429, 500, 502, 503, 504)


def of_problem(operation: str, resource: str, status: int, problem: Mapping[str, Any]) -> FencelockError:
    """The error of a refusal, from its problem document ({} for an answer that has none)."""
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


def shown(name: str) -> str:
    """A name for a message: what does not print, or changes the direction of the text, is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def lost(resource: str, why: str, cause: Optional[BaseException] = None) -> LeaseLostError:
    error = LeaseLostError(f"the lease of {shown(resource)} is lost: {why}")
    error.resource, error.__cause__ = resource, cause
    return error
