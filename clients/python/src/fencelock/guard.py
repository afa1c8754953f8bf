"""Presents a lease's token to the guard in Postgres (docs/reference/guard.md) or MariaDB (docs/reference/guard-mariadb.md).

    with client.lock("accounts/1") as lease:
        with fenced(conn, lease):
            balance = conn.execute("SELECT balance FROM accounts WHERE id = 1").fetchone()[0]
            conn.execute("UPDATE accounts SET balance = %s WHERE id = 1", (balance + 10,))

The block is one transaction, which commits at its end. It claims with the token before anything
else, so everything that it reads is at least as new as the last write of any earlier holder. If
the token is stale, it raises StaleTokenError, and nothing is written.

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

from ._grant import Part
from ._lease import LeaseView
from .errors import RefusedError, StaleTokenError, shown

_STALE = ("LK001", 31001)  # the SQLSTATE in Postgres, and the error number in MariaDB
_REFUSED: Dict[Any, Tuple[str, str]] = {  # the same for the guard's other refusals, each with its kind and a text
    "LK002": ("token-required", "a protected row was changed whose resource the transaction has not claimed"),
    "LK003": ("invalid-request", "the token or the resource is malformed"),
    31002: ("token-required", "a protected row was changed whose resource the transaction has not claimed"),
    31003: ("invalid-request", "the token or the resource is malformed"),
    "LK004": ("proof-required", "the proof of the token is missing or wrong"),
}
_MISSING = ("3F000", "42883", 1305)  # the schema, function or routine does not exist
_WAITED_TOO_LONG = ("55P03", 1205)  # lock_not_available, ER_LOCK_WAIT_TIMEOUT
_ACTIVE = 1  # libpq's state of a connection with a statement under way


@contextlib.contextmanager
def fenced(conn: Any, lease: LeaseView) -> Iterator[Any]:
    """A transaction that has claimed the lease's resources with their tokens. It yields ``conn``.

    Raises LeaseLostError if the lease is lost at the beginning or before the commit, and StaleTokenError if the guard
    has seen a larger token (never repeat that token; acquire again). In both cases nothing is written.

    In Postgres the transaction's lock_timeout is the validity that the lease had at the beginning, and its
    idle_in_transaction_session_timeout is a second more. In MariaDB the claim waits for at most that validity. The
    session's idle_transaction_timeout is at most a second more until the transaction has ended, and then what it was.

    Other errors come unchanged from the driver. SQLSTATE 40001, 40P01 and 55P03, and MariaDB's 1020, 1205 and 1213,
    may be repeated while the lease is held. After an error of the commit itself the transaction may have taken
    effect."""
    lease.check()
    begin, execute, guard = _adapter(conn)
    try:
        with begin():
            if guard.limit:
                execute(guard.limit(lease), [])
            for part in lease.parts:
                execute(*guard.claim(part, lease))
            yield conn
            lease.check()
    except Exception as e:
        _translate(e, lease)
        raise


@contextlib.asynccontextmanager
async def afenced(conn: Any, lease: LeaseView) -> AsyncIterator[Any]:
    """``fenced`` for asyncio connections."""
    lease.check()
    begin, execute, guard = _adapter(conn)
    try:
        async with begin():
            try:
                if guard.limit:
                    await execute(guard.limit(lease), [])
                for part in lease.parts:
                    await execute(*guard.claim(part, lease))
                yield conn
                lease.check()
            except asyncio.CancelledError:
                # A cancelled statement may still run. Its transaction must not stay open.
                if getattr(getattr(conn, "info", None), "transaction_status", 0) == _ACTIVE:
                    await conn.close()
                raise
    except Exception as e:
        _translate(e, lease)
        raise


Begin = Callable[[], Any]  # returns a context manager
Execute = Callable[[str, List[Any]], Any]


class _Guard(NamedTuple):
    """The SQL for one kind of database: how to claim, and how to limit the session's idle time before that (None if
    the claim does it)."""

    claim: Callable[[Part, LeaseView], Tuple[str, List[Any]]]
    limit: Optional[Callable[[LeaseView], str]]


def _claim_in_postgres(part: Part, lease: LeaseView) -> Tuple[str, List[Any]]:
    """Claims a resource. It also sets time limits: no statement in the transaction waits for a lock after the lease
    may have ended, and a holder that hangs in the transaction does not block the next holder."""
    milliseconds = max(1, int(lease.validity * 1000))
    # The idle limit is a second longer: a holder that reaches the end of its block within that second gets LeaseLostError, not a broken connection.
    values: List[Any] = [str(milliseconds), str(milliseconds + 1000), part.resource, part.token]
    if part.proof:
        values.append(part.proof)
    claim = f"fencing.claim({', '.join(['%s'] * (len(values) - 2))})"
    return f"SELECT set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true), {claim}", values


def _claim_in_mariadb(part: Part, lease: LeaseView) -> Tuple[str, List[Any]]:
    seconds = max(1, math.ceil(lease.validity))
    return "SET STATEMENT innodb_lock_wait_timeout = %s FOR SELECT fencing_claim(%s, %s)", [seconds, part.resource, part.token]


def _limit_in_mariadb(lease: LeaseView) -> str:
    """Limits the idle time, so that a holder that hangs in its transaction does not block the next holder. The limit
    is a second longer than the validity, as in Postgres. A shorter limit of the session stays. MariaDB has two more
    limits, for transactions that have written and for those that have not: one that is not 0 counts instead."""
    seconds = max(1, math.ceil(lease.validity)) + 1
    limit = f"IF(@@idle_transaction_timeout BETWEEN 1 AND {seconds}, @@idle_transaction_timeout, {seconds})"
    return (
        "SET @fencing_idle = @@idle_transaction_timeout, "
        "@fencing_idle_write = @@idle_write_transaction_timeout, @fencing_idle_read = @@idle_readonly_transaction_timeout, "
        f"SESSION idle_transaction_timeout = {limit}, "
        f"SESSION idle_write_transaction_timeout = LEAST(@@idle_write_transaction_timeout, {seconds}), "
        f"SESSION idle_readonly_transaction_timeout = LEAST(@@idle_readonly_transaction_timeout, {seconds})"
    )


_FORGET = (
    "SET @fencing_claimer = NULL, SESSION idle_transaction_timeout = IFNULL(@fencing_idle, @@idle_transaction_timeout), "
    "SESSION idle_write_transaction_timeout = IFNULL(@fencing_idle_write, @@idle_write_transaction_timeout), "
    "SESSION idle_readonly_transaction_timeout = IFNULL(@fencing_idle_read, @@idle_readonly_transaction_timeout), "
    "@fencing_idle = NULL, @fencing_idle_write = NULL, @fencing_idle_read = NULL"
)


def _ending(how: str) -> str:
    """Ends MariaDB's transaction by COMMIT or ROLLBACK, and then takes the claim and the limit from the connection. It
    is one statement, because the server carries it out to its end even if the holder is paused. A holder that was
    paused between two would keep the rows without a limit, or leave its claim to the connection's next user."""
    return f"BEGIN NOT ATOMIC {how}; {_FORGET}; END"


