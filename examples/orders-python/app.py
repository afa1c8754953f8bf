"""A small web backend: POST /orders/<id>/charge takes the order's lock, reads the order, and writes it guarded.

DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 PORT=3000 python3 app.py   (psycopg 3)
"""
import contextlib
import http.client
import json
import os
import random
import re
import secrets
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

SERVERS = os.environ["FENCELOCK_URL"].split(",")  # of one service: when one does not answer, the next is asked
ANSWER, WAIT = 2, 2  # seconds that a server has to answer, and that one request waits in the queue
PATIENCE, TTL = 15, 30  # seconds of trying, and of the lease: much longer than one try
WORK = 5  # seconds of the lease that must be left when the work begins
answered = 0  # the server that answered last


class Unavailable(Exception):
    pass


def ask(method, path, body=None, headers=(), wait=0, patience=2 * ANSWER):
    """Asks until a server answers for good: when that request was sent, the status, and the answer. It may be sent twice."""
    global answered
    give_up, code = time.monotonic() + patience, 599
    data = json.dumps(body).encode() if body is not None else None
    while (sent := time.monotonic()) < give_up:
        server = answered
        request = urllib.request.Request(SERVERS[server] + path, data, {"Content-Type": "application/json", **dict(headers)}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=wait + ANSWER) as response:
                return sent, response.status, json.loads(response.read() or "null")
        except urllib.error.HTTPError as refusal:
            code = refusal.code
            if code < 500 and code not in (408, 409, 429):
                return sent, code, None
        except (OSError, http.client.HTTPException, ValueError):
            code = 599  # no answer: it may have taken effect
        if code >= 500 and answered == server:
            answered = (server + 1) % len(SERVERS)
        time.sleep(random.uniform(0.05, 0.2))
    raise Unavailable(f"{method}: {code}")  # what a lost answer may have granted ends with its TTL


@contextlib.contextmanager
def lock(resource):
    """The fencing token of a lease, and the monotonic time until which it is valid. The guard refuses what comes later."""
    key = {"Idempotency-Key": secrets.token_hex(16)}  # every try finds the same lease
    body = {"resource": resource, "ttl_ms": TTL * 1000, "wait_ms": WAIT * 1000}
    sent, status, lease = ask("POST", "/locks", body, key, WAIT, PATIENCE)
    if lease is None:
        raise Unavailable(f"not acquired: {status}")
    until = sent + (lease["waited_ms"] + lease["validity_ms"]) / 1000  # never from when the answer came
    try:
        if until - time.monotonic() < WORK:
            raise Unavailable("the lease arrived too late")
        yield lease["fencing_token"], until
    finally:
        with contextlib.suppress(Unavailable):  # the TTL ends it anyway
            ask("DELETE", "/leases/current", headers={"Fencelock-Lease": lease["lease_id"]})  # after a lost answer, 404 is as good as 204


def charge(order):
    # One transaction. The token is claimed before the first read.
    with lock(f"orders/{order}") as (token, until), psycopg.connect(os.environ["DATABASE_URL"], connect_timeout=WORK) as conn:
        conn.execute("SELECT fencing.claim(%s, %s)", (f"orders/{order}", token))
        (charges,) = conn.execute("SELECT charges FROM orders WHERE id = %s", (order,)).fetchone()
        if time.monotonic() > until:
            raise Unavailable("the lease has expired")
        charges += 1  # here is where a payment would be made, which no guard can refuse
        conn.execute("UPDATE orders SET charges = %s WHERE id = %s", (charges, order))
        return charges


class Backend(BaseHTTPRequestHandler):
    def do_POST(self):
        path = re.fullmatch(r"/orders/(\d+)/charge", self.path)
        if not path:
            return self.answer(404, {"error": "no such path"})
        try:
            self.answer(200, {"charges": charge(int(path[1]))})
        except psycopg.Error as error:
            if error.sqlstate != "LK001":
                raise
            self.answer(409, {"error": "the order changed hands, try again"})  # nothing was written
        except Unavailable as error:
            self.answer(503, {"error": str(error)})

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), Backend)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
