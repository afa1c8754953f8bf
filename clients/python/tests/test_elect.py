"""Elections, watches and slots, of both clients."""

import asyncio
import threading
import time

from fencelock import Client, DeniedError, LeaseLostError, LockState, RefusedError, UnavailableError, aio

from .test_client import ServiceCase, eventually

GONE = {"POST /leases/current/extend": (404, "lease-not-held")}


class Elect(ServiceCase):
    def setUp(self):
        super().setUp()
        self.client = Client(self.service.url, timeout=20, patience=0)
        self.addCleanup(self.client.close)

    def test_who_returns_has_resigned(self):
        self.assertEqual(self.client.elect("r", lambda lease: lease.token), 1)
        with self.assertRaises(ZeroDivisionError):
            self.client.elect("r", lambda lease: 1 / 0)
        self.assertEqual(self.methods(), [("POST", "/locks"), ("DELETE", "/leases/current")] * 2)

    def test_a_lost_leader_stands_again(self):
        tokens = []

        def lead(lease):
            tokens.append(lease.token)
            if len(tokens) == 3:
                return "resigned"
            self.service.refuse.update(GONE)
            self.assertTrue(lease.wait_lost(60))
            self.service.refuse.clear()
            if len(tokens) == 2:
                raise ZeroDivisionError("the loss is behind it")

        self.assertEqual(self.client.elect("r", lead, ttl=0.3), "resigned")
        self.assertEqual(tokens, [1, 2, 3])

    def test_an_outage_ends_no_candidacy(self):
        self.service.refuse["POST /locks"] = (503, "no-quorum")

        def end_of_the_outage():
            eventually(lambda: len(self.methods()) > 3)
            self.service.refuse.clear()

        threading.Thread(target=end_of_the_outage).start()
        # What a refused try may still have got can be granted before.
        self.assertEqual(self.client.elect("r", lambda lease: "led"), "led")
        self.assertGreater(len(self.methods()), 3)

    def test_what_no_repetition_mends_ends_it(self):
        self.service.refuse["POST /locks"] = (403, "forbidden")
        with self.assertRaises(DeniedError):
            self.client.elect("r", lambda lease: None)
        self.service.refuse.clear()

        def unavailable(lease):
            raise UnavailableError("another service")

        with self.assertRaises(UnavailableError):  # of the work, which is not the election's to repeat
            self.client.elect("r", unavailable)

    def test_on_asyncio(self):
        tokens = []

        async def lead(lease):
            tokens.append(lease.token)
            if len(tokens) == 2:
                return "resigned"
            self.service.refuse.update(GONE)
            try:
                await asyncio.sleep(60)
            finally:
                self.service.refuse.clear()

        async def run():
            async with aio.Client(self.service.url, timeout=20, patience=0) as client:
                self.assertEqual(await client.elect("r", lead, ttl=0.3), "resigned")
                with self.assertRaises(LeaseLostError):
                    await client.elect("r", self.lose)
                leads = asyncio.Event()

                async def lead_on(lease):
                    leads.set()
                    await asyncio.sleep(60)

                candidate = asyncio.ensure_future(client.elect("r", lead_on))
                await leads.wait()
                candidate.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await candidate

        asyncio.run(run())
        self.assertEqual(tokens, [1, 2])
        self.assertEqual(self.methods()[-1], ("DELETE", "/leases/current"))

    async def lose(self, lease):
        raise LeaseLostError("of another resource")


FREE = LockState("r", False)


def held(token):
    return LockState("r", True, "h", token, held_for=0.005)


class Watch(ServiceCase):
    # The lock that a minority of nodes still shows (6 after 7) and what has not changed are not told.
    looks = [FREE, FREE, held(7), held(7), held(6), None, None, held(7), held(8), FREE]
    told = [FREE, held(7), None, held(7), held(8), FREE]

    def look(self, looks):
        lock = looks.pop(0)
        if lock is None:
            raise UnavailableError("no server")
        return lock

    def test_changes_are_told(self):
        looks, self.service.events = list(self.looks), True
        begun = time.monotonic()
        with Client(self.service.url) as client:
            client.inspect = lambda resource: self.look(looks)
            watch = client.watch("r")
            self.assertEqual([next(watch) for _ in self.told], self.told)
            watch.close()
        self.assertLess(time.monotonic() - begun, 45)  # by events: it looks every ten seconds besides

    def test_without_events_it_looks_every_second(self):
        looks = [FREE, held(1)]
        with Client(self.service.url) as client:
            client.inspect = lambda resource: self.look(looks)
            watch = client.watch("r")
            self.assertEqual([next(watch), next(watch)], [FREE, held(1)])
            watch.close()

    def test_on_asyncio(self):
        looks, self.service.events = list(self.looks), True

        async def run():
            async def inspect(resource):
                return self.look(looks)

            async with aio.Client(self.service.url) as client:
                client.inspect = inspect
                watch = client.watch("r")
                self.assertEqual([await watch.__anext__() for _ in self.told], self.told)
                await watch.aclose()

        asyncio.run(run())

    def test_a_refusal_ends_it(self):
        self.service.refuse["GET /locks/r"] = (403, "forbidden")
        with Client(self.service.url) as client, self.assertRaises(DeniedError):
            next(client.watch("r"))


class Slots(ServiceCase):
    def test_slots_are_asked_for(self):
        with Client(self.service.url) as client:
            with client.lock("jobs", slots=3) as lease:
                self.assertEqual((lease.resource, lease.slot), ("jobs#slot1", 1))
            client.acquire("jobs", slots=2).release()
            client.acquire("jobs").release()
        asked = [call[2].get("slots") for call in self.service.calls if call[1] == "/locks"]
        self.assertEqual(asked, [3, 2, None])

    def test_the_slot_that_the_block_holds_is_joined_by_its_name_too(self):
        with Client(self.service.url) as client, client.lock("jobs", slots=3) as outer:
            with client.lock("jobs#slot1") as inner:
                self.assertIs(inner, outer)
            with self.assertRaisesRegex(RefusedError, "would wait for itself"):
                client.acquire("jobs#slot1")
            client.acquire("jobs").release()  # the resource is apart from its slots
        self.assertEqual(self.methods().count(("POST", "/locks")), 2)

    def test_a_slot_is_joined_and_is_not_the_resource(self):
        with Client(self.service.url) as client, client.lock("jobs", slots=3) as outer:
            with client.lock("jobs", slots=2) as inner:
                self.assertIs(inner, outer)
            with client.lock("jobs") as whole:
                self.assertIsNot(whole, outer)
                with client.lock("jobs", slots=3) as inner:
                    self.assertIs(inner, outer)
        self.assertEqual(self.methods().count(("POST", "/locks")), 2)