def _or_discard(roll_back: Callable[[], Any], discard: Callable[[], Any]) -> None:
    """Rolls back after an error, which comes first: this raises no other. A connection that cannot be rolled back is
    discarded, so that its claim is not left to its next user."""
    try:
        roll_back()
    except BaseException as e:
        with contextlib.suppress(Exception):
            discard()
        if not isinstance(e, Exception):
            raise


_POSTGRES = _Guard(_claim_in_postgres, None)  # the claim sets the limits, for its transaction only
_MARIADB = _Guard(_claim_in_mariadb, _limit_in_mariadb)


def _of(kind: str) -> _Guard:
    return _MARIADB if kind in ("mysql", "mariadb") else _POSTGRES


def _adapter(conn: Any) -> Tuple[Begin, Execute, _Guard]:
    """How a driver's connection begins a transaction, and how it executes a statement."""
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

    def end(how: str) -> None:
        execute(_ending(how), [])

    @contextlib.contextmanager
    def transaction() -> Iterator[None]:
        conn.begin()
        try:
            yield
            end("COMMIT")
        except BaseException:
            # To close the connection here would have its owner's close() fail.
            _or_discard(lambda: end("ROLLBACK"), lambda: execute("KILL CONNECTION_ID()", []))
            raise

    (busy,) = execute("SELECT @@in_transaction", [])
    return transaction, execute, not busy, _MARIADB


def _sqlalchemy(conn: Any) -> Adapted:
    text = importlib.import_module("sqlalchemy").text
    begin = conn.begin

    def execute(sql: str, values: List[Any]) -> Any:
        names = [f"v{i}" for i in range(len(values))]
        return conn.execute(text(sql % tuple(f":{n}" for n in names)), dict(zip(names, values)))

    dialect = getattr(conn, "dialect", None) or conn.get_bind().dialect
    guard = _of(dialect.name)
    if guard is _MARIADB:
        begin = lambda: (_async_in_sqlalchemy if hasattr(conn, "run_sync") else _in_sqlalchemy)(conn)  # noqa: E731
    return begin, execute, not conn.in_transaction(), guard


