"""Calls that tasks make at the same time share requests, because most of a call's cost is its request.

While few requests are under way to a server, each call is sent at once. Beyond that, acquires that do not wait in the
queue, extends and releases gather. They are sent as one POST /locks/batch when a request under way gets its response,
or after a few milliseconds. For its caller, a call in a batch is like a call that is sent alone: it has its own key,
time limit and outcome. A caller that gives up leaves the batch, which continues for the others; what that caller was
granted is ended after the batch's response. When all callers have left, the request is cancelled. If a server, or a
proxy, refuses a batch as a whole, single requests are sent for a minute.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Awaitable, Callable, Dict, List, Optional, Set

from ._http import Answer
from ._steps import NoAnswer, Operation, Send, Server, batch

AFTER = 2  # the default of batch_after: how many requests may be under way before calls gather
_GATHER_AT_MOST = 0.005  # seconds; short compared with a response
MOST = 128  # operations in a batch
_MAX_BYTES = 60 << 10  # of a batch's body; a server accepts 64 KiB
_NO_BATCHES_FOR = 60.0  # seconds

Late = List["asyncio.Future[Answer]"]  # the outcomes of calls whose callers have left


class _Batch:
    """One batch under way."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting  # callers that have not left
        self.task: Optional["asyncio.Task[None]"] = None


