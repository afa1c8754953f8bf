"""Celery tasks of which one at a time runs for a customer, and three at a time in all.

    FENCELOCK_URL=http://127.0.0.1:8080 CELERY_BROKER_URL=… celery -A celery_tasks worker
"""

import os
import time

from celery import Celery

from fencelock import Client, HeldError, LeaseLostError, UnavailableError

app = Celery("celery_tasks")
app.conf.task_acks_late = True  # a worker that dies leaves its task to another
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 1

# Made before the workers fork: each of them has connections of its own.
client = Client(os.environ["FENCELOCK_URL"], holder="celery")
TTL = float(os.environ.get("LEASE_TTL", "30"))  # seconds, after which another worker may have what a dead one held


# A task that does not get its locks soon makes room for others, and is tried again.
@app.task(bind=True, autoretry_for=(HeldError, LeaseLostError, UnavailableError), retry_backoff=True, retry_backoff_max=2, max_retries=None)
def invoice(self, customer, seconds):
    with client.lock(f"invoices/{customer}", ttl=TTL, wait=2) as lease, client.lock("pdf", slots=3, ttl=TTL, wait=2) as slot:
        began = time.time_ns()
        time.sleep(seconds)  # render it
        lease.check()
        log(f"{customer}/{self.request.id} {slot.slot} {lease.token} {began} {time.time_ns()}")  # where others are: give the token to the storage


def log(line):
    with open(os.environ["INVOICE_LOG"], "a", encoding="utf-8") as f:
        f.write(line + "\n")  # one write: lines of several workers do not mix
