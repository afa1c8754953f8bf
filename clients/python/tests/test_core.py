"""The protocol without I/O, on a clock of the test's own. What it sends to a service is
judged by clients/conformance."""

import datetime
import json
import logging
import unittest

from fencelock import HeldError, LeaseLostError, OtherLeaseError, RefusedError, TimedOutError, UnavailableError, _core, _grant, _http, _options, _steps

TTL = 30_000


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


def answer(status, headers=None, **body):
    return _http.Answer(status, headers or {}, json.dumps(body).encode() if body else b"")


def lease(token=1, validity=TTL - 100, waited=0, **more):
    return answer(201, lease_id="secret-id", resource="r", fencing_token=token, ttl_ms=TTL, validity_ms=validity, waited_ms=waited, **more)


def problem(status, kind, headers=None, **more):
    return answer(status, headers, type=f"/problems/{kind}", title="no", **more)


class Core(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.sent = []  # (server, headers and body as text, limit)
        self.slept = []

    def protocol(self, servers="http://a,http://b", **settings):
        settings = {"bearer": None, "holder": "", "timeout": 5.0, "patience": 10.0, "poll": 45.0, **settings}
        return _core.Protocol(servers, now=self.clock, **settings)

    def run_steps(self, steps, world):
        """Plays a world: a function from a Send to an answer, an exception, or either with the
        seconds that it takes."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, _steps.Turn):
                    step = steps.send(False)
                    continue
                if isinstance(step, _steps.Sleep):
                    self.slept.append(step.seconds)
                    self.clock.time += step.seconds
                    step = next(steps)
                    continue
                self.sent.append((str(step.server), step.data.decode(), step.limit))
                came = world(step)
                if isinstance(came, tuple):
                    self.clock.time += came[1]
                    came = came[0]
                step = steps.throw(came) if isinstance(came, Exception) else steps.send(came)
        except StopIteration as end:
            return end.value

    def take(self, world, protocol=None, resource="r", **options):
        options = {"wait": 0, **options}
        return self.run_steps((protocol or self.protocol()).acquisition(resource, _options.Options(**options)).take(), world)

    def bodies(self):
        return [json.loads(text.partition("\r\n\r\n")[2]) for _, text, _ in self.sent]

    def test_a_write_is_waited_for(self):
        protocol, lease = self.protocol(), _grant.Part("r", 1, "")
        for steps in (protocol.read_record("r"), protocol.write_record(lease, 1), protocol.delete_record(lease)):
            self.run_steps(steps, lambda _: answer(200, resource="r"))
        self.assertEqual([limit for _, _, limit in self.sent], [1.0, 5.0, 5.0])  # if it is given up, it may have been done

    def test_a_break_that_is_repeated_is_done_if_the_lease_is_gone(self):
        lost = _steps.NoAnswer("broke off", True)
        for gone in (problem(404, "lock-not-held"), problem(412, "other-lease", fencing_token=8)):
            answers = iter([lost, gone])
            self.run_steps(self.protocol().break_lock("r", 7), lambda _: next(answers))
        self.assertEqual(self.bodies(), [{"resource": "r", "fencing_token": 7}] * 4)
        for first in ([], [lost]):  # an earlier lease holds it: nothing was broken
            answers = iter([*first, problem(412, "other-lease", fencing_token=6, holder="h")])
            with self.assertRaises(OtherLeaseError) as caught:
                self.run_steps(self.protocol().break_lock("r", 7), lambda _: next(answers))
            self.assertEqual((caught.exception.token, caught.exception.holder), (6, "h"))
        for refusal in (problem(404, "lock-not-held"), problem(412, "other-lease", fencing_token=8)):
            with self.assertRaises(RefusedError):  # no earlier try can have done it
                self.run_steps(self.protocol().break_lock("r", 7), lambda _: refusal)

    def test_a_break_of_any_lease_is_sent_again_only_if_no_server_can_have_done_it(self):
        for unclear in (_steps.NoAnswer("broke off", True), problem(503, "no-quorum")):
            self.sent.clear()
            with self.assertRaises(UnavailableError):
                self.run_steps(self.protocol().break_any("r"), lambda _: unclear)
            self.assertEqual(self.bodies(), [{"resource": "r", "any": True}])
        answers = iter([_steps.NoAnswer("refused", False), answer(204)])
        self.run_steps(self.protocol().break_any("r"), lambda _: next(answers))

    def test_a_long_wait_is_a_series_of_polls_under_one_key(self):
        left = [3]

        def world(_):
            left[0] -= 1
            return (problem(409, "wait-timeout"), 45) if left[0] else lease()

        self.take(world, wait=120)
        waits = [b["wait_ms"] for b in self.bodies()]
        self.assertEqual(waits[0], 120_000)
        self.assertTrue(74_000 < waits[1] < 75_000 and 29_000 < waits[2] < 30_000, waits)
        self.assertEqual(["Prefer: wait=45" in text for _, text, _ in self.sent], [True, True, False])
        self.assertEqual([round(limit) for _, _, limit in self.sent], [46, 46, 31])
        keys = {line for _, text, _ in self.sent for line in text.split("\r\n") if line.startswith("Idempotency-Key")}
        self.assertEqual(len(keys), 1)

    def test_the_poll_after_one_without_an_answer_is_short(self):
        answers = iter([(_steps.NoAnswer("frozen", True), 50), (problem(409, "wait-timeout"), 1), (problem(409, "wait-timeout"), 2), lease()])
        self.take(lambda _: next(answers), wait=300)
        prefer = [line for _, text, _ in self.sent for line in text.split("\r\n") if line.startswith("Prefer")]
        self.assertEqual(prefer, ["Prefer: wait=45", "Prefer: wait=1", "Prefer: wait=2", "Prefer: wait=4"])

    def test_an_acquire_that_does_not_wait_tells_soon(self):
        with self.assertRaises(UnavailableError):
            self.take(lambda _: problem(503, "no-quorum"), wait=0)
        # A pause is random, 0.5 to 1.5 times 0.05, 0.1, 0.2, 0.4 s.
        self.assertTrue(len(self.slept) >= 3 and sum(self.slept) <= 1, self.slept)

    def test_a_timeout_that_ends_a_wait_says_for_what_it_waited(self):
        def held(_):
            wait_ms = self.bodies()[-1].get("wait_ms", 0)
            return problem(409, "wait-timeout" if wait_ms else "lock-held", holder="worker-2", fencing_token=7, remaining_ms=500), wait_ms / 1000

        for wait in (None, 30, 100):
            begun = self.clock.time
            with self.subTest(wait), self.assertRaisesRegex(TimedOutError, "acquire r: not done within its timeout of 30 s: .*no") as caught:
                self.take(held, wait=wait, timeout=30)
            error = caught.exception
            self.assertIsInstance(error, HeldError)
            self.assertIsInstance(error, TimeoutError)
            self.assertNotIsInstance(error, UnavailableError)
            self.assertEqual((error.holder, error.token, error.remaining, error.resource), ("worker-2", 7, 0.5, "r"))
            self.assertAlmostEqual(self.clock.time - begun, 29.95, places=1)
        for wait, world in ((None, lambda send: (_steps.NoAnswer("silent", True), send.limit)), (100, lambda _: (problem(503, "no-quorum"), 1))):
            with self.subTest(wait), self.assertRaises(TimedOutError) as caught:
                self.take(world, self.protocol(patience=1000.0), wait=wait, timeout=30)
            self.assertIsInstance(caught.exception, UnavailableError)
            self.assertNotIsInstance(caught.exception, HeldError)
        for took in range(1, 200):  # milliseconds: the last try ends before, with or after the wait
            with self.subTest(took), self.assertRaises(TimedOutError) as caught:
                self.take(lambda _: (_steps.NoAnswer("refused", False), took / 1000), self.protocol(patience=15.0), wait=30, timeout=1)
            self.assertIsInstance(caught.exception, UnavailableError)
        for wait in (0, 5):  # which ends before the timeout
            with self.subTest(wait), self.assertRaises(HeldError) as caught:
                self.take(held, wait=wait, timeout=30)
            self.assertNotIsInstance(caught.exception, TimeoutError)

    def test_an_acquire_ends_a_second_after_its_wait(self):
        silence = _steps.NoAnswer("frozen", True)
        worlds = {
            "down": lambda _: _steps.NoAnswer("refused", False),
            "frozen": lambda send: (silence, min(2 * send.probe or send.limit, send.limit)),
            "without a quorum": lambda send: (problem(503, "no-quorum"), min(0.3, send.limit)),
        }
        for wait in (0, 1, 7, 100):
            for name, world in worlds.items():
                with self.subTest(wait=wait, servers=name):
                    begun = self.clock()
                    with self.assertRaises(UnavailableError):
                        self.take(world, self.protocol(patience=1000), wait=wait)
                    self.assertTrue(wait - 1 <= self.clock() - begun <= wait + 1.001, self.clock() - begun)

    def test_what_answers_take_says_when_one_is_overdue(self):
        took, limits = 0.01, []

        def world(send):
            limits.append(round(send.limit, 2))
            return (lease(), took) if took < send.limit else (_steps.NoAnswer("slow", True), send.limit)

        protocol = self.protocol("http://a")
        for took in (0.01, 0.01, 0.01, 0.01, 1.6, 1.6):
            self.run_steps(protocol.extend(_grant.Grant(self.clock, self.clock(), json.loads(lease().body))), world)
        # 1 s before any answer is known, which fades; then an answer of 1.6 s after three tries without one.
        self.assertEqual(limits, [1.0, 0.9, 0.81, 0.73, 0.66, 1.31, 2.62, 5.0])

    def test_several_servers_at_one_address_are_known_by_their_names(self):
        protocol = self.protocol("http://a")
        names = iter(["x", "y", "y", "x"])
        for shared in (False, False, False, True):
            self.take(lambda _: _http.Answer(201, {"fencelock-server": next(names)}, lease().body), protocol)
            self.assertEqual(protocol.shared(protocol.servers[0]), shared)

    def test_validity_counts_from_when_the_answered_request_was_sent(self):
        grant = self.take(lambda _: (lease(waited=4000), 7), wait=60)
        self.assertAlmostEqual(grant.until, 1000 + 4 + 29.9)
        self.assertAlmostEqual(grant.left, 26.9)

    def test_a_server_that_is_lost_late_in_a_wait_leaves_patience_for_the_next(self):
        def world(send):
            return (_steps.NoAnswer("frozen", True), 55) if str(send.server) == "http://a" else lease()

        grant = self.take(world, wait=300)
        self.assertEqual([s for s, _, _ in self.sent], ["http://a", "http://b"])
        self.assertGreater(grant.left, 29)

    def test_one_server_that_is_lost_late_in_a_wait_is_asked_again(self):
        answers = iter([(_steps.NoAnswer("frozen", True), 55), lease()])
        self.take(lambda _: next(answers), self.protocol("http://a"), wait=300)
        self.assertEqual(len(self.sent), 2)

    def test_patience_ends_a_call_and_pauses_grow(self):
        with self.assertRaises(UnavailableError) as caught:
            self.take(lambda _: problem(503, "no-quorum"), wait=60)
        self.assertEqual((caught.exception.kind, caught.exception.status, caught.exception.resource), ("no-quorum", 503, "r"))
        self.assertLess(sum(self.slept), 10)
        self.assertGreater(sum(self.slept), 7)
        self.assertTrue(all(p <= 1.5 for p in self.slept) and self.slept[0] < 0.1, self.slept)

    def test_retry_after_is_obeyed_of_a_limit(self):
        answers = iter([problem(429, "request-limit", {"retry-after": "3"}), problem(429, "request-limit", {"retry-after": "3"}), lease()])
        self.take(lambda _: next(answers), wait=60)
        self.assertGreaterEqual(self.slept[0], 3)

    def test_held_names_the_holder(self):
        with self.assertRaises(HeldError) as caught:
            self.take(lambda _: problem(409, "lock-held", holder="w7", fencing_token=34, remaining_ms=8123))
        self.assertEqual((caught.exception.holder, caught.exception.token, caught.exception.remaining), ("w7", 34, 8.123))

    def test_an_answer_that_is_not_the_services(self):
        with self.assertRaises(RefusedError):
            self.take(lambda _: _http.Answer(200, {}, b"<html>"))

    def test_names_that_are_no_unicode_are_refused_before_they_are_sent(self):
        for name in ("bin/\udcff", ["a", "b\ud800"]):
            with self.assertRaises(ValueError):
                self.take(lambda _: lease(), resource=name)
        self.assertEqual(self.sent, [])

    def test_several_resources_have_a_token_each(self):
        granted = answer(
            201, lease_id="x", ttl_ms=TTL, validity_ms=TTL, waited_ms=0,
            resources=[{"resource": "a", "fencing_token": 3}, {"resource": "b", "fencing_token": 9, "fencing_proof": "p"}],
        )
        grant = self.take(lambda _: granted, resource=["b", "a"])
        self.assertEqual([(p.resource, p.token, p.proof) for p in grant.parts], [("a", 3, ""), ("b", 9, "p")])
        self.assertEqual(self.bodies()[0], {"resources": ["b", "a"]})

    def test_the_body_has_what_was_asked_for(self):
        self.take(lambda _: lease(), self.protocol(holder="h", bearer=lambda: "tok"), ttl=1.5, min_hold=1, max_hold=60, metadata={"job": 7})
        self.assertEqual(self.bodies()[0], {"resource": "r", "ttl_ms": 1500, "min_hold_ms": 1000, "max_hold_ms": 60000, "holder": "h", "metadata": {"job": 7}})
        self.assertIn("Authorization: Bearer tok", self.sent[0][1])

    def keep(self, world, grant=None, protocol=None, **answered):
        protocol = protocol or self.protocol()
        grant = grant or _grant.Grant(self.clock, self.clock(), json.loads(lease(**answered).body))
        grant.margin = 3.0
        return grant, lambda: self.run_steps(protocol.keep(grant), world)

    def test_keep_extends_at_a_third_and_stops_a_margin_before_the_end(self):
        extended = []

        def world(_):
            if len(extended) == 2:
                return _steps.NoAnswer("down", False)
            extended.append(self.clock())
            return lease()

        grant, run = self.keep(world)
        why = run()
        self.assertEqual([round(at - 1000, 1) for at in extended], [9.9, 19.8])
        self.assertAlmostEqual(self.clock() - 1000, 19.8 + 29.9 - 3, places=1)
        self.assertTrue(why and grant.why_lost())

    def test_tries_to_extend_leave_time_for_every_server_twice(self):
        _, run = self.keep(lambda send: (_steps.NoAnswer("frozen", True), send.limit))
        run()
        self.assertLessEqual(self.clock() - 1000, 29.9 - 3 + 0.01)
        self.assertGreaterEqual(len(self.sent), 4)

    def test_a_lease_that_cannot_last_longer_is_not_extended(self):
        grant, run = self.keep(lambda _: self.fail("it was extended"), max_hold_remaining_ms=20_000)
        self.assertIn("maximum hold time", run())

    def test_an_extend_that_is_refused_leaves_the_lease_as_it_was(self):
        _, run = self.keep(lambda _: problem(409, "max-hold-reached"))
        self.assertIn("maximum hold time", run())
        self.assertAlmostEqual(self.clock() - 1000, 29.9 - 3, places=1)
        self.assertEqual(len(self.sent), 1)

    def test_keep_ends_at_once_when_the_lease_has_ended(self):
        _, run = self.keep(lambda _: problem(404, "lease-not-held"))
        self.assertIn("404", run())
        self.assertAlmostEqual(self.clock() - 1000, 9.9, places=1)

    def test_a_paused_process_knows_of_the_loss_from_the_clock_alone(self):
        grant, _ = self.keep(lambda _: None)
        self.assertEqual(grant.why_lost(), "")
        self.clock.time += 27
        self.assertIn("not extended in time", grant.why_lost())

    def test_finish_tries_every_server_once_though_the_first_is_frozen(self):
        protocol = self.protocol()
        grant, _ = self.keep(None)
        world = lambda send: (_steps.NoAnswer("frozen", True), send.limit) if str(send.server) == "http://a" else answer(204)  # noqa: E731
        self.assertEqual(self.run_steps(protocol.finish(grant, self.clock() + 1), world), ("", False))
        self.assertEqual(len(self.sent), 2)

    def test_extend_without_a_lease(self):
        grant, _ = self.keep(None)
        with self.assertRaises(LeaseLostError):
            self.run_steps(self.protocol().extend(grant), lambda _: problem(404, "lease-not-held"))

    def test_what_an_observer_or_the_logger_raises_changes_nothing(self):
        class Broken(logging.Handler):
            def emit(self, record):
                raise RuntimeError("the application's logger")

        def observer(_):
            raise RuntimeError("the application's observer")

        handler, log = Broken(), logging.getLogger("fencelock")
        log.addHandler(handler)
        self.addCleanup(log.removeHandler, handler)
        log.propagate = False
        self.addCleanup(setattr, log, "propagate", True)
        answers = iter([problem(503, "no-quorum"), lease()])
        self.take(lambda _: next(answers), self.protocol(on_retry=observer), wait=60)
        self.assertEqual(len(self.sent), 2)

    def test_metadata_is_encoded_once(self):
        class Once(dict):
            left = 1

            def items(self):
                self.left -= 1
                if self.left < 0:
                    raise RuntimeError("the application's encoder")
                return super().items()

        answers = iter([problem(503, "no-quorum"), lease()])
        self.take(lambda _: next(answers), wait=60, metadata=Once(job=7))
        self.assertEqual([body["metadata"] for body in self.bodies()], [{"job": 7}] * 2)
        with self.assertRaises(TypeError):
            self.take(lambda _: lease(), metadata=object())

    def test_a_failure_of_any_kind_while_renewing_is_a_try_that_failed(self):
        failed = iter([RuntimeError("a mistake"), MemoryError(), OSError("a disk")])

        def world(_):
            raise_now = next(failed, None)
            return raise_now if raise_now else problem(404, "lease-not-held")

        _, run = self.keep(world)
        self.assertIn("404", run())
        self.assertEqual(len(self.sent), 4)

    def test_time_in_the_clients_own_queue_is_nobodys(self):
        steps = self.protocol().acquisition("r", _options.Options(wait=0)).take()
        self.assertIsInstance(next(steps), _steps.Turn)
        self.clock.time += 50  # the thousandth of a thousand calls
        send = steps.send(False)
        self.assertGreater(send.limit, 0.4)
        with self.assertRaises(StopIteration) as end:
            steps.send(lease())
        self.assertAlmostEqual(end.exception.value.left, 29.9)

    def test_a_crowd_polls_for_a_second_at_most(self):
        steps = self.protocol().acquisition("r", _options.Options(wait=60)).take()
        next(steps)
        self.assertIn(b"Prefer: wait=1\r", steps.send(True).data)

    def test_options_are_checked_before_anything_is_sent(self):
        for options in (
            {"ttl": 0.05}, {"ttl": 86401}, {"slots": 0}, {"slots": 33}, {"ttl": 1, "min_hold": 2}, {"ttl": 2, "max_hold": 1}, {"margin": -2}, {"holder": "x" * 300},
            {"holder": "a\nb"}, {"resource": ""}, {"resource": "x" * 257}, {"resource": "a\nb"}, {"resource": ["a", "a"]}, {"resource": [str(n) for n in range(17)]},
            {"resource": ["a", "b"], "slots": 2}, {"wait": -1}, {"metadata": "x" * 5000}, {"patience": -1},
        ):
            with self.subTest(options), self.assertRaises(ValueError):
                self.take(lambda _: lease(), **options)
        self.assertEqual(self.sent, [])

    def test_wrong_types_get_one_clear_line(self):
        for options, text in (
            ({"ttl": "30"}, "ttl must be a number of seconds, not str"), ({"wait": True}, "wait must be a number of seconds, not bool"),
            ({"max_hold": datetime.timedelta(1)}, r"max_hold must be a number of seconds, not timedelta; call its total_seconds\(\)"),
            ({"resource": 42}, "a resource must be a str, or a list of str, not int"), ({"resource": [42]}, "a resource must be a str, not int"),
        ):
            with self.subTest(text), self.assertRaisesRegex(TypeError, f"^{text}$"):
                self.take(lambda _: lease(), **options)
        for options in ({"wait": -1}, {"ttl": float("nan")}):
            with self.subTest(options), self.assertRaisesRegex(ValueError, "must be 0 seconds or more"):
                self.take(lambda _: lease(), **options)
        with self.assertRaisesRegex(TypeError, "servers must be a URL, or a list of URLs, not NoneType"):
            self.protocol(None)
        self.assertEqual(self.sent, [])

    def test_an_error_names_the_server_and_the_request(self):
        with self.assertRaises(HeldError) as caught:
            self.take(lambda _: problem(409, "lock-held", {"x-request-id": "req-7"}))
        self.assertEqual((caught.exception.url, caught.exception.request_id, caught.exception.kind), ("http://a", "req-7", "lock-held"))

    def test_a_404_that_no_fencelock_sent(self):
        with self.assertRaisesRegex(RefusedError, "did not come from fencelock: check host, port and path"):
            self.take(lambda _: _http.Answer(404, {}, b"<h1>Not Found</h1>"))

    def test_names_are_escaped_in_messages(self):
        with self.assertRaises(HeldError) as caught:
            self.take(lambda _: problem(409, "lock-held"), resource="é\u202ex")
        self.assertIn(r"acquire é\u202ex: ", str(caught.exception))
        self.assertEqual(caught.exception.resource, "é\u202ex")

    def test_a_bearer_may_end_with_a_line_break(self):
        self.take(lambda _: lease(), self.protocol(bearer="secret\r\n"))
        self.assertIn("Authorization: Bearer secret\r\n", self.sent[0][1])
        with self.assertRaisesRegex(ValueError, "the bearer token has characters") as caught:
            self.take(lambda _: lease(), self.protocol(bearer="sec\nret"))
        self.assertNotIn("sec", str(caught.exception))

    def test_servers(self):
        for url in ("localhost:8080", "ftp://x", "http://user:pw@x", "http://", "http://x/?a=b"):
            with self.subTest(url), self.assertRaises(ValueError):
                self.protocol(url)
        s = _steps.Server.parse("https://locks.example/api/")
        self.assertEqual((s.name, s.port, s.tls, s.prefix, str(s)), ("locks.example", 443, True, "/api", "https://locks.example/api"))
