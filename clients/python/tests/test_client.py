"""Both clients against a small service in this process: what Python adds to the protocol."""

import asyncio
import datetime
import contextlib
import contextvars
import gc
import itertools
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fencelock
from fencelock import Client, ClosedError, FencelockError, HeldError, LeaseLostError, TimedOutError, UnavailableError, _connections, aio, bearer_file

ATTEMPT = {"fencing_token": 3, "highest_token": 4, "kind": "write", "accepted": False, "version": 1, "at": "2026-03-01T12:00:02.5Z"}
SECRETS = ("secret-id", "secret-proof", "secret-bearer")


class Service(ThreadingHTTPServer):
    """Grants everything, for ``ttl_ms``. ``refuse`` maps a method and path to a problem."""

    daemon_threads = True
    request_queue_size = 128  # of more callers at once than that the kernel lets some connect seconds later

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls, self.refuse, self.wait = [], {}, threading.Event()
        self.minted, self.token = itertools.count(1), 0  # token: the last one
        self.hold, self.peers, self.pages = "", {}, {}  # hold: of which path no request is answered before wait is set
        self.in_batches = []  # operations
        self.events = False  # whether it streams events: one after the other
        self.frozen = threading.Event()  # it answers nothing any more
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request, client_address):
        self.peers[client_address[1]] = request
        super().process_request(request, client_address)

    def close_port(self, port):
        self.peers.pop(port).shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do(self):
        service = self.server
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        service.calls.append((self.command, self.path, body, dict(self.headers)))
        if service.frozen.is_set() or self.path == service.hold:
            service.wait.wait(10)
        if self.path == "/locks/batch" and "POST /locks/batch" not in service.refuse:
            return self.answer(200, {"results": [self.in_batch(operation) for operation in body["operations"]]})
        if self.path.startswith("/events?") and service.events:
            return self.stream()
        self.answer(*self.outcome(self.command, self.path, body))

    def in_batch(self, operation):
        method, path = {"acquire": ("POST", "/locks"), "extend": ("POST", "/leases/current/extend"), "release": ("DELETE", "/leases/current")}[operation["operation"]]
        self.server.in_batches.append(operation)
        status, body = self.outcome(method, path, operation.get("body", {}))
        return {"status": status, **({} if body is None else {"body": body}), **({"retry_after_s": 1} if status == 429 else {})}

    def outcome(self, method, path, body):
        service = self.server
        kind = service.refuse.get(f"{method} {path}")
        if kind:
            return kind[0], {"type": f"/problems/{kind[1]}", "title": "no", "status": kind[0]}
        if path in service.pages:
            return 200, service.pages[path]
        if method == "DELETE":
            return 204, None
        token = service.token  # which another request may change meanwhile
        if path == "/locks":
            token = service.token = next(service.minted)
        ttl = body.get("ttl_ms", 30_000)
        slot = {"slot": 1} if "slots" in body else {}
        resource = body.get("resource", "r") + "#slot1" * len(slot)
        parts = {"resources": [{"resource": r, "fencing_token": token} for r in body["resources"]]} if "resources" in body else {}
        return 200, {
            **slot, **parts, "lease_id": "secret-id", "resource": resource, "fencing_token": token, "fencing_proof": "secret-proof", "ttl_ms": ttl,
            "validity_ms": ttl - 5, "waited_ms": 0, "max_hold_remaining_ms": None,
        }

    do_GET = do_POST = do_DELETE = do_PUT = do

    def stream(self):
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        while not self.server.wait.wait(0.005):
            self.wfile.write(b": a line\n\neve")
            self.wfile.write(b"nt: granted\ndata: {}\n\n")

    def answer(self, status, body=None):
        raw = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


class ServiceCase(unittest.TestCase):
    def setUp(self):
        self.service = Service()
        self.addCleanup(self.service.server_close)
        self.addCleanup(self.service.shutdown)
        self.addCleanup(self.service.wait.set)

    def methods(self):
        return [(c[0], c[1]) for c in self.service.calls]


