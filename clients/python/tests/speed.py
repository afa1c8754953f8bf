"""What a pair costs beside a bare loop over http.client: python3 speed.py URL ROUNDS PAIRS

Rounds alternate, so that a busy machine is busy for both. It prints the ratio of the
medians of the rounds, as JSON."""

import asyncio
import http.client
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

import fencelock  # noqa: E402
from fencelock import aio  # noqa: E402

URL, ROUNDS, PAIRS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BODY = json.dumps({"resource": "speed/bare", "ttl_ms": 10000}).encode()


def bare(conn):
    """What a program without a client sends, and what it has to read."""
    conn.request("POST", "/locks", BODY, {"Content-Type": "application/json"})
    lease = json.loads(conn.getresponse().read())
    conn.request("DELETE", "/leases/current", headers={"Fencelock-Lease": lease["lease_id"]})
    conn.getresponse().read()


def pair(client):
    client.acquire("speed/pair", ttl=10).release()


def lock(client):
    with client.lock("speed/lock", ttl=10):
        pass


def timed(run, arg):
    begun = time.perf_counter()
    for _ in range(PAIRS):
        run(arg)
    return (time.perf_counter() - begun) / PAIRS


async def aio_round(client):
    begun = time.perf_counter()
    for _ in range(PAIRS):
        async with client.lock("speed/aio", ttl=10):
            pass
    return (time.perf_counter() - begun) / PAIRS


def main():
    conn = http.client.HTTPConnection(URL.partition("//")[2])
    client = fencelock.Client(URL)
    aclient = aio.Client(URL)
    loop = asyncio.new_event_loop()
    rounds = {"bare": [], "pair": [], "lock": [], "aio": []}
    for n in range(ROUNDS + 1):
        took = {"bare": timed(bare, conn), "pair": timed(pair, client), "lock": timed(lock, client), "aio": loop.run_until_complete(aio_round(aclient))}
        if n > 0:  # the first warms up
            for name, seconds in took.items():
                rounds[name].append(seconds)
    medians = {name: statistics.median(each) for name, each in rounds.items()}
    ratios = {name: statistics.median([x / b for x, b in zip(rounds[name], rounds["bare"])]) for name in rounds}
    loop.run_until_complete(aclient.close())
    loop.close()
    print(json.dumps({"microseconds": {n: round(s * 1e6) for n, s in medians.items()}, "ratios": {n: round(r, 3) for n, r in ratios.items()}}))


main()
