"""The conformance kit's driver (clients/conformance/README.md) of both clients:
python3 driver.py sync, or aio, or aio batches."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import json
import logging
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

import fencelock  # noqa: E402
import fencelock.aio  # noqa: E402

logging.getLogger("fencelock").addHandler(logging.NullHandler())  # what callbacks raise is logged


class Raised(Exception):
    """What a callback of the set-up raises."""


NAMES = [
    (fencelock.HeldError, "held"), (fencelock.LeaseLostError, "lost"), (fencelock.DeniedError, "denied"),
    (fencelock.UnavailableError, "unavailable"), (fencelock.FencelockError, "refused"), (ValueError, "refused"), (TypeError, "refused"),
]
FAILURES = (fencelock.FencelockError, Raised, ValueError, TypeError)


def say(**line):
    """Writes a line; any thread may."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def failure(error):
    cause = error
    while cause is not None:
        if isinstance(cause, Raised):
            return {"result": "raised", "message": str(error)}
        cause = cause.__cause__
    result = next(name for kind, name in NAMES if isinstance(error, kind))
    return {"result": result, "timed_out": isinstance(error, TimeoutError), "message": str(error)}


def broken(raises, of, value=None):
    """A callback whose calls raise as the set-up says; None if it has none of the name."""
    for each in raises:
        if each["callback"] == of:
            calls = iter(range(1, 1 << 60))

            def callback(*_):
                n, first, times = next(calls), each["from"], each.get("times") or 1 << 60
                if first <= n < first + times:
                    raise Raised(f"the {of}'s own error")
                return value

            return callback
    return None


def settings(setup):
    raises = setup.get("raises") or []
    return dict(
        servers=setup["servers"], timeout=setup["timeout_ms"] / 1000, patience=setup["patience_ms"] / 1000,
        bearer=broken(raises, "credential", "a-credential"), on_retry=broken(raises, "on_retry"),
    )


def options(order):
    ttl = order.get("ttl_ms")
    of = dict(ttl=ttl / 1000 if ttl else None, wait=order.get("wait_ms", 0) / 1000)
    for name in ("patience", "min_hold", "max_hold", "margin"):
        if order.get(name + "_ms") is not None:
            of[name] = order[name + "_ms"] / 1000
    if order.get("deadline_ms"):
        of["timeout"] = order["deadline_ms"] / 1000
    for name in ("slots", "holder"):
        if order.get(name) is not None:
            of[name] = order[name]
    return of


def resources(order):
    return order.get("resources") or order["resource"]


def acquired(lease):
    return {"result": "acquired", "token": lease.parts[0].token, "validity_ms": int(lease.validity * 1000)}


def work_options(setup, order):
    """Those of a lock whose loss is told by on_lost, if the order asks for it."""
    told = broken(setup.get("raises") or [], "on_lost")

    def on_lost(lease):
        say(event="on_lost")
        if told:
            told()

    return {**options(order), "on_lost": on_lost if order.get("on_lost") else None}


def give_up_after(order):
    """Has this thread interrupted, once or twice."""
    after, again = order.get("cancel_after_ms", 0), order.get("cancel_again_ms", 0)
    interrupts[0] = 2 if again else 1
    signal.setitimer(signal.ITIMER_REAL, after / 1000, again / 1000)


