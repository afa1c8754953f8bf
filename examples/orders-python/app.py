"""A small web backend: POST /orders/<id>/charge takes the order's lock, reads the order, and writes it guarded.

DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 PORT=3000 python3 app.py   (psycopg 3)
"""
import contextlib
import json
import os
import re
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

LOCKS = os.environ["FENCELOCK_URL"]


def call(method, path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(LOCKS + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.loads(response.read() or "null")


@contextlib.contextmanager
def lock(resource, ttl_ms=30_000, wait_ms=10_000):
    """The fencing token of a lease. The work must be done within the TTL; what comes later is refused by the guard."""
    lease = call("POST", "/locks", {"resource": resource, "ttl_ms": ttl_ms, "wait_ms": wait_ms})
    try:
        yield lease["fencing_token"]
    finally:
        with contextlib.suppress(urllib.error.URLError):  # the TTL ends it anyway
            call("DELETE", "/leases/" + lease["lease_id"])


def charge(order):
    with lock(f"orders/{order}") as token, psycopg.connect(os.environ["DATABASE_URL"]) as conn:  # one transaction
        conn.execute("SELECT fencing.claim(%s, %s)", (f"orders/{order}", token))  # before the first read
        (charges,) = conn.execute("SELECT charges FROM orders WHERE id = %s", (order,)).fetchone()
        charges += 1  # here is where a payment would be made
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
        except urllib.error.HTTPError as error:
            self.answer(503, {"error": json.loads(error.read())["title"]})

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
