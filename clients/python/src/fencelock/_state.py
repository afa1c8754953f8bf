"""The public state that the service shows. Durations are in seconds."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Mapping, Tuple


@dataclass(frozen=True)
class Waiter:
    """A place in the queue."""

    holder: str
    waiting: float


@dataclass(frozen=True)
class LockState:
    """The state of a resource. If it is free, only ``resource`` and the queue are set."""

    resource: str
    held: bool
    holder: str = ""  # the label of the holder; "" if it has none
    token: int = 0  # the fencing token of its lease
    remaining: float = 0.0  # until its lease ends, unless it is extended
    ttl: float = 0.0  # the last TTL given to its lease
    held_for: float = 0.0  # since the grant
    metadata: Any = None  # the JSON value of its acquire
    waiters: int = 0  # the number of requests in the queue
    queue: Tuple[Waiter, ...] = ()  # the first of them, in the order of the queue


@dataclass(frozen=True)
class Record:
    """A guarded record."""

    resource: str
    highest_token: int = 0  # the highest token that the record has seen; 0 if none
    value: Any = None  # a JSON value; None before the first write, after a delete, and in a list
    version: int = 0  # the number of accepted writes


@dataclass(frozen=True)
class Attempt:
    """A write or a claim of a guarded record, accepted or refused."""

    token: int
    highest: int  # the mark with which the token was compared
    kind: str  # "write" or "claim"
    accepted: bool
    version: int
    at: datetime.datetime


Json = Mapping[str, Any]


def lock_state(of: Json) -> LockState:
    return LockState(
        resource=str(of["resource"]), held=bool(of.get("held")), holder=str(of.get("holder") or ""), token=int(of.get("fencing_token") or 0),
        remaining=_seconds(of, "remaining_ms"), ttl=_seconds(of, "ttl_ms"), held_for=_seconds(of, "held_ms"), metadata=of.get("metadata"),
        waiters=int(of.get("waiters") or 0), queue=tuple(Waiter(str(w.get("holder") or ""), _seconds(w, "waiting_ms")) for w in of.get("queue") or ()),
    )


def record(of: Json) -> Record:
    return Record(resource=str(of["resource"]), highest_token=int(of.get("highest_token") or 0), value=of.get("value"), version=int(of.get("version") or 0))


def attempt(of: Json) -> Attempt:
    return Attempt(
        token=int(of["fencing_token"]), highest=int(of["highest_token"]), kind=str(of["kind"]), accepted=bool(of["accepted"]), version=int(of.get("version") or 0),
        at=_time(str(of["at"])),
    )


def _seconds(of: Json, member: str) -> float:
    return int(of.get(member) or 0) / 1000


def _time(text: str) -> datetime.datetime:
    """Parses a time of RFC 3339 in UTC with any number of digits; Python before 3.11 accepts only three or six."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    at = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.timezone.utc)
    return at.replace(microsecond=int((fraction + "000000")[:6]))
