"""What a pair costs beside a bare loop over http.client: python3 speed.py URL ROUNDS PAIRS

Rounds alternate, so that a busy machine is busy for both. It prints the medians of the
rounds' ratios by the clock and by this process's processor time, as JSON."""

import asyncio
import http.client
import json
import os
import secrets
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

import fencelock  # noqa: E402
from fencelock import aio  # noqa: E402

URL, ROUNDS, PAIRS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BODY = json.dumps({"resource": "speed/bare", "ttl_ms": 10000}).encode()


def bare(conn):
    """What a program without a client sends, and what it has to read. It does not wait in the queue, which costs the service more."""
    conn.request("POST", "/locks", BODY, {"Content-Type": "application/json", "Idempotency-Key": secrets.token_urlsafe(24)})
    lease = json.loads(conn.getresponse().read())
    conn.request("DELETE", "/leases/current", headers={"Fencelock-Lease": lease["lease_id"]})
    conn.getresponse().read()


def pair(client):
    client.acquire("speed/pair", ttl=10, wait=0).release()


def lock(client):
    with client.lock("speed/lock", ttl=10, wait=0):
        pass


def spent():
    """Seconds by the clock, and of this process's processor time."""
    return time.perf_counter(), time.process_time()


def since(begun):
    return [(now - then) / PAIRS for now, then in zip(spent(), begun)]


def timed(run, arg):
    begun = spent()
    for _ in range(PAIRS):
        run(arg)
    return since(begun)


async def aio_round(client):
    begun = spent()
    for _ in range(PAIRS):
        async with client.lock("speed/aio", ttl=10, wait=0):
            pass
    return since(begun)


def main():
    conn = http.client.HTTPConnection(URL.partition("//")[2])
    client = fencelock.Client(URL)
    aclient = aio.Client(URL)
    loop = asyncio.new_event_loop()
    rounds = {"bare": [], "pair": [], "lock": [], "aio": []}
    for n in range(ROUNDS + 1):
        took = {"bare": timed(bare, conn), "pair": timed(pair, client), "lock": timed(lock, client), "aio": loop.run_until_complete(aio_round(aclient))}
        if n > 0:  # the first warms up
            for name, each in took.items():
                rounds[name].append(each)
    said = {"microseconds": {}, "ratios": {}}
    for i, by in enumerate(("clock", "processor")):
        for name, each in rounds.items():
            said["microseconds"][f"{name} by {by}"] = round(statistics.median(took[i] for took in each) * 1e6)
            if name != "bare":
                said["ratios"][f"{name} by {by}"] = round(statistics.median(x[i] / b[i] for x, b in zip(each, rounds["bare"])), 3)
    loop.run_until_complete(aclient.close())
    loop.close()
    print(json.dumps(said))


main()
