"""An exception from outside at any point: of a signal handler, a greenlet's kill, a cancelled task.

Each test counts the traced events (calls, lines, returns) of a with statement in this package, and runs it again for each of them with an exception there. Nothing that was granted is left then: not renewed, and not
held for the rest of its TTL."""

import asyncio
import gc
import importlib.util
import itertools
import os
import sys
import threading
import time
import unittest
import warnings

import fencelock
from fencelock import aio
from fencelock.testing import Service

PACKAGE = os.path.dirname(fencelock.__file__)
TTL = 10  # a lease that is renewed is found long after it


class Interrupt(BaseException):
    """What a signal handler raises."""


class Interrupter:
    """A trace function that calls ``interrupt`` at the n-th event in the code of ``inside`` and all that it calls. An event is
    counted only in the thread or greenlet in which it was installed."""

    def __init__(self, n, interrupt):
        self.n, self.interrupt = n, interrupt
        self.seen = 0

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None  # the standard library's own locks stand no exception
        self.seen += 1
        if self.seen == self.n:
            sys.settrace(None)
            self.interrupt()
        return self


def throw():
    raise Interrupt


def events_of(run):
    """How many events the run has that is not interrupted."""
    counter = Interrupter(-1, None)
    sys.settrace(counter)
    try:
        run()
    finally:
        sys.settrace(None)
    return counter.seen


