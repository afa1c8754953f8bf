"""APScheduler on several hosts, of which one runs the jobs: that which leads.

    FENCELOCK_URL=http://127.0.0.1:8080 python3 apscheduler_leader.py
"""

import os
import time

from apscheduler.schedulers.background import BackgroundScheduler

from fencelock import Client

client = Client(os.environ["FENCELOCK_URL"], holder=f"scheduler {os.getpid()}")


def report(lease):
    lease.check()  # raises LeaseLostError: this process was paused, and another leads
    print(f"report {lease.token} {time.time_ns()}", flush=True)  # pass the token to what is written


def lead(lease):
    scheduler = BackgroundScheduler()
    scheduler.add_job(report, "interval", [lease], seconds=0.2, max_instances=1)
    scheduler.start()
    try:
        lease.wait_lost()
    finally:
        scheduler.shutdown()  # waits for the jobs that run


client.elect("scheduler", lead, ttl=float(os.environ.get("LEASE_TTL", "10")))
