"""Leases with fencing tokens, from a fencelock service.

    from fencelock import Client
    from fencelock.guard import fenced

    client = Client("https://locks-1:8080,https://locks-2:8080")
    with client.lock("orders/42", ttl=30, wait=5) as lease:
        lease.check()                   # raises LeaseLostError if the lease is lost
        with fenced(conn, lease):       # claims with the token; commits at the end
            conn.execute("UPDATE …")

``fencelock.aio`` has the same names for asyncio. See README.md.
"""

from ._core import Retry
from ._grant import Part
from ._lease import current
from ._options import bearer_file
from ._state import Attempt, LockState, Record, Waiter
from ._sync import Client, Lease, Lock
from .errors import ClosedError, DeniedError, FencelockError, HeldError, LeaseLostError, OtherLeaseError, RefusedError, StaleTokenError, TimedOutError, UnavailableError

__version__ = "0.1.0"
__all__ = [
    "Attempt", "Client", "ClosedError", "DeniedError", "FencelockError", "HeldError", "Lease", "LeaseLostError", "Lock", "LockState", "OtherLeaseError", "Part",
    "Record", "RefusedError", "Retry", "StaleTokenError", "TimedOutError", "UnavailableError", "Waiter", "bearer_file", "current",
]

