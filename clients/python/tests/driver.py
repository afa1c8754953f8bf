"""The conformance kit's driver (clients/conformance/README.md) of both clients:
python3 driver.py sync, or aio, or aio batches."""

import asyncio
import concurrent.futures
import contextvars
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

import fencelock  # noqa: E402
import fencelock.aio  # noqa: E402

NAMES = [
    (fencelock.HeldError, "held"), (fencelock.LeaseLostError, "lost"), (fencelock.DeniedError, "denied"),
    (fencelock.UnavailableError, "unavailable"), (fencelock.FencelockError, "refused"),
]


def say(**line):
    print(json.dumps(line), flush=True)


def failure(error):
    return {"result": next(name for kind, name in NAMES if isinstance(error, kind)), "message": str(error)}


def settings(setup):
    return dict(servers=setup["servers"], timeout=setup["timeout_ms"] / 1000, patience=setup["patience_ms"] / 1000)


def options(order):
    ttl = order.get("ttl_ms")
    return dict(ttl=ttl / 1000 if ttl else None, wait=order.get("wait_ms", 0) / 1000)


def acquired(lease):
    return {"result": "acquired", "token": lease.token, "validity_ms": int(lease.validity * 1000)}


class Sync:
    def __init__(self, setup):
        self.client, self.lease = fencelock.Client(**settings(setup)), None

    def acquire(self, order):
        signal.setitimer(signal.ITIMER_REAL, order.get("cancel_after_ms", 0) / 1000)
        self.lease = self.client.acquire(order["resource"], **options(order))
        return acquired(self.lease)

    def release(self, order):
        self.lease.release()
        return {"result": "released"}

    def pause(self, order):
        time.sleep(order["work_ms"] / 1000)
        return {"result": "paused"}

    def work(self, order):
        with self.client.lock(order["resource"], **options(order)) as lease:
            say(event="began")
            if lease.wait_lost(order["work_ms"] / 1000):
                say(event="notified")
            say(event="ended")
        return {"result": "worked"}

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
        try:
            return getattr(self, order["do"])(order)
        except KeyboardInterrupt:
            return {"result": "cancelled"}
        except fencelock.FencelockError as e:
            return failure(e)


def give_up(*_):
    raise KeyboardInterrupt  # as Ctrl-C does


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
        self.client, self.lease = fencelock.aio.Client(**settings(setup), **batches), None

    async def acquire(self, order):
        taking = self.client.acquire(order["resource"], **options(order))
        try:
            self.lease = await asyncio.wait_for(taking, (order.get("cancel_after_ms") or 60_000) / 1000)
        except asyncio.TimeoutError:
            return {"result": "cancelled"}
        return acquired(self.lease)

    async def release(self, order):
        await self.lease.release()
        return {"result": "released"}

    async def pause(self, order):
        await asyncio.sleep(order["work_ms"] / 1000)
        return {"result": "paused"}

    async def work(self, order):
        async with self.client.lock(order["resource"], **options(order)):
            say(event="began")
            try:
                await asyncio.sleep(order["work_ms"] / 1000)
            except asyncio.CancelledError:
                say(event="notified")
                raise
            finally:
                say(event="ended")
        return {"result": "worked"}

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
        except fencelock.FencelockError as e:
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
