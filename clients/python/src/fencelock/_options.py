"""The options of a request, and the limits of every service."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Union

_SHORTEST_TTL, _LONGEST_TTL, _LONGEST_HOLD = 0.1, 86400.0, 3650 * 86400.0  # seconds: the limits of every service
_MAX_SLOTS, MAX_RESOURCES = 32, 16
_MAX_TEXT, MAX_METADATA = 256, 4096  # bytes
Bearer = Union[str, Callable[[], str], None]
Resources = Union[str, Sequence[str]]


def bearer_file(path: str) -> Callable[[], str]:
    """Returns a function that reads a bearer token from a file before each request, so a file that is replaced needs
    no restart. White space around the token is dropped."""

    def read() -> str:
        with open(path, encoding="utf-8") as f:
            credential = f.read().strip()
        if not credential:
            raise ValueError(f"the bearer token file {path} is empty")
        return credential

    return read


@dataclass(frozen=True)
class Options:
    """The options of an acquisition. Durations are in seconds; None leaves the decision to the service."""

    ttl: Optional[float] = None
    wait: Optional[float] = None  # None means without a limit
    min_hold: Optional[float] = None
    max_hold: Optional[float] = None
    holder: Optional[str] = None
    metadata: Any = None
    slots: Optional[int] = None
    timeout: Optional[float] = None  # the limit of the whole call
    patience: Optional[float] = None  # None means the client's, but at most a second after the wait
    margin: Optional[float] = None

    def __post_init__(self) -> None:
        """Refuses values that no service accepts, before anything is sent."""
        for name in ("ttl", "wait", "min_hold", "max_hold", "timeout", "patience", "margin"):
            check_seconds(name, getattr(self, name))
        ttl, min_hold, max_hold = self.ttl, self.min_hold, self.max_hold
        if ttl is not None and not _SHORTEST_TTL <= ttl <= _LONGEST_TTL:
            raise ValueError(f"ttl must be {_SHORTEST_TTL} seconds to {_LONGEST_TTL:.0f} seconds (24 hours), not {ttl}")
        if ttl is not None and min_hold is not None and min_hold > ttl:
            raise ValueError(f"min_hold must not be longer than ttl, {ttl} seconds, and is {min_hold}")
        if max_hold is not None and not (ttl or 0) <= max_hold <= _LONGEST_HOLD:
            raise ValueError(f"max_hold must be as long as ttl at least, and ten years at most, not {max_hold} seconds")
        if self.slots is not None and (isinstance(self.slots, bool) or not isinstance(self.slots, int) or not 1 <= self.slots <= _MAX_SLOTS):
            raise ValueError(f"slots must be a whole number from 1 to {_MAX_SLOTS}, not {self.slots!r}")
        check_text("holder", self.holder or "", 0)


def check_seconds(name: str, value: Any) -> None:
    """Refuses a value that is not a duration in seconds, before anything is sent."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = "; call its total_seconds()" if hasattr(value, "total_seconds") else ""
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}{hint}")
    if not value >= 0:
        raise ValueError(f"{name} must be 0 seconds or more, not {value}")


def check_text(name: str, text: str, least: int) -> None:
    """Refuses a text that the service does not accept as a name or a label."""
    if not least <= len(text.encode(errors="surrogatepass")) <= _MAX_TEXT:
        raise ValueError(f"{name} must be {least} to {_MAX_TEXT} bytes long in UTF-8")
    if any(unicodedata.category(c) == "Cc" for c in text):
        raise ValueError(f"{name} must not have control characters")


def checked(resource: str) -> str:
    """Refuses a resource that is not a str or not valid Unicode, because the server would see another name."""
    if not isinstance(resource, str):
        raise TypeError(f"a resource must be a str, not {type(resource).__name__}")
    try:
        resource.encode()
    except UnicodeEncodeError:
        raise ValueError("a resource must be valid Unicode, without half a surrogate pair") from None
    check_text("a resource", resource, 1)
    return resource


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