@contextlib.contextmanager
def _in_sqlalchemy(conn: Any) -> Iterator[None]:
    """A transaction in MariaDB."""
    with contextlib.ExitStack() as ended:
        with conn.begin():
            ended.callback(_end_at_the_end(conn))
            yield


@contextlib.asynccontextmanager
async def _async_in_sqlalchemy(conn: Any) -> AsyncIterator[None]:
    with contextlib.ExitStack() as ended:
        async with conn.begin():
            ended.callback(await conn.run_sync(_end_at_the_end))
            yield


def _end_at_the_end(conn: Any) -> Callable[[], None]:
    """Has SQLAlchemy run ``_ending`` where it is about to end the transaction: a Session has sent its changes by then,
    and still has its connection. Returns how to undo that."""
    sqlalchemy = importlib.import_module("sqlalchemy")
    connection = conn if isinstance(conn, sqlalchemy.engine.Connection) else conn.connection()

    def raw(sql: str) -> None:
        with contextlib.closing(connection.connection.cursor()) as cursor:
            cursor.execute(sql)

    def roll_back() -> None:
        _or_discard(lambda: raw(_ending("ROLLBACK")), connection.invalidate)

    def commit(_: Any) -> None:
        try:
            connection.exec_driver_sql(_ending("COMMIT"))
        except BaseException:
            roll_back()
            raise

    events: Dict[str, Callable[..., Any]] = {
        "commit": commit,
        "rollback": lambda _: roll_back(),
        # A prepared transaction keeps its rows without its connection, so there is no limit to restore too early.
        "prepare_twophase": lambda _, xid: connection.exec_driver_sql(_FORGET),
        "rollback_twophase": lambda _, xid, prepared: _or_discard(lambda: raw(_FORGET), connection.invalidate),
    }
    for name, function in events.items():
        sqlalchemy.event.listen(connection, name, function)

    def undo() -> None:
        for name, function in events.items():
            sqlalchemy.event.remove(connection, name, function)

    return undo


def _asyncpg(conn: Any) -> Adapted:
    async def execute(sql: str, values: List[Any]) -> Any:
        numbers = iter(range(1, len(values) + 1))
        return await conn.execute(re.sub("%s", lambda _: f"${next(numbers)}", sql), *values)

    return conn.transaction, execute, not conn.is_in_transaction(), _POSTGRES


def _django(conn: Any) -> Adapted:
    atomic = importlib.import_module("django.db.transaction").atomic
    begin = lambda: atomic(using=conn.alias, durable=True)  # noqa: E731 - durable refuses a transaction around it
    guard = _of(conn.vendor)
    if guard is _MARIADB:
        return lambda: _in_django(conn, begin), _with_cursor(conn), True, guard
    return begin, _with_cursor(conn), True, guard


@contextlib.contextmanager
def _in_django(conn: Any, begin: Begin) -> Iterator[None]:
    """A transaction in MariaDB."""
    ours = not conn.in_atomic_block  # otherwise it is that of a TestCase of Django, which ends it

    def end(how: str) -> None:
        # Django's own cursor would refuse it after an error in a block within.
        with conn.wrap_database_errors, conn.connection.cursor() as cursor:
            cursor.execute(_ending(how) if ours else _FORGET)

    with begin():
        try:
            yield
            end("ROLLBACK" if conn.needs_rollback else "COMMIT")
        except BaseException:
            _or_discard(lambda: end("ROLLBACK"), conn.close)
            raise


_ADAPTERS = {"asyncpg": _asyncpg, "psycopg": _psycopg, "psycopg2": _psycopg2, "pymysql": _mysql, "MySQLdb": _mysql, "sqlalchemy": _sqlalchemy, "django": _django}


def _translate(error: Optional[BaseException], lease: LeaseView) -> None:
    """Raises the client's error for an error of the guard, found by its SQLSTATE or number in the error or its
    causes: StaleTokenError, RefusedError, or LeaseLostError after a wait that outlasted the lease."""
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
    """The error for a stale token. Within its cluster a valid lease has the largest token, so the refusal of a valid
    lease has another reason than a newer lease."""
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
        diagnosis = getattr(error, "diag", None)  # psycopg has it here, asyncpg on the error itself
        detail = json.loads(diagnosis.message_detail if diagnosis else error.detail)  # type: ignore[attr-defined]
        stale.resource, stale.presented, stale.highest = detail["resource"], detail["presented"], detail["highest"]
    return stale
