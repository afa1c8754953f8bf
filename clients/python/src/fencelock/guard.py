"""Presents a lease's token to the guard in Postgres (docs/reference/guard.md) or MariaDB (docs/reference/guard-mariadb.md).

    with client.lock("accounts/1") as lease:
        with fenced(conn, lease):
            balance = conn.execute("SELECT balance FROM accounts WHERE id = 1").fetchone()[0]
            conn.execute("UPDATE accounts SET balance = %s WHERE id = 1", (balance + 10,))

The block is one transaction. It claims with the token before anything else, so what it
reads is at least as new as the last write of any earlier holder, and commits at its end. A
token that is stale raises StaleTokenError, and nothing is written.

``conn`` is a connection of psycopg 3, of psycopg2 (2.9 and newer), of PyMySQL, of mysqlclient, of
SQLAlchemy (also a Session), or of Django (``django.db.connection``). It must not be in a transaction.
``afenced`` (``fencelock.aio.fenced``) takes psycopg's AsyncConnection, asyncpg's Connection, and SQLAlchemy's
AsyncConnection and AsyncSession.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import math
import re
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ._core import Part
from ._lease import LeaseView
from .errors import RefusedError, StaleTokenError, shown

_STALE = ("LK001", 31001)  # the SQLSTATE in Postgres, and MariaDB's error number
_REFUSED: Dict[Any, Tuple[str, str]] = {  # the same of the guard's other refusals: the kind, and what it says
    "LK002": ("token-required", "a protected row was changed whose resource the transaction has not claimed"),
    "LK003": ("invalid-request", "the token or the resource is malformed"),
    31002: ("token-required", "a protected row was changed whose resource the transaction has not claimed"),
    31003: ("invalid-request", "the token or the resource is malformed"),
    "LK004": ("proof-required", "the proof of the token is missing or wrong"),
}
_MISSING = ("3F000", "42883", 1305)  # no such schema, function or routine
_WAITED_TOO_LONG = ("55P03", 1205)  # lock_not_available, ER_LOCK_WAIT_TIMEOUT
_ACTIVE = 1  # libpq's state of a connection with a statement under way


@contextlib.contextmanager
def fenced(conn: Any, lease: LeaseView) -> Iterator[Any]:
    """A transaction that has claimed the lease's resources with their tokens, and gives ``conn``.

    Raises LeaseLostError if the lease is lost, at the beginning or before the commit; nothing is
    written then. StaleTokenError if the guard has seen a larger token: never repeat it, acquire again.
    In Postgres the transaction's lock_timeout is what the lease was valid for when it began, and its
    idle_in_transaction_session_timeout is the TTL; in MariaDB the claim waits no longer than that.
    Other errors as the driver gives them: SQLSTATE 40001, 40P01 and 55P03 may be repeated while the
    lease is held, and MariaDB's 1020, 1205 and 1213. After an error of the commit itself the transaction may have taken effect."""
    lease.check()
    begin, execute, guard = _adapter(conn)
    try:
        with begin():
            for part in lease.parts:
                execute(*guard.claim(part, lease))
            yield conn
            if guard.forget:
                execute(guard.forget, [])
            lease.check()
    except Exception as e:
        _translate(e, lease)
        raise


@contextlib.asynccontextmanager
async def afenced(conn: Any, lease: LeaseView) -> AsyncIterator[Any]:
    """``fenced`` for connections on asyncio."""
    lease.check()
    begin, execute, guard = _adapter(conn)
    try:
        async with begin():
            try:
                for part in lease.parts:
                    await execute(*guard.claim(part, lease))
                yield conn
                if guard.forget:
                    await execute(guard.forget, [])
                lease.check()
            except asyncio.CancelledError:
                # A statement that was cancelled may still run: its transaction must not stay open.
                if getattr(getattr(conn, "info", None), "transaction_status", 0) == _ACTIVE:
                    await conn.close()
                raise
    except Exception as e:
        _translate(e, lease)
        raise


Begin = Callable[[], Any]  # gives a context manager
Execute = Callable[[str, List[Any]], Any]


class _Guard(NamedTuple):
    """How a kind of database claims, and what takes the claim from the connection before the commit."""

    claim: Callable[[Part, LeaseView], Tuple[str, List[Any]]]
    forget: str


def _claim_in_postgres(part: Part, lease: LeaseView) -> Tuple[str, List[Any]]:
    """Claims, and sees to it that nothing in the transaction waits for a lock when the lease
    may have ended, and that a holder which hangs in it does not hold up the next one."""
    milliseconds = max(1, int(lease.validity * 1000))
    values: List[Any] = [str(milliseconds), str(max(1, int(lease.ttl * 1000))), part.resource, part.token]
    if part.proof:
        values.append(part.proof)
    claim = f"fencing.claim({', '.join(['%s'] * (len(values) - 2))})"
    return f"SELECT set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true), {claim}", values


def _claim_in_mariadb(part: Part, lease: LeaseView) -> Tuple[str, List[Any]]:
    seconds = max(1, math.ceil(lease.validity))
    return "SET STATEMENT innodb_lock_wait_timeout = %s FOR SELECT fencing_claim(%s, %s)", [seconds, part.resource, part.token]


_POSTGRES = _Guard(_claim_in_postgres, "")
_MARIADB = _Guard(_claim_in_mariadb, "SET @fencing_claimer = NULL")


