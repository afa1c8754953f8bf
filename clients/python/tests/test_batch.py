"""Calls of the asyncio client that share requests."""

import asyncio
import json
import time
import unittest
import unittest.mock

from fencelock import DeniedError, LeaseLostError, RefusedError, TimedOutError, UnavailableError, aio
from fencelock._batch import Batcher
from fencelock._steps import Send, Server
from fencelock._http import Answer

from .test_client import Service

BATCH = "/locks/batch"
SERVER = Server.parse("http://127.0.0.1:1")


class BatchCase(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        for name in ("_acquisition.GRACE", "_core._SHORTEST_TRY"):  # this is not about time limits, and the machine may be busy
            patch = unittest.mock.patch(f"fencelock.{name}", 60.0)
            patch.start()
            self.addCleanup(patch.stop)
        self.service = Service()
        self.addCleanup(self.service.server_close)
        self.addCleanup(self.service.shutdown)
        self.addCleanup(self.service.wait.set)

    async def client(self, batch_after=0, **settings):
        client = aio.Client(self.service.url, batch_after=batch_after, **settings)
        self.addAsyncCleanup(client.close)
        return client

    def asked(self, path=None):
        return [call for call in self.service.calls if path in (None, call[1])]

    def key(self, n=0):
        return self.service.in_batches[n]["idempotency_key"]

    async def until(self, done, what):
        deadline = time.monotonic() + 60
        while not done():
            self.assertLess(time.monotonic(), deadline, what)
            await asyncio.sleep(0.002)


class SharedRequests(BatchCase):
    async def test_many_calls_share_requests_each_with_its_own_key_and_outcome(self):
        client = await self.client(2)
        leases = await asyncio.gather(*(client.acquire(f"r{n}", ttl=9, wait=0) for n in range(140)))  # more than one batch may have
        self.assertEqual([lease.resource for lease in leases], [f"r{n}" for n in range(140)])
        self.assertEqual(len({lease.token for lease in leases}), 140)
        self.assertLess(len(self.asked()), 20)
        self.assertLessEqual(max(len(call[2]["operations"]) for call in self.asked(BATCH)), 128)
        keys = [each["idempotency_key"] for each in self.service.in_batches] + [call[3]["Idempotency-Key"] for call in self.asked("/locks")]
        self.assertEqual(len(set(keys)), 140)
        await asyncio.gather(*(lease.release() for lease in leases))
        self.assertLess(len(self.asked()), 40)

    async def test_a_caller_alone_sends_what_it_sent(self):
        client = await self.client(2)
        for _ in range(3):
            async with client.lock("r", wait=0) as lease:
                await lease.extend()
        self.assertEqual([call[1] for call in self.asked()], ["/locks", "/leases/current/extend", "/leases/current"] * 3)

    async def test_what_waits_in_the_queue_is_sent_alone(self):
        client = await self.client()
        await client.acquire("r", wait=5)
        await client.acquire("r")
        await client.inspect("r")
        self.assertEqual(self.asked(BATCH), [])

    async def test_what_json_would_change_is_sent_alone(self):
        client = await self.client()
        lease = await client.acquire("r", wait=0)
        lease._grant.id = 'a"b'
        await lease.extend()
        self.assertEqual([each["operation"] for each in self.service.in_batches], ["acquire"])
        await client.acquire("big", wait=0, metadata="x" * 4000)
        self.assertEqual(self.asked()[-1][1], "/locks")

    async def test_extends_of_kept_leases_ride_together(self):
        client = await self.client(2)
        done = asyncio.Event()

        async def work(resource):
            async with client.lock(resource, ttl=12, wait=0):  # the two have 8 s until theirs are lost
                await done.wait()

        self.service.hold = "/leases/current/extend"  # two are under way
        works = [asyncio.create_task(work(f"r{n}")) for n in range(20)]

        def extends():
            return sum(each["operation"] == "extend" for each in self.service.in_batches)

        await self.until(lambda: extends() >= 18, "extends")
        self.assertLess(len(self.asked("/leases/current/extend")), 10)
        done.set()
        await asyncio.gather(*works)


class Outcomes(BatchCase):
    async def test_a_call_is_refused_by_itself(self):
        client = await self.client()
        self.service.refuse["POST /leases/current/extend"] = (404, "lease-not-held")
        lease = await client.acquire("r", wait=0)
        extended, acquired = await asyncio.gather(lease.extend(), client.acquire("other", wait=0), return_exceptions=True)
        self.assertIsInstance(extended, LeaseLostError)
        self.assertEqual(acquired.resource, "other")
        self.assertEqual(len(self.service.in_batches), 3)

    async def test_a_limit_of_one_call_is_waited_for_by_itself(self):
        client = await self.client(patience=0.5)
        self.service.refuse["POST /locks"] = (429, "too-many-requests")
        with self.assertRaises(UnavailableError) as raised:
            await client.acquire("r", wait=0)
        self.assertEqual((raised.exception.status, len(self.service.in_batches)), (429, 1))  # its Retry-After is above the patience

    async def test_credentials_are_in_different_batches(self):
        credentials = iter(["one", "two", "one", "two"])
        client = await self.client(bearer=lambda: next(credentials))
        await asyncio.gather(*(client.acquire(f"r{n}", wait=0) for n in range(4)))
        sent = [(call[3]["Authorization"], [each["body"]["resource"] for each in call[2]["operations"]]) for call in self.asked(BATCH)]
        self.assertEqual(sorted(sent), [("Bearer one", ["r0", "r2"]), ("Bearer two", ["r1", "r3"])])

    async def test_a_server_that_refuses_batches_gets_single_requests(self):
        client = await self.client()
        self.service.refuse["POST /locks/batch"] = (404, "not-found")
        leases = await asyncio.gather(*(client.acquire(r, wait=0) for r in "abc"))
        await leases[0].extend()
        self.assertEqual([call[1] for call in self.asked()], [BATCH, "/locks", "/locks", "/locks", "/leases/current/extend"])

    async def test_what_is_no_answer_to_a_batch(self):
        for status, error in (200, RefusedError), (403, DeniedError), (503, UnavailableError):
            with self.subTest(status):
                client = await self.client(patience=0)
                self.service.pages[BATCH] = {"no": "results"}
                self.service.refuse["POST /locks/batch"] = (status, "forbidden")
                if status == 403:
                    self.service.refuse["POST /locks"] = (403, "forbidden")  # the batch may be what is refused: each is sent alone
                for each in await asyncio.gather(*(client.acquire(r, wait=0) for r in "ab"), return_exceptions=True):
                    self.assertIsInstance(each, error)


class GivenUp(BatchCase):
    async def test_what_a_call_was_granted_that_left_is_ended(self):
        client = await self.client()
        self.service.hold = BATCH
        left, other = (asyncio.create_task(client.acquire(r, wait=0)) for r in "ab")
        await self.until(lambda: self.asked(BATCH), "the batch")
        left.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await left
        await self.until(lambda: self.asked("/cancel"), "the cancel")
        self.service.wait.set()
        self.assertEqual((await other).resource, "b")
        await client.close()
        self.assertEqual([call[3]["Idempotency-Key"] for call in self.asked("/cancel")], [self.key()])
        self.assertEqual([each["operation"] for each in self.service.in_batches], ["acquire", "acquire", "release"])

    async def test_a_batch_that_all_have_left_is_broken_off(self):
        client = await self.client()
        self.service.hold = BATCH
        both = [asyncio.create_task(client.acquire(r, wait=0)) for r in "ab"]
        await self.until(lambda: self.asked(BATCH), "the batch")
        for task in both:
            task.cancel()
        for each in await asyncio.gather(*both, return_exceptions=True):
            self.assertIsInstance(each, asyncio.CancelledError)
        await self.until(lambda: len({call[3]["Idempotency-Key"] for call in self.asked("/cancel")}) == 2, "the cancels")
        self.assertEqual(client._connections._batchers[client._protocol.servers[0]]._under_way, 0)
        self.service.wait.set()
        await client.close()
        self.assertEqual(len(self.asked(BATCH)), 1)

    async def test_a_call_that_is_cancelled_before_its_batch_is_not_sent(self):
        client = await self.client()
        tasks = [asyncio.create_task(client.acquire(r, wait=0)) for r in "ab"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        with self.assertRaises(asyncio.CancelledError):
            await tasks[0]
        await tasks[1]
        self.assertEqual([each["body"]["resource"] for each in self.service.in_batches], ["b"])

    async def test_a_call_has_its_own_time_limit(self):
        client = await self.client()
        self.service.hold = BATCH
        other = asyncio.create_task(client.acquire("b", wait=0))
        with self.assertRaises(TimedOutError):
            await client.acquire("a", wait=0, timeout=0.1)
        self.assertFalse(other.done() and other.exception())
        self.service.wait.set()
        self.assertEqual((await other).resource, "b")
        await client.close()
        self.assertIn(self.key(), [call[3]["Idempotency-Key"] for call in self.asked("/cancel")])

    async def test_cancelled_calls_are_not_under_way(self):
        client = await self.client(2)
        self.service.hold = "/locks"
        tasks = [asyncio.create_task(client.acquire(f"r{n}", wait=0)) for n in range(3)]
        await self.until(lambda: len(self.asked("/locks")) == 3, "two, and the third, which the timer sent alone")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.assertEqual(client._connections._batchers[client._protocol.servers[0]]._under_way, 0)

    async def test_a_call_that_is_cancelled_just_when_it_is_to_be_sent_alone(self):
        client = await self.client(1)
        self.service.hold = "/locks"
        first, second = (asyncio.create_task(client.acquire(r, wait=0)) for r in "ab")
        await asyncio.sleep(0)
        batcher = client._connections._batchers[client._protocol.servers[0]]
        batcher._flush()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        self.assertEqual(batcher._under_way, 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        self.assertEqual(batcher._under_way, 0)
        await client.close()
        self.assertNotIn("b", [call[2]["resource"] for call in self.asked("/locks")])


class Ticks(unittest.IsolatedAsyncioTestCase):
    """A cancel in the very moment in which something else happens."""

    async def asyncSetUp(self):
        self.sent, self.answer, self.late = [], asyncio.get_running_loop().create_future(), []
        self.batcher = Batcher(SERVER, 0, self.send)

    async def send(self, request):
        self.sent.append(request.content)
        return await self.answer

    def call(self, name):
        request = Send(SERVER, "POST", "/locks", (("Idempotency-Key", name),), b"{}", "", 60.0, late=self.late)
        return asyncio.create_task(self.batcher.send(request))

    def answered(self, n):
        self.answer.set_result(Answer(200, {}, json.dumps({"results": [{"status": 200, "body": {"n": i}} for i in range(n)]}).encode()))

    async def test_with_the_answer(self):
        for first in True, False:
            with self.subTest(first):
                await self.asyncSetUp()
                left, other = self.call("left"), self.call("other")
                await asyncio.sleep(0)
                self.batcher._flush()
                await asyncio.sleep(0)
                if first:
                    left.cancel()
                self.answered(2)
                if not first:
                    left.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await left
                self.assertEqual((await other).value, {"n": 1})
                self.assertEqual([(await each).value for each in self.late], [{"n": 0}])

    async def test_with_the_sending(self):
        left, other = self.call("left"), self.call("other")
        await asyncio.sleep(0)
        left.cancel()
        self.batcher._flush()
        self.answered(1)
        self.assertEqual((await other).value, {"n": 0})
        with self.assertRaises(asyncio.CancelledError):
            await left
        self.assertNotIn(b"left", self.sent[0])
        self.assertEqual((self.late, self.batcher._under_way), ([], 0))


class Loops(BatchCase):
    def test_a_client_can_be_used_in_one_event_loop_after_the_other(self):
        client = aio.Client(self.service.url, batch_after=0)

        async def once():
            await asyncio.gather(*(client.acquire(r, wait=0) for r in "ab"))
            client._connections.drop(client._protocol.servers[0])
            await asyncio.sleep(0.01)  # for the connection to be closed

        for _ in range(2):
            asyncio.run(once())
        self.assertEqual(len(self.asked(BATCH)), 2)


if __name__ == "__main__":
    unittest.main()
