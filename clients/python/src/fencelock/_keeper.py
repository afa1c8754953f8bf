"""Keeps the leases of with statements alive in threads of its own, and ends leases that have no owner any more.

One thread, the clerk, knows what is due and waits for it. Requests are sent by its hands: threads that it starts when
something is due, at most HANDS of them. They end when nothing is due. If the system cannot start a thread, the clerk
does the work itself, which takes longer but loses no lease.
"""

from __future__ import annotations

import atexit
import collections
import math
import os
import queue
import threading
import time
import weakref
from typing import Any, Callable, Deque, List, Optional, Set, Tuple

from ._acquisition import Acquisition
from ._connections import HANDS, Stop, Stopped
from ._core import _log, Protocol
from ._steps import Steps
from ._tenure import Owner, Tenure
from ._times import GRACE
from .errors import ClosedError

_LINGER = 10.0  # seconds for which the clerk waits for the next lease before it ends
_ENDING = HANDS // 2  # how many hands may end leases at once; the others are kept for renewals
_AGAIN = 0.1  # seconds after which a renewal continues that raised an unexpected exception
_AT_EXIT = 0.3  # seconds that the end of the process waits for background work

Advance = Callable[[Steps[Any], Optional[Stop]], Tuple[bool, Any]]
Job = Tuple[Callable[["Kept"], None], "Kept"]


class Kept(Tenure):
    """A tenure of the client with threads."""

    def __init__(self, acquisition: Acquisition, owner: object, gone: Callable[[Any], object]) -> None:
        super().__init__(acquisition, owner, gone)
        self.stop = Stop()  # stops its renewal
        self.running = threading.Lock()  # held by the hand that renews it
        self.noticed, self.ended = Latch(), Latch()  # opened when the lease is lost; opened when the service has nothing any more
        self.steps: Optional[Steps[str]] = None  # the steps of its renewal
        self.ending = False  # a hand ends it, or is going to


class Latch:
    """Opens once, for any number of waiting threads. An exception in one of them does not break it for the others."""

    def __init__(self) -> None:
        self._closed = threading.Lock()
        self._closed.acquire()
        self._opened = False

    def open(self) -> None:
        if not self._opened:
            self._opened = True
            self._closed.release()

    def wait(self, seconds: float) -> bool:
        if not self._opened and self._closed.acquire(timeout=max(0.0, seconds)):
            self._closed.release()
        return self._opened