def _of(kind: str) -> _Guard:
    return _MARIADB if kind in ("mysql", "mariadb") else _POSTGRES


def _adapter(conn: Any) -> Tuple[Begin, Execute, _Guard]:
    """How a driver's connection begins a transaction, and runs a statement in it."""
    library = type(conn).__module__.partition(".")[0]
    adapter = _ADAPTERS.get(library)
    if adapter is None:
        raise TypeError(f"fenced knows no connections of {library}: run SELECT fencing.claim(resource, token) first in a transaction of yours")
    begin, execute, idle, guard = adapter(conn)
    if not idle:
        raise RuntimeError("the connection is in a transaction already: what it has read may be older than the claim")
    return begin, execute, guard


Adapted = Tuple[Begin, Execute, bool, _Guard]


def _with_cursor(conn: Any) -> Execute:
    def execute(sql: str, values: List[Any]) -> Any:
        with conn.cursor() as cursor:
            cursor.execute(sql, values)
            return cursor.fetchone() if cursor.description else None

    return execute


def _psycopg(conn: Any) -> Adapted:
    return conn.transaction, conn.execute, conn.info.transaction_status == 0, _POSTGRES


def _psycopg2(conn: Any) -> Adapted:
    return lambda: conn, _with_cursor(conn), conn.info.transaction_status == 0, _POSTGRES


def _mysql(conn: Any) -> Adapted:
    execute = _with_cursor(conn)

    @contextlib.contextmanager
    def transaction() -> Iterator[None]:
        conn.begin()
        try:
            yield
        except BaseException:
            conn.rollback()
            raise
        conn.commit()

    (busy,) = execute("SELECT @@in_transaction", [])
    return transaction, execute, not busy, _MARIADB


def _sqlalchemy(conn: Any) -> Adapted:
    text = importlib.import_module("sqlalchemy").text

    def execute(sql: str, values: List[Any]) -> Any:
        names = [f"v{i}" for i in range(len(values))]
        return conn.execute(text(sql % tuple(f":{n}" for n in names)), dict(zip(names, values)))

    dialect = getattr(conn, "dialect", None) or conn.get_bind().dialect
    return conn.begin, execute, not conn.in_transaction(), _of(dialect.name)


def _asyncpg(conn: Any) -> Adapted:
    async def execute(sql: str, values: List[Any]) -> Any:
        numbers = iter(range(1, len(values) + 1))
        return await conn.execute(re.sub("%s", lambda _: f"${next(numbers)}", sql), *values)

    return conn.transaction, execute, not conn.is_in_transaction(), _POSTGRES


def _django(conn: Any) -> Adapted:
    atomic = importlib.import_module("django.db.transaction").atomic
    begin = lambda: atomic(using=conn.alias, durable=True)  # noqa: E731 - durable refuses a transaction around it
    return begin, _with_cursor(conn), True, _of(conn.vendor)


_ADAPTERS = {"asyncpg": _asyncpg, "psycopg": _psycopg, "psycopg2": _psycopg2, "pymysql": _mysql, "MySQLdb": _mysql, "sqlalchemy": _sqlalchemy, "django": _django}


def _translate(error: Optional[BaseException], lease: LeaseView) -> None:
    """Raises StaleTokenError, or LeaseLostError for a wait that has outlived the lease, if an error or what
    it was made from has that SQLSTATE."""
    first = error
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or next(iter(error.args), None)
        if state in _STALE:
            raise _stale(error, lease) from first
        refused = _REFUSED.get(state)
        if refused:
            raise _refused(refused[0], f"the guard refused the write: {refused[1]}: {shown(str(error))}", lease) from first
        if state in _MISSING and "fencing" in str(error):
            raise _refused("guard-not-configured", 'the database has no guard: run "fencelock guard install"', lease) from first
        if state in _WAITED_TOO_LONG:
            lease.check()
        error = getattr(error, "orig", None) or error.__cause__


_STALE_IN_MARIADB = re.compile(r"(?s)stale fencing token for '(.*)': presented (\d+), highest seen (\d+)$")


def _refused(kind: str, text: str, lease: LeaseView) -> RefusedError:
    error = RefusedError(text)
    error.kind, error.resource = kind, lease.resource
    return error


def _stale(error: BaseException, lease: LeaseView) -> StaleTokenError:
    """A valid lease has the largest token of its cluster, so a refusal of it has another reason than a newer lease."""
    text = f"the token of {shown(lease.resource)} is stale: stop, and acquire again"
    if not lease.lost:
        text += ". The lease is still valid here, so an operator broke it, or another fencelock cluster claims this resource"
    stale = StaleTokenError(text)
    stale.kind, stale.resource = "stale-token", lease.resource
    said = _STALE_IN_MARIADB.match(str(error.args[-1])) if error.args else None
    if said:
        stale.resource, stale.presented, stale.highest = said[1], int(said[2]), int(said[3])
        return stale
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        diagnosis = getattr(error, "diag", None)  # psycopg; asyncpg has it on the error
        detail = json.loads(diagnosis.message_detail if diagnosis else error.detail)  # type: ignore[attr-defined]
        stale.resource, stale.presented, stale.highest = detail["resource"], detail["presented"], detail["highest"]
    return stale
