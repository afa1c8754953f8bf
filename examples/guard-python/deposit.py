"""DATABASE_URL=postgres://… python3 deposit.py TOKEN AMOUNT  (psycopg 3)"""
import json
import os
import sys

import psycopg

token, amount = int(sys.argv[1]), int(sys.argv[2])
try:
    with psycopg.connect(os.environ["DATABASE_URL"]) as conn:  # one transaction
        conn.execute("SELECT fencing.claim('accounts/1', %s)", (token,))  # before the first read
        (balance,) = conn.execute("SELECT balance FROM accounts WHERE id = 1").fetchone()
        balance += amount
        conn.execute("UPDATE accounts SET balance = %s WHERE id = 1", (balance,))
except psycopg.Error as error:
    if error.sqlstate != "LK001":
        raise
    stale = json.loads(error.diag.message_detail)
    print(f"stale: presented {stale['presented']}, highest {stale['highest']}; acquire the lock again", file=sys.stderr)
    sys.exit(3)
print("balance is", balance)