class Sync(ServiceCase):
    def setUp(self):
        super().setUp()
        self.client = Client(self.service.url, bearer="secret-bearer", timeout=20)  # a busy machine is late
        self.addCleanup(self.client.close)

    def test_a_lock(self):
        with self.client.lock("orders/42", ttl=30, wait=5) as lease:
            self.assertEqual((lease.resource, lease.token, lease.ttl, lease.lost), ("orders/42", 1, 30, False))
            self.assertTrue(29 < lease.validity < 30)
            self.assertIs(fencelock.current(), lease)
            lease.check()
        with self.assertRaises(LeaseLostError):
            lease.check()
        self.assertEqual((lease.lost, lease.validity), (True, 0))
        with self.assertRaises(LookupError):
            fencelock.current()
        self.assertEqual(self.methods(), [("POST", "/locks"), ("DELETE", "/leases/current")])

    def test_the_loss_is_told_in_every_way(self):
        self.service.refuse["POST /leases/current/extend"] = (404, "lease-not-held")
        told = []
        with self.assertRaises(LeaseLostError) as caught:
            with self.client.lock("r", ttl=1, on_lost=told.append) as lease:
                self.assertTrue(lease.wait_lost(5))
                self.assertTrue(lease.lost)
                with self.assertRaises(LeaseLostError):
                    lease.check()
        self.assertEqual((told, caught.exception.resource), ([lease], "r"))

    def test_an_exception_of_the_block_comes_first(self):
        self.service.refuse["DELETE /leases/current"] = (404, "lease-not-held")
        with self.assertRaises(ZeroDivisionError):
            with self.client.lock("r"):
                1 / 0
        with self.assertRaises(LeaseLostError):
            with self.client.lock("r"):
                pass

    def test_locked(self):
        @self.client.locked("orders/{order}/{kind}", ttl=7)
        def charge(order, kind="card"):
            """charges"""
            return fencelock.current().resource, fencelock.current().ttl

        self.assertEqual(charge(42), ("orders/42/card", 7))
        self.assertEqual(charge(kind="cash", order=1), ("orders/1/cash", 7))
        self.assertEqual(charge.__doc__, "charges")

    def test_a_lock_nests(self):
        with self.client.lock("r") as outer:
            with self.client.lock(["r"], wait=0) as inner:
                self.assertIs(inner, outer)
            self.assertFalse(outer.lost)
            with self.client.lock("other") as other:
                self.assertIsNot(other, outer)
                with self.client.lock("r") as inner:
                    self.assertIs(inner, outer)
            entered, end = threading.Event(), threading.Event()

            def work():
                with self.client.lock("r") as lease:
                    self.assertIs(lease, outer)
                    entered.set()
                    end.wait(10)
                    lease.check()

            thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
            thread.start()
            entered.wait(10)
        self.assertFalse(outer.lost)  # the last one releases it
        end.set()
        thread.join()
        self.assertTrue(outer.lost)
        self.assertEqual(self.methods(), [("POST", "/locks"), ("POST", "/locks")] + 2 * [("DELETE", "/leases/current")])
        with self.client.lock("r") as another:
            self.assertIsNot(another, outer)

    def test_a_nested_lock_does_not_begin_under_a_lost_lease(self):
        self.service.refuse["POST /leases/current/extend"] = (404, "lease-not-held")
        with self.assertRaises(LeaseLostError):
            with self.client.lock("r", ttl=1) as lease:
                self.assertTrue(lease.wait_lost(5))
                with self.assertRaises(LeaseLostError):
                    with self.client.lock("r"):
                        self.fail("it ran")
        self.assertEqual(self.methods().count(("DELETE", "/leases/current")), 1)

    def test_the_largest_margin_leaves_time_to_extend(self):
        with self.client.lock("r", ttl=3, margin=60) as lease:
            self.assertFalse(lease.wait_lost(2))

    def test_another_thread_does_not_join(self):
        with self.client.lock("r") as outer:
            thread = threading.Thread(target=lambda: self.client.lock("r").__enter__().release())
            thread.start()
            thread.join()
            self.assertFalse(outer.lost)
        self.assertEqual(self.methods().count(("POST", "/locks")), 2)

    def test_another_thread_joins_with_the_lease(self):
        entered, end = threading.Event(), threading.Event()

        def work(lease):
            with lease.join() as same, self.client.lock("r") as inner:
                assert same is inner is lease
                entered.set()
                end.wait(10)

        with self.client.lock("r") as outer:
            thread = threading.Thread(target=work, args=(outer,))
            thread.start()
            self.assertTrue(entered.wait(10))
        self.assertFalse(outer.lost)  # the last one releases it
        end.set()
        thread.join()
        self.assertEqual(self.methods(), [("POST", "/locks"), ("DELETE", "/leases/current")])
        with self.assertRaisesRegex(LeaseLostError, "it was released"):
            outer.join().__enter__()

    def test_a_thread_of_an_asyncio_block_is_refused_by_another_client(self):
        async def work():
            async with aio.Client(self.service.url) as client, client.lock("r"):
                with self.assertRaisesRegex(fencelock.RefusedError, "name the same resources with the same client"):
                    await asyncio.to_thread(self.client.lock("r").__enter__)

        asyncio.run(work())

    def test_retries_are_observed(self):
        seen = []
        self.service.refuse["GET /locks/r"] = (503, "no-quorum")
        with Client(self.service.url, patience=0.3, on_retry=seen.append) as client, self.assertRaises(UnavailableError):
            client.inspect("r")
        self.assertGreaterEqual(len(seen), 2)
        self.assertIsInstance(seen[0].error, UnavailableError)
        self.assertEqual([r.tries for r in seen[:2]], [1, 2])
        self.assertTrue(0 < seen[0].pause < 1 and seen[1].failing > 0)

    def test_the_rest_of_the_api(self):
        self.service.pages = {
            "/locks?limit=1000&prefix=a%2F": {"locks": [{"resource": "a/1"}, {"resource": "a/2"}], "next_cursor": "c 1"},
            "/locks?limit=1000&prefix=a%2F&cursor=c+1": {"locks": [{"resource": "a/3"}]},
            "/history?limit=1000&resource=a%2F1": {"resource": "a/1", "attempts": [ATTEMPT]},
        }
        self.assertEqual([lock.resource for lock in self.client.list("a/")], ["a/1", "a/2", "a/3"])
        at = datetime.datetime(2026, 3, 1, 12, 0, 2, 500000, datetime.timezone.utc)
        self.assertEqual(list(self.client.history("a/1")), [fencelock.Attempt(3, 4, "write", False, 1, at)])
        self.service.pages["/locks/a"] = {
            "resource": "a", "held": True, "holder": "me", "fencing_token": 7, "remaining_ms": 1500, "ttl_ms": 2000, "held_ms": 500, "waiters": 1,
            "queue": [{"holder": "b", "waiting_ms": 30}],
        }
        self.assertEqual(self.client.inspect("a"), fencelock.LockState("a", True, "me", 7, 1.5, 2.0, 0.5, None, 1, (fencelock.Waiter("b", 0.03),)))
        self.client.break_lock("a/1", 7)
        self.assertEqual(self.methods()[-1], ("POST", "/breaks"))
        self.assertEqual(self.service.calls[-1][2], {"resource": "a/1", "fencing_token": 7})
        self.client.break_any("a/1")
        self.assertEqual(self.service.calls[-1][2], {"resource": "a/1", "any": True})
        lease = self.client.lease("secret-id")
        lease.extend()
        lease.release()
        self.assertEqual(self.methods()[-3:], [("GET", "/leases/current"), ("POST", "/leases/current/extend"), ("DELETE", "/leases/current")])
        self.service.refuse["POST /breaks"] = (404, "lock-not-held")
        with self.assertRaises(fencelock.RefusedError):
            self.client.break_lock("a/1", 7)

    def test_records(self):
        record = {"resource": "a/1", "highest_token": 7, "value": {"paid": True}, "version": 2}
        self.service.pages = {
            "/guarded/a%2F1": record, "/guarded?limit=1000&prefix=a%2F": {"records": [{"resource": "a/1", "highest_token": 7, "version": 2}]},
        }
        want = fencelock.Record("a/1", 7, {"paid": True}, 2)
        lease = self.client.acquire("a/1")
        calls = (lambda: self.client.read_record("a/1"), lambda: self.client.claim_record(lease), lambda: self.client.write_record(lease.parts[0], None),
                 lambda: self.client.delete_record(lease))
        for call in calls:
            self.assertEqual(call(), want)
        self.assertEqual(self.methods()[1:], [("GET", "/guarded/a%2F1"), ("POST", "/guarded/a%2F1"), ("PUT", "/guarded/a%2F1"), ("DELETE", "/guarded/a%2F1")])
        sent = [call[3] for call in self.service.calls[1:]]
        self.assertEqual(list(self.client.records("a/")), [fencelock.Record("a/1", 7, None, 2)])
        self.assertEqual([h.get("Fencing-Token") for h in sent], [None, "1", "1", "1"])
        self.assertEqual([h.get("Fencing-Proof") for h in sent], [None, "secret-proof", "secret-proof", "secret-proof"])
        self.assertIsNone(self.service.calls[3][2])  # null is a value
        self.service.refuse["GET /guarded/b"] = (404, "record-not-found")
        self.assertEqual(self.client.read_record("b"), fencelock.Record("b"))
        self.service.refuse["PUT /guarded/a%2F1"] = (412, "stale-token")
        with self.assertRaises(fencelock.StaleTokenError) as caught:
            self.client.write_record(lease, 1)
        self.assertEqual(caught.exception.kind, "stale-token")
        self.service.refuse["PUT /guarded/a%2F1"] = (503, "guard-unavailable")
        before = len(self.service.calls)
        with self.assertRaises(UnavailableError):
            self.client.write_record(lease, 1)
        self.assertEqual(len(self.service.calls), before + 1)  # it may have been written
        with self.assertRaises(TypeError):
            self.client.write_record(lease, object())

    def test_a_lease_that_is_released_in_the_block(self):
        with self.client.lock("r") as lease:
            lease.release()
            self.assertTrue(lease.lost)
        self.assertEqual(self.methods().count(("DELETE", "/leases/current")), 1)

    def test_held(self):
        self.service.refuse["POST /locks"] = (409, "lock-held")
        with self.assertRaises(HeldError):
            with self.client.lock("r", wait=0):
                self.fail("it ran")

    def test_no_secret_is_shown(self):
        with self.client.lock("r") as lease:
            shown = [repr(self.client), repr(lease), str(lease), f"{lease}", repr(lease.parts)]
            with self.assertRaises(TypeError):
                pickle.dumps(lease)
        self.service.refuse["DELETE /leases/current"] = (404, "lease-not-held")
        try:
            lease.release()
        except FencelockError as e:
            shown.append(repr(e))
        for text in shown:
            for secret in SECRETS:
                self.assertNotIn(secret, text)

    def test_a_bearer_file_is_read_for_each_request(self):
        with tempfile.NamedTemporaryFile("w+") as f:
            client = Client(self.service.url, bearer=bearer_file(f.name))
            for credential in ("one", "two"):
                f.seek(0)
                f.write(credential + "\n")
                f.flush()
                client.inspect("r")
                self.assertEqual(self.service.calls[-1][3]["Authorization"], f"Bearer {credential}")
            client.close()

    def test_a_resource_in_a_path_is_quoted(self):
        self.client.inspect("orders/42 ä?")
        self.assertEqual(self.service.calls[-1][1], "/locks/orders%2F42%20%C3%A4%3F")

    def test_ctrl_c_during_a_wait_gives_the_request_up(self):
        self.service.hold = "/locks"

        def interrupt(*_):
            self.service.hold = ""
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begun = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            self.client.acquire("r", wait=30)
        self.assertLess(time.monotonic() - begun, 8)  # the service answers after ten
        eventually(lambda: ("POST", "/cancel") in self.methods())
        acquire, cancel = self.service.calls
        self.assertEqual(acquire[3]["Idempotency-Key"], cancel[3]["Idempotency-Key"])

    def test_close_waits_until_a_request_in_doubt_is_cancelled(self):
        self.service.refuse["POST /locks"] = (503, "no-quorum")
        client = Client(self.service.url, patience=0, on_retry=lambda _: None)
        with self.assertRaises(UnavailableError):
            client.acquire("r")
        self.service.refuse.clear()
        work = client._keeper._work_as_hand
        client._keeper._work_as_hand = lambda job: (work(job), time.sleep(0.1))  # its thread ends late
        client.close()
        self.assertEqual(self.methods()[-1], ("POST", "/cancel"))
        self.assertEqual([t.name for t in threading.enumerate() if t.name.startswith("fencelock")], [])

    def test_a_release_without_an_answer_goes_on_in_the_background(self):
        releases = lambda: self.methods().count(("DELETE", "/leases/current"))  # noqa: E731
        client = Client(self.service.url, timeout=2)
        self.addCleanup(client.close)
        with client.lock("r"):
            self.service.frozen.set()
            begun = time.monotonic()
        self.assertLess(time.monotonic() - begun, 8)  # and not the ten seconds for which it is repeated
        sent = releases()
        eventually(lambda: releases() > sent)

    def test_a_child_does_not_touch_its_parents_lease(self):
        with self.client.lock("r") as lease:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with self.client.lock("other"):
                        pass  # the child's own works
                    for call in (lease.extend, lease.release, lease.check):
                        with self.assertRaisesRegex(LeaseLostError, "forked"):
                            call()
                    code = 0 if lease.lost else 2
                finally:
                    os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertFalse(lease.lost)
            released = [c for c in self.service.calls if c[0] == "DELETE"]
            self.assertEqual(len(released), 1)  # the child's own

    def test_nothing_leaks(self):
        gc.collect()
        before = sockets()
        client = Client(self.service.url)
        for _ in range(30):
            with client.lock("r"):
                pass
        self.assertGreater(sockets(), before)
        client.close()
        eventually(lambda: sockets() == before)
        self.assertEqual([t.name for t in threading.enumerate() if t.name.startswith("fencelock")], [])

    def test_a_closed_client(self):
        self.client.close()
        for call in (lambda: self.client.acquire("r"), lambda: self.client.inspect("r")):
            with self.assertRaisesRegex(ClosedError, "this client is closed"):
                call()

    def test_a_block_that_outlives_its_client(self):
        told = []
        with self.assertRaisesRegex(LeaseLostError, "this client was closed"):
            with self.client.lock("r", on_lost=told.append) as lease:
                self.client.close()
                self.assertTrue(lease.wait_lost(0))
        self.assertEqual(told, [lease])
        self.assertEqual(self.methods().count(("DELETE", "/leases/current")), 1)

    def test_a_child_that_was_forked_while_another_thread_had_every_lock_leaves_the_block(self):
        lock = self.client.lock("r")
        lease = lock.__enter__()
        keeper, connections = self.client._keeper, self.client._pool
        locks = (keeper._lock, lease._kept._counting, lease._kept.stop._lock, connections.calls._lock)
        with contextlib.ExitStack() as held:
            for each in locks:
                held.enter_context(each)
            child = os.fork()
            if child == 0:
                signal.alarm(5)  # a child that hangs is killed
                try:
                    lock.__exit__(None, None, None)
                except LeaseLostError:
                    os._exit(0)
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertNotIn(("DELETE", "/leases/current"), self.methods())
        lock.__exit__(None, None, None)

    def test_a_timeout_bounds_the_whole_call(self):
        self.service.frozen.set()
        calls = {
            "acquire r": lambda: self.client.acquire("r", timeout=0.3), "inspect 'r'": lambda: self.client.inspect("r", timeout=0.3),
            "acquire w": lambda: self.client.acquire("w", wait=60, timeout=0.3), "acquire l": lambda: self.client.lock("l", timeout=0.3).__enter__(),
        }
        for name, call in calls.items():
            begun = time.monotonic()
            with self.subTest(name), self.assertRaisesRegex(TimedOutError, f"{name}: not done within its timeout of 0.3 s") as caught:
                call()
            self.assertLess(time.monotonic() - begun, 8)  # the service answers after ten
            self.assertIsInstance(caught.exception, TimeoutError)
            self.assertIsInstance(caught.exception, FencelockError)

    def test_a_lease_shows_its_state_and_token(self):
        with self.client.lock("r") as lease:
            self.assertIn("'r' token 1, valid for", repr(lease))
        self.assertIn("token 1, released", repr(lease))

    def test_waiting_for_oneself_is_found_at_once(self):
        other = Client(self.service.url)
        self.addCleanup(other.close)
        with self.client.lock(["a", "b"]):
            sent = len(self.service.calls)
            for call in (lambda: self.client.lock("a").__enter__(), lambda: self.client.acquire(["b", "c"]), lambda: other.lock(["a", "b"], wait=9).__enter__()):
                with self.assertRaisesRegex(fencelock.RefusedError, "would wait for itself"):
                    call()
            self.assertEqual(len(self.service.calls), sent)
            self.client.acquire("c").release()  # not held here
            self.client.acquire("a", slots=2).release()  # slots are apart from the resource
            self.client.acquire("a", wait=0).release()  # the service says who holds it
        self.client.acquire("a").release()

    def test_a_wall_clock_that_jumps(self):
        wall = time.time
        self.addCleanup(setattr, time, "time", wall)
        with self.client.lock("r", ttl=6) as lease:
            time.time = lambda: wall() + 86400
            self.assertFalse(lease.wait_lost(2.5))
            self.assertIn(("POST", "/leases/current/extend"), self.methods())

    def test_a_lease_that_was_released_is_not_extended(self):
        for _ in range(3):
            with self.client.lock("r", ttl=1):
                pass
        time.sleep(0.6)
        self.assertNotIn(("POST", "/leases/current/extend"), self.methods())

    def test_a_connection_that_the_server_closed_costs_no_try(self):
        self.client.inspect("r")
        (idle,) = self.client._connections()._idle.values()
        port = idle[0].getsockname()[1]
        self.service.close_port(port)
        eventually(lambda: _connections._readable(idle[0]))
        failed = []
        send = self.client._pool.send
        self.client._pool.send = lambda *args: counted(send, failed, *args)
        self.client.inspect("r")
        self.assertEqual(failed, [])

    def test_connections_are_used_again(self):
        with self.client.lock("r"):
            pass
        with self.client.lock("r"):
            pass
        pool = self.client._connections()
        self.assertEqual([len(s) for s in pool._idle.values()], [1])


