"""The service for the tests of an application, as one would use it."""

import asyncio
import importlib.util
import subprocess
import sys
import tempfile
import threading
import unittest

from fencelock import HeldError, LeaseLostError, Record
from fencelock.testing import Service

PLUGIN = """
pytest_plugins = ["fencelock.testing"]
"""
TEST = """
def test_it(fencelock_service):
    with fencelock_service.client().lock("a") as lease:
        assert lease.token == 1
"""


class Testing(unittest.TestCase):
    def setUp(self):
        self.service = self.enter(Service())
        self.client = self.service.client()

    def enter(self, context):
        self.addCleanup(context.__exit__, None, None, None)
        return context.__enter__()

    def test_an_end_is_noticed(self):
        with self.assertRaises(LeaseLostError):
            with self.client.lock("a", ttl=3600) as lease:
                self.service.end("a")
                self.assertTrue(lease.wait_lost(10))
        self.client.acquire("a", wait=0).release()
        with self.assertRaises(AssertionError):
            self.service.end("a")

    def test_a_lost_answer_is_not_a_lost_lease(self):
        self.service.lose_next_answer()
        lease = self.client.acquire("a", wait=0)
        self.service.lose_next_answer()
        lease.release()
        self.assertEqual(self.service.lost, 2)
        self.assertEqual(self.client.acquire("a", wait=0).token, 2)

    def test_what_another_holds_is_waited_for(self):
        other = self.service.hold("a")
        with self.assertRaises(HeldError) as caught:
            self.client.acquire("a", wait=0)
        self.assertEqual((caught.exception.holder, caught.exception.token), ("another process", other.token))
        got = []
        waiter = threading.Thread(target=lambda: got.append(self.client.acquire("a").token))
        waiter.start()
        self.service.await_waiters("a")
        self.assertEqual(self.client.inspect("a").waiters, 1)
        other.release()
        waiter.join(10)
        self.assertEqual(got, [2])

    def test_records(self):
        lease = self.client.acquire("a")
        self.assertEqual(self.client.read_record("a"), Record("a"))
        self.client.claim_record(lease)
        self.assertEqual(self.client.write_record(lease, [1]), Record("a", 1, [1], 1))
        self.assertEqual([a.kind for a in self.client.history("a")], ["write", "claim"])

    def test_on_asyncio(self):
        async def run():
            async with self.service.aio_client() as client:
                async with client.lock(["a", "b"]) as lease:
                    self.assertEqual([p.token for p in lease.parts], [1, 2])
                    with self.assertRaises(HeldError):
                        await client.acquire("b", wait=0)

        asyncio.run(run())

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "NOT RUN: pytest cannot be imported")
    def test_the_fixture(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("conftest.py", PLUGIN), ("test_it.py", TEST)):
                with open(f"{folder}/{name}", "w") as file:
                    file.write(text)
            done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