class Keeper:
    """The tenures of a client in one process."""

    def __init__(self, protocol: Protocol, advance: Advance) -> None:
        self.pid = os.getpid()
        self._protocol, self._advance = protocol, advance
        self._tenures: Set[Kept] = set()  # changed only by single operations, and read in copies
        self._lock = threading.RLock()  # guards everything below, for clerk and hands; reentrant, because an object that is collected meanwhile may take it again
        self._renewals: Deque[Kept] = collections.deque()
        self._endings: Deque[Kept] = collections.deque()
        self._hands = self._ending = 0  # the number of working hands, and of leases that are being ended
        self._threads: List[threading.Thread] = []  # the hands' threads, including some that have just ended
        self._clerk: Optional[threading.Thread] = None
        self._wakes = math.inf  # when the clerk wakes
        self._closed = False
        # Messages to the clerk: an owner that is gone, a tenure to end, or None to look again. A put is safe at any point of any thread.
        self._mail: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        _all.add(self)

    # What the threads of the application call

    def begin(self, acquisition: Acquisition, owner: object) -> Kept:
        """Registers an acquisition before its first request."""
        if self._closed:
            raise ClosedError("this client is closed")
        tenure = Kept(acquisition, owner, self._mail.put)
        self._tenures.add(tenure)
        self._start()
        return tenure

    def keep(self, tenure: Kept) -> None:
        """Extends the granted lease until its last owner leaves."""
        assert tenure.grant
        due = self._protocol.first_extend(tenure.grant)
        tenure.steps, tenure.due = self._protocol.keep(tenure.grant), due
        self._start()
        if due < self._wakes:
            self._mail.put(None)

    def stop(self, tenure: Kept) -> None:
        """Stops the renewal. After it returns, the renewal sends nothing."""
        tenure.due = math.inf
        tenure.stop.set()
        if tenure.running.acquire(timeout=GRACE):  # a hand may still be connecting
            tenure.running.release()

    def settle(self, tenure: Kept) -> None:
        """Forgets a tenure for which the service has nothing any more."""
        self._tenures.discard(tenure)
        tenure.settle()
        tenure.ended.open()

    def end_later(self, tenure: Kept) -> None:
        """Ends a tenure in the background, whatever the service has for it."""
        self._mail.put(tenure)

    def finish(self, deadline: float) -> None:
        """Waits until every tenure without an owner has been ended, at most until the deadline."""
        while time.monotonic() < deadline:
            busy = [tenure for tenure in list(self._tenures) if tenure.ending or not tenure.owned]
            if not busy or self._clerk is None:
                return
            busy[0].ended.wait(deadline - time.monotonic())

    def close(self) -> None:
        """Ends every lease, and then the threads. The work under the leases is notified of the loss. It takes a
        second at most."""
        deadline = time.monotonic() + GRACE
        self._closed, clerk = True, self._clerk
        self._mail.put(None)
        self._join(clerk, deadline)
        for hand in self._threads:  # no hand is started after the clerk has ended
            self._join(hand, deadline)

    @staticmethod
    def _join(thread: Optional[threading.Thread], deadline: float) -> None:
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        """Starts the clerk. If the system cannot start a thread, the next call tries again, and the clerk then
        catches up. Two clerks do no harm, because a lock guards what they share."""
        if self._clerk is not None:
            return
        clerk = threading.Thread(target=self._work_as_clerk, name="fencelock keeper", daemon=True)
        try:
            clerk.start()
        except RuntimeError:
            return
        self._clerk = clerk

    # The clerk

    def _work_as_clerk(self) -> None:
        idle = False
        while True:
            try:
                with self._lock:
                    self._queue_what_is_due()
                    wait = min(self._wakes - time.monotonic(), _LINGER)
                if not self._tenures and (idle or self._closed):
                    self._clerk = None
                    if self._tenures:
                        self._start()  # a tenure that was added meanwhile found this clerk, and started none
                    return
                self._hire()
                try:
                    self._read(self._mail.get(timeout=max(0.0, wait)))
                    while not self._mail.empty():
                        self._read(self._mail.get())
                    idle = False
                except queue.Empty:
                    idle = True
            except Exception:  # a bug must not end the renewals
                _log.exception("the keeper of fencelock goes on after")
                time.sleep(_AGAIN)

    def _queue_what_is_due(self) -> None:
        now = time.monotonic()
        self._wakes = math.inf  # a lease that is kept from now on sends a message
        tenures = list(self._tenures)
        for tenure in tenures:
            if self._closed and tenure.grant is not None and not tenure.ending:
                self._to_end(tenure)
            elif tenure.due <= now:
                tenure.due = math.inf
                self._renewals.append(tenure)
        self._wakes = min((tenure.due for tenure in tenures), default=math.inf)

    def _read(self, message: Any) -> None:
        with self._lock:
            if isinstance(message, Kept):
                self._to_end(message)
            elif isinstance(message, Owner) and isinstance(message.tenure, Kept) and message.tenure.orphaned:
                self._to_end(message.tenure)

    def _to_end(self, tenure: Kept) -> None:
        if tenure in self._tenures and not tenure.ending:
            tenure.ending, tenure.due = True, math.inf
            self._endings.append(tenure)

    def _hire(self) -> None:
        while self._hands < HANDS:
            job = self._next_job()
            if job is None:
                return
            with self._lock:
                self._hands += 1
            hand = threading.Thread(target=self._work_as_hand, args=(job,), name="fencelock hand", daemon=True)
            try:
                hand.start()
            except RuntimeError:
                self._work_as_hand(job)
            else:
                self._threads = [thread for thread in self._threads if thread.is_alive()] + [hand]

    def _next_job(self) -> Optional[Job]:
        with self._lock:
            if self._renewals:
                return self._renew, self._renewals.popleft()
            if self._endings and self._ending < _ENDING:
                self._ending += 1
                return self._end, self._endings.popleft()
            return None

    # Its hands

    def _work_as_hand(self, job: Optional[Job]) -> None:
        while job is not None:
            do, tenure = job
            do(tenure)
            job = self._next_job()
        with self._lock:
            self._hands -= 1
            if self._renewals or self._endings:
                self._mail.put(None)  # these jobs came after this hand had looked for its next one

    def _renew(self, tenure: Kept) -> None:
        """Continues the renewal of a lease until its next pause."""
        if tenure.orphaned:
            return self.end_later(tenure)
        if not tenure.owned:
            return None
        with tenure.running:
            if tenure.stop.is_set():
                return
            assert tenure.grant and tenure.steps
            try:
                lost, value = self._advance(tenure.steps, tenure.stop)
            except Stopped:
                return
            except BaseException:  # a bug, or an application's function that ends its thread: it counts as a failed try
                _log.exception("a renewal of fencelock goes on after")
                tenure.steps = self._protocol.keep(tenure.grant)
                lost, value = False, _AGAIN
        if lost:
            self._lose(tenure, value)
            return
        with self._lock:
            tenure.due = time.monotonic() + value
            if tenure.stop.is_set():
                tenure.due = math.inf
            elif tenure.due < self._wakes:
                self._mail.put(None)

    def _lose(self, tenure: Kept, why: str) -> None:
        """Records a loss, and notifies everyone who works under the lease."""
        assert tenure.grant
        tell = [owner._observer() for owner in tenure.owners()]  # an owner that leaves from now on is notified, too
        tenure.grant.gone = tenure.grant.gone or why
        tenure.noticed.open()
        for observer in tell:
            try:
                observer()
            except BaseException:
                _log.exception("an observer of fencelock raised")

    def _end(self, tenure: Kept) -> None:
        """Ends everything that the service has for a tenure. If that keeps failing, the TTL ends the lease."""
        try:
            self.stop(tenure)
            if tenure.grant is not None:
                self._lose(tenure, "this client was closed" if self._closed else "its with statement was broken off")
                self._finish(self._protocol.finish_later(tenure.grant))
            elif tenure.acquisition.in_doubt():
                self._finish(tenure.acquisition.abandon())
        except BaseException as e:
            if not isinstance(e, ClosedError):
                _log.exception("a lease of fencelock is left to its TTL after")
        finally:
            self.settle(tenure)
            with self._lock:
                self._ending -= 1
                self._mail.put(None)

    def _finish(self, steps: Steps[None]) -> None:
        done, seconds = self._advance(steps, None)
        while not done:
            time.sleep(seconds)
            done, seconds = self._advance(steps, None)


_all: "weakref.WeakSet[Keeper]" = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
    deadline = time.monotonic() + _AT_EXIT
    for keeper in list(_all):
        if keeper.pid == os.getpid():
            keeper.finish(deadline)