def counted(send, failed, *args):
    try:
        return send(*args)
    except Exception as e:
        failed.append(e)
        raise


def sockets():
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it
            count += "socket" in os.readlink(f"/proc/self/fd/{fd}")
    return count


def eventually(holds, timeout=60):
    end = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("it did not come true")
        time.sleep(0.01)


SRC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src")


class AProcessEnds(ServiceCase):
    """Ctrl-C ends a process at once, whatever the servers do."""

    PREPARE = "import sys, time; from fencelock import Client; ready = lambda *_: print('ready', flush=True); client = Client(sys.argv[1], on_retry=ready)\n"

    def seconds_to_end(self, program, url, after):
        process = subprocess.Popen(
            [sys.executable, "-c", self.PREPARE + program, url], env={**os.environ, "PYTHONPATH": SRC}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        with process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            after()
            begun = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.wait(30)
            return time.monotonic() - begun

    def test_while_it_waits_or_holds(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        down, frozen = "http://127.0.0.1:1", f"http://127.0.0.1:{silent.getsockname()[1]}"
        connected = []
        idle = "while True: time.sleep(0.01)"  # a signal just before a long sleep would end it only then
        usual = [self.seconds_to_end("ready()\n" + idle, down, lambda: None)]  # on this machine, as busy as it is
        for name, program, url, after in (
            ("down", "client.acquire('r', wait=60)", down, lambda: None),
            ("frozen", "ready(); client.acquire('r', wait=60)", frozen, lambda: connected.append(silent.accept())),
            ("frozen later", "with client.lock('r', ttl=60):\n ready()\n " + idle, self.service.url, self.service.frozen.set),
        ):
            with self.subTest(name):
                took = self.seconds_to_end(program, url, after)
                usual.append(self.seconds_to_end("ready()\n" + idle, down, lambda: None))
                self.assertLess(took, 3 * max(usual) + 0.5)
        for connection, _ in connected:
            connection.close()


class Aio(ServiceCase):
    def run_with_client(self, work, **settings):
        async def run():
            async with aio.Client(self.service.url, **{"timeout": 20, **settings}) as client:
                await work(client)
            return [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]

        self.assertEqual(asyncio.run(run()), [])

    def test_a_lock(self):
        async def work(client):
            async with client.lock("orders/42", ttl=30, wait=5) as lease:
                self.assertEqual((lease.token, lease.ttl), (1, 30))
                self.assertIs(fencelock.current(), lease)
                lease.check()

        self.run_with_client(work)
        self.assertEqual(self.methods(), [("POST", "/locks"), ("DELETE", "/leases/current")])

    def test_a_connection_that_is_reset_leaves_no_exception_behind(self):
        def reset_all(listener):
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.recv(10_000)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()

        async def run(port):
            async with aio.Client(f"http://127.0.0.1:{port}", timeout=20, patience=0) as client:
                with self.assertRaises(UnavailableError):
                    await client.acquire("r", wait=0)
            # The collector would report it, whenever it comes to it.
            return [f for f in gc.get_objects() if isinstance(f, asyncio.Future) and f.done() and f._log_traceback]

        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=reset_all, args=(listener,), daemon=True).start()
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        self.assertEqual(asyncio.run(run(listener.getsockname()[1])), [])
        listener.close()

    def test_work_is_cancelled_when_the_lease_is_lost(self):
        self.service.refuse["POST /leases/current/extend"] = (404, "lease-not-held")

        async def work(client):
            with self.assertRaises(LeaseLostError):
                async with client.lock("r", ttl=1):
                    await asyncio.sleep(20)
                    self.fail("the work continued")
            await asyncio.sleep(0)  # the task itself is not cancelled

        begun = time.monotonic()
        self.run_with_client(work)
        self.assertLess(time.monotonic() - begun, 15)

    def test_a_lock_nests(self):
        async def work(client):
            async def child():
                async with outer.join() as lease:
                    async with client.lock("r") as inner:
                        self.assertIs(inner, lease)
                    entered.set()
                    await end.wait()
                    return lease

            entered, end = asyncio.Event(), asyncio.Event()
            async with client.lock("r") as outer:
                async with client.lock("r", wait=0) as inner:
                    self.assertIs(inner, outer)
                self.assertFalse(outer.lost)
                task = asyncio.create_task(child())
                await entered.wait()
            self.assertFalse(outer.lost)  # the last one releases it
            end.set()
            self.assertIs(await task, outer)
            self.assertTrue(outer.lost)

        self.run_with_client(work)
        self.assertEqual(self.methods(), [("POST", "/locks"), ("DELETE", "/leases/current")])

    def test_a_task_of_the_block_does_not_join_by_itself(self):
        async def work(client):
            at_once = []

            async def child(wait):
                async with client.lock("r", wait=wait):
                    at_once.append(wait)

            async with client.lock("r") as lease:
                sent = len(self.service.calls)
                refused = await asyncio.gather(child(None), child(9), return_exceptions=True)
                for error in refused:
                    self.assertIsInstance(error, fencelock.RefusedError)
                    self.assertEqual(error.kind, "would-wait-for-itself")
                    self.assertIn("async with lease.join()", str(error))
                self.assertEqual((at_once, len(self.service.calls)), ([], sent))
                async with client.lock("r"):  # the task itself joins
                    pass
            await asyncio.create_task(child(9))
            with self.assertRaisesRegex(LeaseLostError, "it was released"):
                async with lease.join():
                    self.fail("the lease is over")
            with self.assertRaisesRegex(RuntimeError, "join is for the lease of a with statement"):
                async with (await client.acquire("s")).join():
                    self.fail("nothing keeps it")

        self.run_with_client(work)

    def test_the_loss_cancels_every_task_under_the_lease_once(self):
        self.service.refuse["POST /leases/current/extend"] = (404, "lease-not-held")

        async def work(client):
            async def child(lease):
                async with lease.join():
                    await asyncio.sleep(20)

            with self.assertRaises(LeaseLostError):
                async with client.lock("r", ttl=1) as lease:
                    task = asyncio.create_task(child(lease))
                    async with client.lock("r"):
                        await asyncio.sleep(20)
            with self.assertRaises(LeaseLostError):
                await task
            await asyncio.sleep(0)  # the task itself is not cancelled

        begun = time.monotonic()
        self.run_with_client(work)
        self.assertLess(time.monotonic() - begun, 15)

    def test_the_rest_of_the_api(self):
        self.service.pages = {"/locks?limit=1000&prefix=": {"locks": [{"resource": "a"}]}, "/history?limit=1000&resource=a": {"attempts": [ATTEMPT]}, "/guarded/a": {"resource": "a"}, "/guarded?limit=1000&prefix=": {"records": [{"resource": "a"}]}}

        async def work(client):
            self.assertEqual([lock.resource async for lock in client.list()], ["a"])
            self.assertEqual([attempt.highest async for attempt in client.history("a")], [4])
            self.assertEqual([record async for record in client.records()], [fencelock.Record("a")])
            lease = await client.acquire("a")
            for record in (await client.read_record("a"), await client.write_record(lease, 1), await client.delete_record(lease)):
                self.assertEqual(record, fencelock.Record("a"))
            await client.break_lock("a", 7)
            await (await client.lease("secret-id")).release()

        self.run_with_client(work)
        self.assertEqual(self.methods()[-1], ("DELETE", "/leases/current"))

    def test_a_cancel_of_the_caller_stays_a_cancel(self):
        async def work(client):
            entered = asyncio.Event()

            async def job():
                async with client.lock("r"):
                    entered.set()
                    await asyncio.sleep(20)

            task = asyncio.create_task(job())
            await entered.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        self.run_with_client(work)
        self.assertIn(("DELETE", "/leases/current"), self.methods())

    @unittest.skipIf(sys.version_info < (3, 11), "NOT RUN: before 3.11 asyncio does not count cancels")
    def test_a_cancel_beside_the_loss_stays_a_cancel(self):
        self.service.refuse["POST /leases/current/extend"] = (404, "lease-not-held")

        async def work(client):
            async def job():
                task = asyncio.current_task()
                async with client.lock("r", ttl=1, on_lost=lambda _: task.cancel()):
                    await asyncio.sleep(20)

            with self.assertRaises(asyncio.CancelledError):
                await asyncio.create_task(job())

        self.run_with_client(work)

    def test_a_lease_that_was_released_is_not_extended(self):
        async def work(client):
            async with client.lock("r", ttl=1):
                pass
            await asyncio.sleep(0.6)

        self.run_with_client(work)
        self.assertNotIn(("POST", "/leases/current/extend"), self.methods())

    def test_a_time_limit_ends_with_its_request(self):
        async def work(client):
            client._protocol.timeout = 2
            await client.inspect("r")
            ((connection,),) = client._connections._idle.values()
            await asyncio.sleep(2.3)
            self.assertFalse(connection[1].transport.is_closing())

        self.run_with_client(work)

    def test_a_cancelled_acquire_returns_at_once(self):
        self.service.hold = "/locks"

        async def work(client):
            task = asyncio.create_task(client.acquire("r", wait=30))
            while not self.service.calls:
                await asyncio.sleep(0.01)
            begun = time.monotonic()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertLess(time.monotonic() - begun, 8)  # the service answers after ten
            self.service.hold = ""
            self.service.wait.set()

        self.run_with_client(work)
        self.assertEqual(self.methods(), [("POST", "/locks"), ("POST", "/cancel")])

    def test_locked(self):
        async def work(client):
            @client.locked("orders/{order}")
            async def charge(order):
                return fencelock.current().resource

            self.assertEqual(await charge(7), "orders/7")

        self.run_with_client(work)

    def test_many_at_once(self):
        async def work(client):
            async def one(n):
                async with client.lock(f"r/{n}") as lease:
                    await asyncio.sleep(0.01)
                    return lease.token

            tokens = await asyncio.gather(*(one(n) for n in range(50)))
            self.assertEqual(len(set(tokens)), 50)

        self.run_with_client(work)

    def test_a_client_serves_one_loop_after_another(self):
        client = aio.Client(self.service.url)

        async def once():
            async with client.lock("r"):
                pass
            for idle in client._connections._idle.values():  # what asyncio.run would warn of
                for _, writer in idle:
                    writer.transport.abort()

        asyncio.run(once())
        asyncio.run(once())

    def test_no_server(self):
        async def run():
            async with aio.Client("http://127.0.0.1:1", patience=0.3) as client:
                with self.assertRaises(UnavailableError):
                    await client.acquire("r")

        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