class _Gathered:
    """A call that waits for a batch, or is part of one."""

    def __init__(self, operation: Operation, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        self.operation, self.deadline = operation, deadline
        self.batch: Optional[_Batch] = None  # None until it is sent
        self.outcome: "asyncio.Future[Optional[Answer]]" = loop.create_future()  # the response; None means that the call is to be sent alone, and is counted as under way
        self.result: Any = None  # its result in the batch: an Answer, or an error
        self.late: Optional["asyncio.Future[Answer]"] = None  # gets the result if the caller has left

    def settle(self, result: Any) -> None:
        """Records the call's result in the batch, and passes it to the caller that waits for it."""
        self.result = result
        future: Any = self.late if self.outcome.done() else self.outcome
        if future is None:
            return
        if isinstance(result, Exception):
            future.set_exception(result)
            if future is self.late:
                future.exception()  # marks the error as read, because its call may have ended
        else:
            future.set_result(result)


class Batcher:
    """Gathers the calls of one event loop to one server."""

    def __init__(self, server: Server, after: int, send: Callable[[Send], Awaitable[Answer]]) -> None:
        self._server, self._after, self._send = server, after, send
        self._under_way = 0  # requests under way, each with one call or several
        self._waiting: List[_Gathered] = []
        self._timer: Optional[asyncio.TimerHandle] = None
        self._refused = 0.0  # no batch is sent before this time
        self._tasks: Set["asyncio.Task[None]"] = set()

    async def send(self, request: Send) -> Answer:
        """Sends a request of a kind that gathers, alone or in a batch."""
        operation = request.operation() if 0 <= self._after <= self._under_way and time.monotonic() >= self._refused else None
        if operation is None:
            self._under_way += 1
        else:
            deadline = time.monotonic() + request.limit
            answer = await self._gather(request, operation, deadline)
            if answer is not None:
                return answer
            request = request.within(deadline - time.monotonic())
        try:
            return await self._send(request)
        finally:
            self._ended()

    async def _gather(self, request: Send, operation: Operation, deadline: float) -> Optional[Answer]:
        loop = asyncio.get_running_loop()
        call = _Gathered(operation, deadline, loop)
        self._waiting.append(call)
        if len(self._waiting) == 1:
            if self._timer:
                self._timer.cancel()
            self._timer = loop.call_later(_GATHER_AT_MOST, self._flush)
        limit = loop.call_later(request.limit, self._leave, call, request.late)
        try:
            return await call.outcome
        except asyncio.CancelledError:
            if not call.outcome.cancelled() and call.outcome.exception() is None and call.outcome.result() is None:
                self._ended()  # it was about to be sent alone, and is counted
            self._leave(call, request.late)
            raise
        finally:
            limit.cancel()

    def _flush(self) -> None:
        while self._waiting:
            self._send_next()

    def _ended(self) -> None:
        """Records that a request is not under way any more."""
        self._under_way -= 1
        while self._waiting and self._under_way < self._after:
            self._send_next()

    def _send_next(self) -> None:
        """Sends the first waiting call, together with all others that fit into its batch."""
        self._waiting = [call for call in self._waiting if not call.outcome.done()]  # drops calls whose task was cancelled but has not run since
        if not self._waiting:
            return
        calls: List[_Gathered] = []
        rest: List[_Gathered] = []
        size, credential = 0, self._waiting[0].operation.credential
        for call in self._waiting:
            more = len(call.operation.text) + 1
            if len(calls) < MOST and call.operation.credential == credential and size + more <= _MAX_BYTES:
                calls.append(call)
                size += more
            else:
                rest.append(call)
        self._waiting = rest
        self._under_way += 1
        if len(calls) == 1 and self._after > 0:
            calls[0].outcome.set_result(None)
            return
        batch = _Batch(len(calls))
        for call in calls:
            call.batch = batch
        batch.task = asyncio.get_running_loop().create_task(self._perform(calls))
        self._tasks.add(batch.task)
        batch.task.add_done_callback(self._tasks.discard)

    def _leave(self, call: _Gathered, late: Optional[Late]) -> None:
        """Records that the caller has given up, or that its time is over."""
        if call.outcome.done() and not call.outcome.cancelled():
            return
        batch = call.batch
        if not call.outcome.done():
            call.outcome.set_exception(NoAnswer("no response in time", batch is not None))
        if batch is None:
            self._waiting = [other for other in self._waiting if other is not call]
            return
        batch.waiting -= 1
        if batch.waiting == 0 and batch.task:
            batch.task.cancel()
        elif late is not None:
            call.late = asyncio.get_running_loop().create_future()
            late.append(call.late)
            if call.result is not None:
                call.settle(call.result)

    async def _perform(self, calls: List[_Gathered]) -> None:
        """Sends a batch, and gives each call its outcome."""
        limit = max(call.deadline for call in calls) - time.monotonic()  # after this time all callers have left
        try:
            answer = await self._send(batch(self._server, [call.operation for call in calls], limit + 1))
        except asyncio.CancelledError:
            for call in calls:
                call.settle(NoAnswer("the request was given up", True))
            raise
        except Exception as e:
            for call in calls:
                call.settle(e)
        else:
            results = _results(answer, len(calls))
            if results is None and _refuses_batches(answer.status):
                self._refused = time.monotonic() + _NO_BATCHES_FOR
                for call in calls:
                    if call.outcome.done():
                        call.settle(NoAnswer("it was not done", False))
                    else:
                        self._under_way += 1
                        call.outcome.set_result(None)
                return
            for i, call in enumerate(calls):
                call.settle(_of(answer, results[i] if results is not None else None))
        finally:
            self._ended()


def _results(answer: Answer, n: int) -> Optional[List[Dict[str, Any]]]:
    """The results of a batch of n operations; None if the response is not that of a batch."""
    if answer.status != 200:
        return None
    try:
        results = json.loads(answer.body)["results"]
        return results if len(results) == n and all(isinstance(each["status"], int) for each in results) else None
    except (ValueError, LookupError, TypeError):
        return None


def _of(answer: Answer, result: Optional[Dict[str, Any]]) -> Answer:
    """One result as the response to a single request. If the batch's response has no results, it is the response to
    each call."""
    if result is None:
        return answer if answer.status >= 300 else Answer(200, answer.headers, b"")
    headers = answer.headers
    if "retry_after_s" in result:
        headers = {**headers, "retry-after": str(result["retry_after_s"])}
    body = result.get("body")
    return Answer(result["status"], headers, b"", body if isinstance(body, dict) else {})


def _refuses_batches(status: int) -> bool:
    """Whether a status refuses the batch itself: an older server, or a proxy, does not know the route or does not
    accept the body. Then no operation was done."""
    return 400 <= status < 500 and status not in (401, 408, 429) or status == 501