class Sync:
    def __init__(self, setup):
        self.setup, self.client, self.lease = setup, fencelock.Client(**settings(setup)), None

    def acquire(self, order):
        give_up_after(order)
        self.lease = None
        self.lease = self.client.acquire(resources(order), **options(order))
        return acquired(self.lease)

    def release(self, order):
        if self.lease is None:
            return {"result": "none"}
        self.lease.release()
        return {"result": "released"}

    def pause(self, order):
        time.sleep(order["work_ms"] / 1000)
        return {"result": "paused"}

    def term(self, lease, order):
        say(event="began")
        if order.get("busy_ms"):
            time.sleep(order["busy_ms"] / 1000)
            if lease.lost:
                say(event="notified")
        elif lease.wait_lost(order["work_ms"] / 1000):
            say(event="notified")
        say(event="ended")

    def work(self, order):
        closing = threading.Timer(order.get("close_after_ms", 0) / 1000, self.client.close)
        if order.get("close_after_ms"):
            closing.start()
        give_up_after(order)
        try:
            with self.client.lock(resources(order), **work_options(self.setup, order)) as lease:
                self.term(lease, order)
        finally:
            if order.get("close_after_ms"):
                closing.join()
        return {"result": "worked"}

    def elect(self, order):
        give_up_after(order)

        def lead(lease):
            self.term(lease, order)
            return "resigned"

        return {"result": self.client.elect(order["resource"], lead, **work_options(self.setup, order))}

    def burst(self, order):
        done, end = [], time.monotonic() + order["work_ms"] / 1000
        ttl, wait = order["ttl_ms"] / 1000, order.get("wait_ms", 0) / 1000
        with contextlib.ExitStack() as kept:
            leases = [kept.enter_context(self.client.lock(f"{order['resource']}/kept/{i}", ttl=ttl, wait=0)) for i in range(order["keep"])]
            start = threading.Barrier(order["calls"])

            def call(i):
                start.wait()
                try:
                    self.client.acquire(f"{order['resource']}/{i}", ttl=ttl, wait=wait).release()
                    done.append(i)
                except fencelock.FencelockError as e:
                    say(event="failed", message=str(e))

            threads = [threading.Thread(target=call, args=(i,)) for i in range(order["calls"])]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            time.sleep(max(0, end - time.monotonic()))
            live = sum(not lease.lost for lease in leases)
        return {"result": "burst", "done": len(done), "kept": live}

    def inside(self, order):
        with self.client.lock(order["resource"], ttl=order["ttl_ms"] / 1000):
            try:
                lease = self.client.acquire([order["resource"], "another"], wait=order["wait_ms"] / 1000)
            except fencelock.FencelockError as e:
                return failure(e)
            return {"result": "acquired", "token": lease.parts[0].token}

    def beside(self, order):
        def task():
            try:
                with self.client.lock(order["resource"], wait=order["wait_ms"] / 1000) as lease:
                    return {"result": "joined"} if lease is outer else {"result": "acquired", "token": lease.token}
            except fencelock.FencelockError as e:
                return failure(e)

        with concurrent.futures.ThreadPoolExecutor() as threads, self.client.lock(order["resource"], ttl=order["ttl_ms"] / 1000) as outer:
            return threads.submit(contextvars.copy_context().run, task).result()

    def close(self, order):
        self.client.close()
        return {"result": "closed"}

    def fork(self, order):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            lease = self.client.acquire(order["resource"], **options(order))
            lease.release()
            os.write(write, str(lease.token).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as f:
            return {"result": "forked", "token": int(f.read())}

    def obey(self, order):
        interrupts[0] = 0
        try:
            return getattr(self, order["do"])(order)
        except KeyboardInterrupt:
            return {"result": "cancelled"}
        except FAILURES as e:
            return failure(e)
        finally:
            interrupts[0] = 0  # a second one is of this call, or of none


interrupts = [0]  # that are still to come


def give_up(*_):
    """As Ctrl-C does."""
    interrupts[0] -= 1
    if interrupts[0] <= 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if interrupts[0] >= 0:
        raise KeyboardInterrupt


def run_sync(lines):
    signal.signal(signal.SIGALRM, give_up)
    for line in lines:
        order = json.loads(line)
        if "servers" in order:
            signal.setitimer(signal.ITIMER_REAL, 0)
            driver = Sync(order)
            say(result="ready")
        else:
            say(**driver.obey(order))


class Aio:
    def __init__(self, setup):
        batches = {"batch_after": 0} if sys.argv[2:] == ["batches"] else {}
        self.setup, self.client, self.lease = setup, fencelock.aio.Client(**settings(setup), **batches), None

    async def given_up(self, order, coroutine):
        """Runs a call that is cancelled, once or twice, as the order says."""
        task = asyncio.ensure_future(coroutine)
        if order.get("cancel_after_ms"):
            await asyncio.wait({task}, timeout=order["cancel_after_ms"] / 1000)
            task.cancel()
            if order.get("cancel_again_ms"):
                await asyncio.wait({task}, timeout=order["cancel_again_ms"] / 1000)
                task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return {"result": "cancelled"}

    async def acquire(self, order):
        self.lease = None

        async def take():
            self.lease = await self.client.acquire(resources(order), **options(order))
            return acquired(self.lease)

        return await self.given_up(order, take())

    async def release(self, order):
        if self.lease is None:
            return {"result": "none"}
        await self.lease.release()
        return {"result": "released"}

    async def pause(self, order):
        await asyncio.sleep(order["work_ms"] / 1000)
        return {"result": "paused"}

    async def term(self, lease, order):
        say(event="began")
        try:
            if order.get("busy_ms"):
                time.sleep(order["busy_ms"] / 1000)
                if lease.lost:
                    say(event="notified")
            else:
                await asyncio.sleep(order["work_ms"] / 1000)
        except asyncio.CancelledError:
            say(event="notified")
            raise
        finally:
            say(event="ended")

    async def work(self, order):
        async def work():
            async with self.client.lock(resources(order), **work_options(self.setup, order)) as lease:
                await self.term(lease, order)
            return {"result": "worked"}

        async def close():
            await asyncio.sleep(order["close_after_ms"] / 1000)
            await self.client.close()

        closing = asyncio.ensure_future(close()) if order.get("close_after_ms") else None
        try:
            return await self.given_up(order, work())
        finally:
            if closing:
                await closing

    async def elect(self, order):
        async def lead(lease):
            await self.term(lease, order)
            return "resigned"

        async def elect():
            return {"result": await self.client.elect(order["resource"], lead, **work_options(self.setup, order))}

        return await self.given_up(order, elect())

    async def burst(self, order):
        done, end = [], time.monotonic() + order["work_ms"] / 1000
        ttl, wait = order["ttl_ms"] / 1000, order.get("wait_ms", 0) / 1000
        leases, stop = [], asyncio.Event()

        async def keep(i):
            async with self.client.lock(f"{order['resource']}/kept/{i}", ttl=ttl, wait=0) as lease:
                leases.append(lease)
                await stop.wait()

        async def call(i):
            try:
                await (await self.client.acquire(f"{order['resource']}/{i}", ttl=ttl, wait=wait)).release()
                done.append(i)
            except fencelock.FencelockError as e:
                say(event="failed", message=str(e))

        kept = [asyncio.ensure_future(keep(i)) for i in range(order["keep"])]
        while len(leases) < order["keep"]:
            await asyncio.sleep(0.01)
        await asyncio.gather(*(call(i) for i in range(order["calls"])))
        await asyncio.sleep(max(0, end - time.monotonic()))
        live = sum(not lease.lost for lease in leases)
        stop.set()
        await asyncio.gather(*kept, return_exceptions=True)
        return {"result": "burst", "done": len(done), "kept": live}

    async def inside(self, order):
        async with self.client.lock(order["resource"], ttl=order["ttl_ms"] / 1000):
            try:
                lease = await self.client.acquire([order["resource"], "another"], wait=order["wait_ms"] / 1000)
            except fencelock.FencelockError as e:
                return failure(e)
            return {"result": "acquired", "token": lease.parts[0].token}

    async def beside(self, order):
        async def task():
            try:
                async with self.client.lock(order["resource"], wait=order["wait_ms"] / 1000) as lease:
                    return {"result": "joined"} if lease is outer else {"result": "acquired", "token": lease.token}
            except fencelock.FencelockError as e:
                return failure(e)

        async with self.client.lock(order["resource"], ttl=order["ttl_ms"] / 1000) as outer:
            return await asyncio.create_task(task())

    async def close(self, order):
        await self.client.close()
        return {"result": "closed"}

    async def fork(self, order):
        return {"result": "unsupported"}  # an event loop is of one process

    async def obey(self, order):
        try:
            return await getattr(self, order["do"])(order)
        except FAILURES as e:
            return failure(e)


async def run_aio(lines):
    drivers = []
    loop = asyncio.get_running_loop()
    while True:
        line = await loop.run_in_executor(None, next, lines, None)
        if line is None:
            break
        order = json.loads(line)
        if "servers" in order:
            drivers.append(Aio(order))
            say(result="ready")
        else:
            say(**await drivers[-1].obey(order))
    for driver in drivers:
        await driver.client.close()


if __name__ == "__main__":
    if sys.argv[1] == "sync":
        run_sync(iter(sys.stdin))
    else:
        asyncio.run(run_aio(iter(sys.stdin)))
