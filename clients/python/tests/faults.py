"""A worker of the fault run (clients/faults): python3 faults.py sync|aio SERVERS DEPOSITS TTL"""

import asyncio
import collections
import json
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

import psycopg  # noqa: E402

import fencelock  # noqa: E402
from fencelock import aio  # noqa: E402
from fencelock.guard import fenced  # noqa: E402

KIND, SERVERS, WORKERS, TTL = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) / 1000
URL = os.environ["DATABASE_URL"]
ACCOUNTS = 5
STEP = 0.01  # seconds between two looks at the lease

errors = collections.Counter()
printing = threading.Lock()
ending = threading.Event()


def say(**line):
    with printing:
        print(json.dumps(line), flush=True)


def steps():
    """Most work is short; some outlives the TTL."""
    return int(random.choice((0.02, 0.1, 0.3, TTL * 1.5)) / STEP)


def new_id():
    return f"{os.getpid()}-{random.getrandbits(62):x}"


class Starved:
    """For how long threads of this process were ready to run and got no processor, as the kernel counts it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.pieces = collections.deque(maxlen=1000)  # (from, to, of which the thread that waited longest did)
        self.last = time.monotonic(), self.delays()

    @staticmethod
    def delays():
        delays = {}
        for thread in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{thread}/schedstat") as f:
                    delays[thread] = int(f.read().split()[1]) / 1e9
            except OSError:
                pass  # it has ended
        return delays

    def look(self):
        with self.lock:
            (since, before), self.last = self.last, (time.monotonic(), self.delays())
            now, after = self.last
            self.pieces.append((since, now, max(delay - before.get(thread, delay) for thread, delay in after.items())))

    def watch(self):
        while not ending.wait(2 * STEP):
            self.look()

    def within(self, begin, end):
        self.look()
        with self.lock:
            return sum(max(0, min(delay, min(b, end) - max(a, begin))) for a, b, delay in self.pieces)


starved = Starved()


def worked(account, begin, lease, at):
    end = time.monotonic()
    say(work=[account, begin, end, lease.until, starved.within(lease.until, end)], at=f"{KIND} {at}")


BALANCE = "SELECT balance FROM accounts WHERE id = %s"
DEPOSIT = "UPDATE accounts SET balance = %s WHERE id = %s"
EFFECT = "INSERT INTO effects (id, account) VALUES (%s, %s)"


class Call:
    """Tells by how much a call for a lease outlasted its wait."""

    def __init__(self):
        self.wait = random.choice((0, 5, 20))
        self.begin = time.monotonic()
        self.over = False

    def ended(self):
        if not self.over:
            self.over, end = True, time.monotonic()
            say(call=[end - self.begin - self.wait, starved.within(self.begin + self.wait, end)])


def deposit(client, conn):
    account = random.randint(1, ACCOUNTS)
    call = Call()
    try:
        with client.lock(f"accounts/{account}", ttl=TTL, wait=call.wait) as lease:
            call.ended()
            deposit_under(lease, account, conn)
    finally:
        call.ended()


def deposit_under(lease, account, conn):
    begin, at = time.monotonic(), "work"
    try:
        for _ in range(steps()):
            time.sleep(STEP)
            lease.check()
        id, at = new_id(), "claim"
        with fenced(conn, lease):
            at = "select"
            (balance,) = conn.execute(BALANCE, (account,)).fetchone()
            at = "write"
            conn.execute(EFFECT, (id, account))
            conn.execute(DEPOSIT, (balance + 1, account))
            at = "commit"
    finally:
        worked(account, begin, lease, at)
    say(effect=id)


async def adeposit(client, conn):
    account = random.randint(1, ACCOUNTS)
    call = Call()
    try:
        async with client.lock(f"accounts/{account}", ttl=TTL, wait=call.wait) as lease:
            call.ended()
            await adeposit_under(lease, account, conn)
    finally:
        call.ended()


async def adeposit_under(lease, account, conn):
    begin, at = time.monotonic(), "work"
    try:
        for _ in range(steps()):
            await asyncio.sleep(STEP)
        id, at = new_id(), "claim"
        async with aio.fenced(conn, lease):
            at = "select"
            (balance,) = await (await conn.execute(BALANCE, (account,))).fetchone()
            at = "write"
            await conn.execute(EFFECT, (id, account))
            await conn.execute(DEPOSIT, (balance + 1, account))
            at = "commit"
    finally:
        worked(account, begin, lease, at)
    say(effect=id)


def note(error):
    errors[type(error).__name__] += 1
    if isinstance(error, fencelock.RefusedError) or not isinstance(error, (fencelock.FencelockError, psycopg.OperationalError)):
        errors[f"unexpected: {error!r}"] += 1


def worker(client):
    conn = psycopg.connect(URL, autocommit=True)
    while not ending.is_set():
        try:
            deposit(client, conn)
        except Exception as e:
            note(e)
            time.sleep(0.01)
    conn.close()


def sockets():
    n = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            n += os.readlink(f"/proc/self/fd/{fd}").startswith("socket")
        except OSError:
            pass
    return n


def leaks(threads_before, sockets_before):
    end = time.monotonic() + 5
    while time.monotonic() < end and (threading.active_count() > threads_before or sockets() > sockets_before):
        time.sleep(0.05)
    return {"threads": threading.active_count() - threads_before, "sockets": sockets() - sockets_before}


def run_sync():
    client = fencelock.Client(SERVERS, timeout=2)
    threads = [threading.Thread(target=worker, args=(client,)) for _ in range(WORKERS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    client.close()


async def aworker(client):
    conn = await psycopg.AsyncConnection.connect(URL, autocommit=True)
    while not ending.is_set():
        try:
            await adeposit(client, conn)
        except Exception as e:
            note(e)
            await asyncio.sleep(0.01)
        if conn.closed:  # a task that is cancelled in a statement loses its connection
            conn = await psycopg.AsyncConnection.connect(URL, autocommit=True)
    await conn.close()


async def run_aio():
    client = aio.Client(SERVERS, timeout=2)
    tasks = [asyncio.create_task(aworker(client)) for _ in range(WORKERS)]
    while not ending.is_set():
        await asyncio.sleep(0.05)
    await asyncio.gather(*tasks)
    await client.close()
    left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for t in left:
        errors[f"unexpected: {t!r}"] += 1


def main():
    before = threading.active_count(), sockets()
    threading.Thread(target=starved.watch).start()
    threading.Thread(target=lambda: (sys.stdin.read(), ending.set()), daemon=True).start()
    if KIND == "sync":
        run_sync()
    else:
        asyncio.run(run_aio())
    say(errors=errors, leaks=leaks(*before))


main()
