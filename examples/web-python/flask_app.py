"""POST /accounts/<id>/deposits/<deposit> {"amount": 5} under the account's lock, with Flask.

DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 gunicorn --workers 3 flask_app:app   (psycopg 3)
"""
import os
import time

import psycopg
from fencelock import Client, HeldError, LeaseLostError, UnavailableError
from fencelock.guard import fenced
from flask import Flask, jsonify, request

app = Flask(__name__)
locks = Client(os.environ["FENCELOCK_URL"])
TTL = float(os.environ.get("LEASE_TTL", "30"))  # seconds


@app.post("/accounts/<int:account>/deposits/<deposit>")
def deposit(account, deposit):
    with locks.lock(f"accounts/{account}", ttl=TTL, wait=5) as lease, psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        with fenced(conn, lease):
            (balance,) = conn.execute("SELECT balance FROM accounts WHERE id = %s", (account,)).fetchone()
            time.sleep(0.1)  # the rules of the business
            balance += request.json["amount"]
            conn.execute("INSERT INTO deposits VALUES (%s, %s, %s)", (deposit, account, request.json["amount"]))
            conn.execute("UPDATE accounts SET balance = %s WHERE id = %s", (balance, account))
    return jsonify(balance=balance)


@app.errorhandler(HeldError)
@app.errorhandler(UnavailableError)
def later(error):
    return jsonify(error=str(error)), 503


@app.errorhandler(LeaseLostError)
def lost(error):  # also StaleTokenError: another process had the account meanwhile
    return jsonify(error=str(error)), 409
