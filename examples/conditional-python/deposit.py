"""Deposits money into an account whose row, or hash, keeps the fencing token beside the balance: in SQLite, or in Redis.

    python3 deposit.py shop.db TOKEN AMOUNT
    python3 deposit.py redis://127.0.0.1:6379 TOKEN AMOUNT

Both storages compare the token and write in one step. The holder claims before it reads: then the write of an
earlier holder that comes later is refused. With a stale token nothing changes, and the program exits with 3.
"""

import sqlite3
import sys
import time

RULES = 0.05  # seconds that the rules of the business take


class Sqlite:
    """CREATE TABLE accounts (id INTEGER PRIMARY KEY, fence INTEGER NOT NULL, balance INTEGER NOT NULL)"""

    def __init__(self, path):
        self.db = sqlite3.connect(path, isolation_level=None, timeout=30)  # each statement is a transaction

    def claim(self, account, token):
        claimed = self.db.execute("UPDATE accounts SET fence = ?1 WHERE id = ?2 AND fence <= ?1", (token, account))
        return claimed.rowcount == 1

    def read(self, account):
        return self.db.execute("SELECT balance FROM accounts WHERE id = ?", (account,)).fetchone()[0]

    def write(self, account, token, balance):
        written = self.db.execute("UPDATE accounts SET balance = ?3 WHERE id = ?2 AND fence = ?1", (token, account, balance))
        return written.rowcount == 1


class Redis:
    """The hash account:N. Run it with appendfsync always and noeviction, and not on the nodes of the lock service."""

    CLAIM = "if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then return 0 end redis.call('HSET', KEYS[1], 'fence', ARGV[1]) return 1"
    WRITE = "if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then return 0 end redis.call('HSET', KEYS[1], 'balance', ARGV[2]) return 1"

    def __init__(self, url):
        import redis

        self.db = redis.Redis.from_url(url)
        self.claims, self.writes = self.db.register_script(self.CLAIM), self.db.register_script(self.WRITE)

    def claim(self, account, token):
        return self.claims(keys=[f"account:{account}"], args=[token]) == 1

    def read(self, account):
        return int(self.db.hget(f"account:{account}", "balance") or 0)

    def write(self, account, token, balance):
        return self.writes(keys=[f"account:{account}"], args=[token, balance]) == 1


def deposit(storage, account, token, amount):
    """Returns the new balance, or None if the token is stale."""
    if not storage.claim(account, token):
        return None
    balance = storage.read(account) + amount
    time.sleep(RULES)
    return balance if storage.write(account, token, balance) else None


if __name__ == "__main__":
    where, token, amount = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    balance = deposit(Redis(where) if where.startswith("redis") else Sqlite(where), 1, token, amount)
    if balance is None:
        print(f"token {token} is stale: another worker has the account now", file=sys.stderr)
        sys.exit(3)
    print("balance is", balance)