class Interrupted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        warnings.simplefilter("ignore", ResourceWarning)  # an interrupted thread leaves its connection to the collector
        cls.addClassCleanup(warnings.simplefilter, "error", ResourceWarning)
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)

    def setUp(self):
        self.client = self.service.client()
        self.inspector = self.service.client()
        self.numbers = itertools.count()

    def name(self):
        return f"{self.id()}/{next(self.numbers)}"

    def left(self):
        return [lock.resource for lock in self.inspector.list(self.id())]

    def assert_nothing_is_left(self, ran):
        """None is renewed, and all but a few are released: a cancel may overtake the request that it cancels."""
        self.assertGreater(ran, 10)
        self.eventually_fewer_than(1 + ran // 50, 0.9 * TTL)
        self.eventually_fewer_than(1, 3 * TTL)

    def eventually_fewer_than(self, n, seconds):
        deadline = time.monotonic() + seconds
        while len(self.left()) >= n:
            if time.monotonic() > deadline:
                self.fail(f"{len(self.left())} leases are held: {self.left()[:5]}")
            self.wait()
            gc.collect()  # a task that failed, its exception and its frames refer to each other, and so to the statement's object

    def wait(self):
        time.sleep(0.05)

    def everywhere(self, run, interrupted=None):
        """Interrupts the run at each of its events, in turn."""
        run()  # what is done for the first time is done
        n = 0
        for n in range(1, events_of(run) + 1):
            self.once(run, n)
        self.assert_nothing_is_left(n)
        run()  # the client works as before

    def once(self, run, n):
        sys.settrace(Interrupter(n, throw))
        try:
            run()
        except Interrupt:
            pass
        finally:
            sys.settrace(None)

    def locks(self):
        with self.client.lock(self.name(), ttl=TTL):
            pass

    def test_a_lock(self):
        self.everywhere(self.locks)

    def test_an_acquire(self):
        def run():
            self.client.acquire(self.name(), ttl=TTL).release()

        run()
        n = 0
        for n in range(1, events_of(run) + 1):
            name = self.name()

            def once():
                lease = self.client.acquire(name, ttl=TTL)
                sys.settrace(None)  # from here on it is the caller's
                lease.release()

            self.once(once, n)
        self.assert_nothing_is_left(n)

    def test_a_lock_whose_block_was_interrupted(self):
        """The first exception leaves the block, the second comes at any point of the exit."""

        def block(tracer):
            try:
                with self.client.lock(self.name(), ttl=TTL):
                    sys.settrace(tracer)
                    raise KeyboardInterrupt
            except (KeyboardInterrupt, Interrupt):
                pass
            finally:
                sys.settrace(None)

        counter = Interrupter(-1, None)
        block(counter)
        for n in range(1, counter.seen + 1):
            block(Interrupter(n, throw))
        self.assert_nothing_is_left(counter.seen)

    def test_elections(self):
        self.everywhere(lambda: self.client.elect(self.name(), lambda lease: None, ttl=TTL))

    @unittest.skipUnless(importlib.util.find_spec("greenlet"), "NOT RUN: greenlet cannot be imported")
    def test_a_greenlet_that_is_killed(self):
        import greenlet

        def start(n):
            tracer = Interrupter(n, lambda: hub.switch())

            def job():
                sys.settrace(tracer)
                try:
                    self.locks()
                finally:
                    sys.settrace(None)

            hub = greenlet.getcurrent()
            job = greenlet.greenlet(job)
            job.switch()
            if not job.dead:
                job.throw()  # GreenletExit
            self.assertTrue(job.dead)
            return tracer.seen

        start(-1)
        n = 0
        for n in range(1, start(-1) + 1):
            start(n)
        self.assert_nothing_is_left(n)


class InterruptedOnAsyncio(Interrupted):
    """The same with the tasks of an event loop: the exception comes in the code of the task itself, at any of its events."""

    def setUp(self):
        super().setUp()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda loop, context: None)  # of tasks that nobody awaits
        self.aclient = self.service.aio_client()
        self.addCleanup(self.loop.close)
        self.addCleanup(lambda: self.loop.run_until_complete(self.aclient.close()))

    def in_a_task(self, coroutine, tracer):
        """Runs a coroutine whose own steps, and no other code of the loop, are traced."""

        class Traced:
            def __await__(self):
                inner = coroutine.__await__()
                value = None
                while True:
                    sys.settrace(tracer)
                    try:
                        step = inner.send(value) if not isinstance(value, BaseException) else inner.throw(value)
                    except StopIteration as end:
                        return end.value
                    finally:
                        sys.settrace(None)
                    try:
                        value = yield step
                    except BaseException as e:
                        value = e

        async def run():
            await Traced()

        return self.loop.run_until_complete(run())

    async def alock(self):
        async with self.aclient.lock(self.name(), ttl=TTL):
            await asyncio.sleep(0)

    def wait(self):
        """Gives the loop time for what is done in the background."""
        self.loop.run_until_complete(asyncio.sleep(0.05))

    def each(self, job):
        counter = Interrupter(-1, None)
        self.in_a_task(job(), counter)
        counter = Interrupter(-1, None)
        self.in_a_task(job(), counter)
        for n in range(1, counter.seen + 1):
            try:
                self.in_a_task(job(), Interrupter(n, throw))
            except Interrupt:
                pass
        self.assert_nothing_is_left(counter.seen)

    def test_a_lock(self):
        self.each(self.alock)

    def test_an_acquire(self):
        async def job():
            lease = await self.aclient.acquire(self.name(), ttl=TTL)
            sys.settrace(None)
            await lease.release()

        # The release is the caller's own affair.
        counter = Interrupter(-1, None)
        self.in_a_task(job(), counter)

        async def acquired_only():
            lease = await self.aclient.acquire(self.name(), ttl=TTL)
            sys.settrace(None)
            finish.append(lease)

        finish = []
        for n in range(1, counter.seen + 1):
            try:
                self.in_a_task(acquired_only(), Interrupter(n, throw))
            except Interrupt:
                pass
            while finish:  # at once: all of the runs may take longer than a TTL
                self.loop.run_until_complete(finish.pop().release())
        self.assert_nothing_is_left(counter.seen)

    def test_a_lock_whose_block_was_interrupted(self):
        tracers = []

        async def job():
            try:
                async with self.aclient.lock(self.name(), ttl=TTL):
                    tracers[-1].seen = 0
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                pass

        tracers.append(Interrupter(-1, None))
        self.in_a_task(job(), tracers[-1])
        for n in range(1, tracers[-1].seen + 1):
            tracers.append(Interrupter(-1, throw))
            tracer = tracers[-1]

            async def armed(tracer=tracer, n=n):
                try:
                    async with self.aclient.lock(self.name(), ttl=TTL):
                        tracer.seen, tracer.n = 0, n
                        raise KeyboardInterrupt
                except KeyboardInterrupt:
                    pass

            try:
                self.in_a_task(armed(), tracer)
            except Interrupt:
                pass
        self.assert_nothing_is_left(60)

    def test_elections(self):
        async def lead(lease):
            await asyncio.sleep(0)

        self.each(lambda: self.aclient.elect(self.name(), lead, ttl=TTL))

    test_a_greenlet_that_is_killed = None

    def test_a_task_that_is_cancelled_twice(self):
        async def job(began):
            async with self.aclient.lock(self.name(), ttl=TTL):
                began.set()
                await asyncio.sleep(60)

        async def run():
            for pause in range(60):  # turns of the loop between the two
                began = asyncio.Event()
                task = asyncio.ensure_future(job(began))
                await began.wait()
                task.cancel()
                for _ in range(pause // 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                self.assertTrue(task.cancelled())

        self.loop.run_until_complete(run())
        self.assert_nothing_is_left(60)


class Threads(unittest.TestCase):
    def test_a_thread_that_cannot_be_started(self):
        """The client survives it once: the lease in hand is kept or lost with a word, the next one is kept."""
        with Service() as service:
            client = service.client()
            start, failed = threading.Thread.start, []

            def once(thread):
                if thread.name.startswith("fencelock ") and not failed:
                    failed.append(thread.name)
                    raise RuntimeError("can't start new thread")
                start(thread)

            threading.Thread.start = once
            try:
                with client.lock("a", ttl=0.6) as lease:
                    self.assertFalse(lease.wait_lost(1.5))
                with client.lock("b", ttl=0.6) as lease:
                    self.assertFalse(lease.wait_lost(1.5))
            finally:
                threading.Thread.start = start
            self.assertEqual(len(failed), 1)
