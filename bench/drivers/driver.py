"""Workers that acquire and release through fencelock's Python client, driven by the benchmark.

The first line of standard input says what to do: {"url", "ttl_ms", "resources"}, a worker for
each resource, and is answered by "ready". The line "measure" starts the count, "stop" ends it; the
last line of standard output has the times in microseconds.
"""

import asyncio
import json
import sys
import threading
import time
from typing import Any, Dict, List

import fencelock
from fencelock import aio


class Record:
    """What all workers saw."""

    def __init__(self) -> None:
        self.measuring = self.stopped = False
        self.acquires: List[int] = []
        self.pairs: List[int] = []
        self.busy = self.failed = 0
        self.error = ""

    def turned(self, begin: int, acquired: int, released: int) -> None:
        if self.measuring and not self.stopped:
            self.acquires.append((acquired - begin) // 1000)
            self.pairs.append((released - begin) // 1000)

    def lost(self, error: Exception) -> None:
        if isinstance(error, fencelock.HeldError):
            self.busy += 1 if self.measuring else 0
            return
        self.failed += 1 if self.measuring else 0
        self.error = self.error or repr(error)

    def listen(self) -> None:
        """Follows the benchmark's lines."""
        for line in sys.stdin:
            self.measuring = self.measuring or line.strip() == "measure"
            self.stopped = self.stopped or line.strip() == "stop"
        self.stopped = True

    def report(self) -> None:
        names = {"acquires": self.acquires, "pairs": self.pairs, "busy": self.busy, "failed": self.failed, "error": self.error}
        print(json.dumps(names), flush=True)


async def in_tasks(job: Dict[str, Any], record: Record) -> None:
    async with aio.Client(job["url"]) as locks:

        async def work(resource: str) -> None:
            while not record.stopped:
                begin = time.monotonic_ns()
                try:
                    lease = await locks.acquire(resource, ttl=job["ttl_ms"] / 1000, wait=0)
                    acquired = time.monotonic_ns()
                    await lease.release()
                    record.turned(begin, acquired, time.monotonic_ns())
                except fencelock.FencelockError as error:
                    record.lost(error)

        await asyncio.gather(*(work(resource) for resource in job["resources"]))


def in_threads(job: Dict[str, Any], record: Record) -> None:
    locks = fencelock.Client(job["url"])

    def work(resource: str) -> None:
        while not record.stopped:
            begin = time.monotonic_ns()
            try:
                lease = locks.acquire(resource, ttl=job["ttl_ms"] / 1000, wait=0)
                acquired = time.monotonic_ns()
                lease.release()
                record.turned(begin, acquired, time.monotonic_ns())
            except fencelock.FencelockError as error:
                record.lost(error)

    threads = [threading.Thread(target=work, args=(resource,)) for resource in job["resources"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    locks.close()


def main() -> None:
    job, record = json.loads(sys.stdin.readline()), Record()
    print("ready", flush=True)
    threading.Thread(target=record.listen, daemon=True).start()
    if sys.argv[1] == "threads":
        in_threads(job, record)
    else:
        asyncio.run(in_tasks(job, record))
    record.report()


main()
