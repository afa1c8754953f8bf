"""The queue in which the calls of an event loop wait for connections."""

from __future__ import annotations

import asyncio
import collections
import math
from typing import Deque


class Lane:
    """Lets a number of requests through at once; the others queue, first come, first served."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.reset()

    def reset(self) -> None:
        """Forgets the requests of another event loop."""
        self._free = self._size
        self._queue: Deque["asyncio.Future[None]"] = collections.deque()

    @property
    def crowded(self) -> bool:
        """Whether most of the turns are taken."""
        return self._free < self._size // 2

    async def take(self, limit: float = math.inf) -> bool:
        """Waits for a turn for at most ``limit`` seconds. Returns whether it got one."""
        if self._free > 0:
            self._free -= 1
            return True
        turn: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await asyncio.wait({turn}, timeout=None if limit == math.inf else limit)
        except BaseException:
            if turn.done():
                self.give()  # it had just got the turn
            turn.cancel()
            raise
        if turn.done():
            return True
        turn.cancel()
        return False

    def give(self) -> None:
        """Ends a turn. The next call in the queue gets it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
