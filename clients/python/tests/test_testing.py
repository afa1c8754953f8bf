"""The service for the tests of an application, as one would use it. FENCELOCK_PROGRAM names the program."""

import asyncio
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

from fencelock import HeldError, LeaseLostError, Record, RefusedError
from fencelock.testing import Service

PLUGIN = """
pytest_plugins = ["fencelock.testing"]
"""
TEST = """
def test_it(fencelock_service):
    with fencelock_service.client().lock("a") as lease:
        assert lease.token > 0
"""

DOCKER = """#!/bin/sh
[ "$1 $2 $3 $4 $5 $6" = "run --rm --network host --tmpfs /tmp" ] || exit 1
shift 6
cd "$(dirname "$0")"
while [ "$1" = --env ]; do export "$2"; shift 2; done
printf %s "$1" >image
FENCELOCK_DATA=$PWD/fencelock.db exec {program} "$2"
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
            with self.client.lock("a") as lease:
                self.service.end("a")
                self.assertTrue(lease.wait_lost(10))
        self.client.acquire("a", wait=0).release()
        with self.assertRaises(AssertionError):
            self.service.end("a")

    def test_a_lost_answer_is_not_a_lost_lease(self):
        self.service.lose_next_response()
        lease = self.client.acquire("a", wait=0)
        self.service.lose_next_response()
        lease.release()
        self.assertEqual(self.service.lost, 2)
        self.assertGreater(self.client.acquire("a", wait=0).token, lease.token)

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
        self.assertGreater(got[0], other.token)

    def test_records(self):
        lease = self.client.acquire("a", ttl=60)
        self.assertEqual(self.client.read_record("a"), Record("a"))
        self.client.claim_record(lease)
        self.assertEqual(self.client.write_record(lease, [1]), Record("a", lease.token, [1], 1))
        self.assertEqual([a.kind for a in self.client.history("a")], ["write", "claim"])

    def test_on_asyncio(self):
        async def run():
            async with self.service.aio_client() as client:
                async with client.lock(["a", "b"]) as lease:
                    self.assertEqual([p.resource for p in lease.parts], ["a", "b"])
                    with self.assertRaises(HeldError):
                        await client.acquire("b", wait=0)

        asyncio.run(run())

    def test_what_the_service_refuses_is_refused(self):
        for refused in (lambda: self.client.acquire("a", ttl=86401), lambda: self.client.acquire("x" * 513)):
            with self.assertRaises((RefusedError, ValueError)):
                refused()

    def test_a_program_that_does_not_start_says_why(self):
        with unittest.mock.patch.dict(os.environ, {"FENCELOCK_PROGRAM": "/bin/false"}), self.assertRaisesRegex(RuntimeError, "fencelock did not start"):
            Service()
        with unittest.mock.patch.dict(os.environ, {"FENCELOCK_PROGRAM": "/no/such/program"}), self.assertRaisesRegex(RuntimeError, "put it into PATH"):
            Service()

    def test_without_a_program_it_runs_the_container(self):
        """A docker that takes the same words runs the program in its place."""
        program = os.environ["FENCELOCK_PROGRAM"]
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/docker", "w") as file:
                file.write(DOCKER.format(program=program))
            os.chmod(f"{folder}/docker", 0o755)
            with unittest.mock.patch.dict(os.environ, {"PATH": f"{folder}:/usr/bin:/bin", "FENCELOCK_IMAGE": "registry.example/fencelock:1"}):
                del os.environ["FENCELOCK_PROGRAM"]
                with Service() as service:
                    service.client().acquire("a").release()
            with open(f"{folder}/image") as file:
                self.assertEqual(file.read(), "registry.example/fencelock:1")

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "NOT RUN: pytest cannot be imported")
    def test_the_fixture(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("conftest.py", PLUGIN), ("test_it.py", TEST)):
                with open(f"{folder}/{name}", "w") as file:
                    file.write(text)
            done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
