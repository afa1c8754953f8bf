"""Both clients over TLS: python3 tls.py URL CERTIFICATE"""

import asyncio
import os
import ssl
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))

import fencelock  # noqa: E402
from fencelock import aio  # noqa: E402

URL, CERTIFICATE = sys.argv[1:]
NAME = f"tls/{os.getpid()}"  # nothing else waits for it: a wait of five seconds probes, on a second connection
trusting = ssl.create_default_context(cafile=CERTIFICATE)


def unavailable(take):
    try:
        take()
    except fencelock.UnavailableError as e:
        assert "certificate" in str(e), e
    else:
        raise AssertionError("a server was trusted that nobody vouches for")


with fencelock.Client(URL, ssl_context=trusting) as client:
    with client.lock(NAME, ttl=4) as lease:
        assert not lease.wait_lost(4.5)  # it was extended
    with client.lock(NAME):
        pass
    (idle,) = client._connections()._idle.values()
    assert len(idle) == 1, f"connections were not used again: {idle}"
    held = client.acquire(NAME)
    begun = time.monotonic()
    try:
        client.acquire(NAME, wait=6)  # longer than until the first probe
    except fencelock.HeldError:
        assert time.monotonic() - begun > 5.9
    else:
        raise AssertionError("two leases of one resource")
    held.release()
with fencelock.Client(URL, patience=0) as stranger:
    unavailable(lambda: stranger.acquire(NAME))


async def main():
    async with aio.Client(URL, ssl_context=trusting) as client:
        async with client.lock(NAME, ttl=4):
            await asyncio.sleep(4.5)
        async with client.lock(NAME):
            pass
        (idle,) = client._connections._idle.values()
        assert len(idle) == 1, f"connections were not used again: {idle}"


asyncio.run(main())
print("fine")
