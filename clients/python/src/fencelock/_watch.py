"""What a watch observes of a resource: the events of a server, and reads of the lock between them."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from ._state import LockState
from ._steps import NoAnswer

QUIET = 30.0  # seconds without a line of events; a server sends one every 10 s
LOOK_EVERY = 10.0  # seconds between two reads of the lock while events come
LOOK_BLIND = 1.0  # seconds between them while no events come


class Watched:
    """The last state of a resource that a watch has reported."""

    def __init__(self) -> None:
        self._last: Tuple[Any, ...] = ()
        self._newest = 0

    def is_news(self, lock: Optional[LockState]) -> bool:
        """Records a lock (None if it is unknown), and returns whether it must be reported. If few nodes reply, the
        service may show a lock that was already released; such a lock has a smaller token, and is not reported."""
        now: Tuple[Any, ...] = (None,) if lock is None else (lock.held, lock.token)
        if lock is not None and lock.held:
            if now[1] < self._newest:
                return False
            self._newest = now[1]
        last, self._last = self._last, now
        return last != now


class Stream:
    """The bytes of an event stream."""

    def __init__(self) -> None:
        self.open = False
        self._data = b""

    def feed(self, data: bytes) -> bool:
        """Takes bytes as they arrive. Returns whether they contain an event, or the stream has just begun. Raises
        NoAnswer at the end of the stream, or if the response is not a stream."""
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
            return True  # the stream does not contain earlier events
        happened = b"event:" in self._data
        self._data = self._data[-6:]  # the beginning of the next event may have arrived
        if happened and self._data.startswith(b"event:"):
            self._data = b""
        return happened
