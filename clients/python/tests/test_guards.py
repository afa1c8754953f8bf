"""fenced() on a real Postgres and a real MariaDB, with every library that this Python can import.
DATABASE_URL and MARIADB_URL name databases with the guard, in which clients/python's Go test has
made the tables."""

import asyncio
import concurrent.futures
import contextlib
import importlib
import importlib.util
import os
import socket
import threading
import time
import unittest
import unittest.mock
import urllib.parse

from fencelock import LeaseLostError, RefusedError, StaleTokenError
from fencelock._grant import Grant
from fencelock._lease import LeaseView
from fencelock.guard import afenced, fenced

URL = os.environ.get("DATABASE_URL", "")
MARIADB = urllib.parse.urlsplit(os.environ.get("MARIADB_URL", ""))
PAUSED = os.environ.get("FENCELOCK_TEST_PAUSED", "PyMySQL").split()  # the classes in which holders are paused for seconds
NEEDED = os.environ.get("FENCELOCK_TEST_LIBRARIES", "").split()  # the Go test names what has to be there


def needs(library):
    missing = library not in NEEDED and importlib.util.find_spec(library) is None
    return unittest.skipIf(not (URL and MARIADB.path) or missing, f"NOT RUN: {library} cannot be imported, or DATABASE_URL or MARIADB_URL is not set")


def lease(*parts, validity=60_000, proof=""):
    of = [{"resource": r, "fencing_token": t, "fencing_proof": proof} for r, t in parts]
    answer = {"lease_id": "secret", "ttl_ms": 60_000, "waited_ms": 0, "validity_ms": validity, "resources": of}
    return LeaseView(Grant(time.monotonic, time.monotonic(), answer))


class Guards:
    """What holds with every library. Each has accounts of its own, from ``base``."""

    base = 0

    def account(self, n):
        return self.base + n, f"accounts/{self.base + n}"

    def balance(self, id):
        with self.connect() as conn:
            return self.read(conn, id)

    def deposit(self, conn, id, lease, amount=10):
        with fenced(conn, lease) as tx:
            self.write(tx, id, self.read(tx, id) + amount)

    def test_deposits_under_a_token(self):
        id, name = self.account(1)
        with self.connect() as conn:
            self.deposit(conn, id, lease((name, 34)))
            self.deposit(conn, id, lease((name, 34)))
        self.assertEqual(self.balance(id), 20)

    def test_a_stale_token_writes_nothing(self):
        id, name = self.account(2)
        with self.connect() as conn:
            self.deposit(conn, id, lease((name, 34)))
            with self.assertRaises(StaleTokenError) as caught:
                self.deposit(conn, id, lease((name, 33)))
            self.assertEqual((caught.exception.resource, caught.exception.presented, caught.exception.highest), (name, 33, 34))
            self.deposit(conn, id, lease((name, 35)))  # the connection can be used again
        self.assertEqual(self.balance(id), 20)

    def test_a_token_that_becomes_stale_in_the_block(self):
        one, name = self.account(3)
        two, other = self.account(4)
        with self.connect() as conn:
            self.deposit(conn, two, lease((other, 9)))
            with self.assertRaises(StaleTokenError):
                with fenced(conn, lease((name, 5))) as tx:
                    self.write(tx, one, 1)
                    self.claim(tx, other, 8)
        self.assertEqual((self.balance(one), self.balance(two)), (0, 10))

    def test_an_exception_rolls_back(self):
        id, name = self.account(5)
        with self.connect() as conn:
            with self.assertRaises(ZeroDivisionError):
                with fenced(conn, lease((name, 1))) as tx:
                    self.write(tx, id, 99)
                    1 / 0
        self.assertEqual(self.balance(id), 0)

    def test_a_lost_lease_is_not_committed(self):
        id, name = self.account(6)
        with self.connect() as conn:
            short = lease((name, 1), validity=200)
            with self.assertRaises(LeaseLostError):
                with fenced(conn, short) as tx:
                    self.write(tx, id, 99)
                    time.sleep(short.validity + 0.01)
            with self.assertRaises(LeaseLostError):
                with fenced(conn, short):
                    self.fail("the block ran under a lost lease")
        self.assertEqual(self.balance(id), 0)

    def test_a_claim_does_not_wait_for_longer_than_its_lease(self):
        id, name = self.account(10)
        with self.connect_again() as holder, self.connect() as conn:
            with self.begun(holder):
                self.claim(holder, name, 1)
                begun = time.monotonic()
                with self.assertRaises(LeaseLostError):
                    with fenced(conn, lease((name, 2), validity=500)):
                        self.fail("two holders at once")
                self.assertLess(time.monotonic() - begun, 5)

    def connect_again(self):
        return self.connect()

    def test_several_resources(self):
        one, first = self.account(7)
        two, second = self.account(8)
        with self.connect() as conn:
            with fenced(conn, lease((first, 3), (second, 4))) as tx:
                self.write(tx, one, 1)
                self.write(tx, two, 2)
        self.assertEqual((self.balance(one), self.balance(two)), (1, 2))

    def test_a_transaction_that_has_begun_is_refused(self):
        _, name = self.account(9)
        with self.connect() as conn:
            with self.begun(conn):
                with self.assertRaises(RuntimeError):
                    with fenced(conn, lease((name, 1))):
                        self.fail("the claim came after a read")


class Cursors:
    def read(self, conn, id):
        with conn.cursor() as c:
            c.execute("SELECT balance FROM accounts WHERE id = %s", (id,))
            return c.fetchone()[0]

    def write(self, conn, id, balance):
        with conn.cursor() as c:
            c.execute("UPDATE accounts SET balance = %s WHERE id = %s", (balance, id))

    def claim(self, conn, name, token):
        with conn.cursor() as c:
            c.execute("SELECT fencing.claim(%s, %s)", (name, token))

    def begun(self, conn):
        self.read(conn, self.base + 9)
        return unittest.mock.MagicMock()


@needs("psycopg")
class Psycopg3(Cursors, Guards, unittest.TestCase):
    base = 100

    def connect(self):
        import psycopg

        return psycopg.connect(URL)


@needs("psycopg")
class Psycopg3Autocommit(Psycopg3):
    base = 200

    def connect(self):
        import psycopg

        return psycopg.connect(URL, autocommit=True)

    def begun(self, conn):
        return conn.transaction()


@needs("psycopg2")
class Psycopg2(Cursors, Guards, unittest.TestCase):
    base = 300
    autocommit = False

    def connect(self):
        import psycopg2

        conn = psycopg2.connect(URL)
        conn.autocommit = self.autocommit
        return contextlib.closing(conn)


@needs("psycopg2")
class Psycopg2Autocommit(Psycopg2):
    base = 400
    autocommit = True

    def begun(self, conn):
        with conn.cursor() as c:
            c.execute("BEGIN")
        return unittest.mock.MagicMock()


@needs("sqlalchemy")
class SQLAlchemyConnection(Guards, unittest.TestCase):
    base = 500
    future = False

    def setUp(self):
        import sqlalchemy

        options = {"future": True} if self.future else {}
        self.engine = sqlalchemy.create_engine(URL.replace("postgres://", "postgresql+psycopg2://"), **options)
        self.addCleanup(self.engine.dispose)

    def connect(self):
        return self.engine.connect()

    def run_sql(self, conn, sql, **values):
        import sqlalchemy

        return conn.execute(sqlalchemy.text(sql), values)

    def read(self, conn, id):
        return self.run_sql(conn, "SELECT balance FROM accounts WHERE id = :id", id=id).scalar()

    def write(self, conn, id, balance):
        self.run_sql(conn, "UPDATE accounts SET balance = :b WHERE id = :id", id=id, b=balance)

    def claim(self, conn, name, token):
        self.run_sql(conn, "SELECT fencing.claim(:r, :t)", r=name, t=token)

    def begun(self, conn):
        return conn.begin()


@needs("sqlalchemy")
class SQLAlchemyFuture(SQLAlchemyConnection):
    base = 600
    future = True


@needs("sqlalchemy")
class SQLAlchemySession(SQLAlchemyConnection):
    base = 700
    future = True

    def connect(self):
        from sqlalchemy.orm import Session

        return Session(self.engine, future=True)


@needs("django")
class Django(Cursors, Guards, unittest.TestCase):
    base = 800

    @classmethod
    def setUpClass(cls):
        import django
        from django.conf import settings

        u = urllib.parse.urlsplit(URL)
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": u.path[1:], "USER": u.username, "PASSWORD": u.password or "", "HOST": u.hostname, "PORT": u.port}
        options = {"init_command": "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "isolation_level": None}
        mariadb = {"ENGINE": "django.db.backends.mysql", "NAME": MARIADB.path[1:], "USER": MARIADB.username, "PASSWORD": MARIADB.password, "HOST": MARIADB.hostname, "PORT": MARIADB.port, "OPTIONS": options}
        if not settings.configured:
            settings.configure(DATABASES={"default": database, "mariadb": mariadb}, USE_TZ=True)
            django.setup()

    @classmethod
    def tearDownClass(cls):
        from django.db import connections

        connections.close_all()

    def connect(self):
        from django.db import connection

        return contextlib.nullcontext(connection)

    def raw(self):
        import psycopg2

        return psycopg2.connect(URL)

    def test_a_claim_does_not_wait_for_longer_than_its_lease(self):
        _, name = self.account(10)
        holder = self.raw()
        self.addCleanup(holder.close)
        self.claim(holder, name, 1)
        begun = time.monotonic()
        with self.connect() as conn, self.assertRaises(LeaseLostError):
            with fenced(conn, lease((name, 2), validity=500)):
                self.fail("two holders at once")
        self.assertLess(time.monotonic() - begun, 5)

    def begun(self, conn):
        from django.db import transaction

        return transaction.atomic()


def mariadb_arguments(port=None):
    return {"host": MARIADB.hostname, "port": port or MARIADB.port, "user": MARIADB.username, "password": MARIADB.password, "database": MARIADB.path[1:]}


class Pause:
    """A way to MariaDB for one connection, whose holder is paused before the server gets its packet number n from the
    one that limits it. ``meanwhile`` runs in that pause."""

    def __init__(self, n, meanwhile):
        self.left, self.meanwhile, self.begun = n, meanwhile, False
        self.packet = self.error = None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        holder, _ = self.listener.accept()
        with holder, socket.create_connection((MARIADB.hostname, MARIADB.port)) as server:
            back = threading.Thread(target=self.carry, args=(server, holder))
            back.start()
            self.carry(holder, server, self.before)
            back.join()

    def carry(self, source, to, before=lambda packet: None):
        with contextlib.suppress(OSError):  # the other side is gone
            for packet in iter(lambda: source.recv(1 << 16), b""):
                before(packet)
                to.sendall(packet)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def before(self, packet):
        self.begun = self.begun or b"idle_transaction_timeout" in packet
        self.left -= self.begun
        if self.left or not self.begun or self.packet:
            return
        self.packet = packet
        try:
            self.meanwhile()
        except Exception as e:
            self.error = e

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):  # if nothing has connected
            socket.create_connection(("127.0.0.1", self.port)).close()
        self.listener.close()
        self.thread.join()


class InMariaDB:
    """What differs where the guard is in MariaDB."""

    def claim(self, conn, name, token):
        with conn.cursor() as c:
            c.execute("SELECT fencing_claim(%s, %s)", (name, token))
            c.fetchall()

    def test_a_writer_that_claims_nothing_is_refused_on_the_same_connection(self):
        id, name = self.account(11)
        with self.connect() as conn:
            self.deposit(conn, id, lease((name, 34)))
            with self.assertRaises(Exception) as caught:
                with self.transaction(conn):
                    self.write(conn, id, 99)
        self.assertIn("no fencing token for", str(caught.exception))
        self.assertEqual(self.balance(id), 10)

    def value(self, conn, query):
        with conn.cursor() as c:
            c.execute(query)
            return c.fetchone()[0]

    def set_idle_limit(self, conn, setting, seconds):
        with conn.cursor() as c:
            c.execute(f"SET SESSION {setting} = {seconds}")

    def test_the_session_has_its_own_idle_limits_again(self):
        """MariaDB uses the limit for transactions that have written, or that for the others, instead of the first if it
        is not 0: a server that sets it must not let a holder keep its rows."""
        id, name = self.account(12)
        held = lease((name, 34))
        for setting in ("idle_transaction_timeout", "idle_write_transaction_timeout", "idle_readonly_transaction_timeout"):
            for own, how in ((0, "commit"), (0, "rollback"), (7, "commit"), (1000, "commit"), (1000, "rollback")):
                with self.subTest(setting=setting, own=own, how=how), self.connect() as conn:
                    with self.transaction(conn):
                        self.set_idle_limit(conn, setting, own)
                    with contextlib.suppress(ZeroDivisionError):
                        with fenced(conn, held) as tx:
                            within = self.idle_limit(tx, setting)
                            self.write(tx, id, 20 if how == "commit" else 1 / 0)
                    with self.transaction(conn):
                        self.assertEqual(self.idle_limit(conn, setting), own)
                        self.set_idle_limit(conn, setting, 0)
                    with self.assertRaises(Exception) as caught, self.transaction(conn):
                        self.write(conn, id, 99)
                    self.assertIn("no fencing token for", str(caught.exception))
                    unlimited = own == 0 and setting != "idle_transaction_timeout"  # it does not count
                    self.assertIn(within, [own] if own == 7 or unlimited else range(8, 62))  # a second more than it was still valid for

    def test_a_holder_that_is_paused_is_put_out(self):
        """Wherever it is paused from the limit to the end of its transaction, the next holder gets the rows while it is
        paused: MariaDB ends its connection."""
        if type(self).__name__ not in PAUSED:
            self.skipTest("make verify pauses holders with this library, too")
        plans = [(fails, n) for fails in (False, True) for n in range(1, 11)]
        for i in range(len(plans)):
            self.succeed(self.account(20 + i)[1], 1)  # so that those below wait for no rows but their own
        with concurrent.futures.ThreadPoolExecutor(10) as several:
            packets = list(several.map(lambda i: self.paused(*plans[i], *self.account(20 + i)), range(len(plans))))
        for fails, end in (False, b"COMMIT"), (True, b"ROLLBACK"):
            of = [packet for plan, packet in zip(plans, packets) if plan[0] == fails]
            self.assertTrue(any(end in packet for packet in of if packet), of)
            self.assertIsNone(of[-1], "the last packet is not known")

    def paused(self, fails, n, id, name):
        """The packet that the server got late, if there were n."""
        with Pause(n, lambda: self.succeed(name, 3)) as pause:
            with self.connect_by(pause.port) as conn, contextlib.suppress(Exception):
                with fenced(conn, lease((name, 2), validity=2000)) as tx:
                    self.write(tx, id, 1 / 0 if fails else self.read(tx, id) + 1)
        self.assertIsNone(pause.error, f"before {pause.packet}")
        return pause.packet

    def succeed(self, name, token):
        import pymysql

        with contextlib.closing(pymysql.connect(**mariadb_arguments())) as conn:
            conn.begin()
            with conn.cursor() as c:
                c.execute("SET SESSION innodb_lock_wait_timeout = 8")
                c.execute("SELECT fencing_claim(%s, %s)", (name, token))
            conn.commit()

    def test_an_error_of_the_commit_is_the_drivers(self):
        id, name = self.account(13)
        with self.connect() as conn:
            with self.assertRaises(Exception) as caught:
                with fenced(conn, lease((name, 34))) as tx:
                    self.write(tx, id, 99)
                    self.end_connection(self.value(tx, "SELECT CONNECTION_ID()"))
            error = getattr(caught.exception, "orig", caught.exception)
            self.assertIn(error.args[0], (2006, 2013), error)  # the server has gone away, or was lost
        self.assertEqual(self.balance(id), 0)

    def end_connection(self, id):
        import pymysql

        with contextlib.closing(pymysql.connect(**mariadb_arguments())) as conn:
            with conn.cursor() as c:
                c.execute(f"KILL {id}")

    def idle_limit(self, conn, setting):
        return self.value(conn, f"SELECT @@{setting}")

    def transaction(self, conn):
        return self.begun(conn)


@needs("pymysql")
class PyMySQL(InMariaDB, Cursors, Guards, unittest.TestCase):
    base = 100
    library = "pymysql"

    def connect(self):
        return self.connect_by(None)

    def connect_by(self, port):
        return contextlib.closing(importlib.import_module(self.library).connect(**mariadb_arguments(port)))

    @contextlib.contextmanager
    def transaction(self, conn):
        try:
            yield
        finally:
            conn.rollback()


@needs("MySQLdb")
class Mysqlclient(PyMySQL):
    base = 200
    library = "MySQLdb"


@needs("pymysql")
class SQLAlchemyMariaDB(InMariaDB, SQLAlchemyConnection):
    base = 300
    driver = "mysql+pymysql"

    def setUp(self):
        self.engine = self.engine_of(MARIADB)

    def engine_of(self, url):
        import sqlalchemy

        engine = sqlalchemy.create_engine(url._replace(scheme=self.driver).geturl(), future=self.future)
        self.addCleanup(engine.dispose)
        return engine

    def connect(self):
        return self.connection_of(self.engine)

    @contextlib.contextmanager
    def connect_by(self, port):
        engine = self.engine_of(MARIADB._replace(netloc=MARIADB.netloc.replace(str(MARIADB.port), str(port))))
        try:
            with self.connection_of(engine) as conn:
                yield conn
        finally:
            engine.dispose()

    def connection_of(self, engine):
        return engine.connect()

    def set_idle_limit(self, conn, setting, seconds):
        self.run_sql(conn, f"SET SESSION {setting} = {seconds}")

    def claim(self, conn, name, token):
        self.run_sql(conn, "SELECT fencing_claim(:r, :t)", r=name, t=token)

    def value(self, conn, query):
        return self.run_sql(conn, query).scalar()


@needs("MySQLdb")
class SQLAlchemySessionMariaDB(SQLAlchemyMariaDB):
    base = 400
    future = True
    driver = "mysql+mysqldb"

    def connection_of(self, engine):
        from sqlalchemy.orm import Session

        return Session(engine, future=True)

    def test_changes_that_the_commit_sends_are_in_its_transaction(self):
        """A Session sends what is pending when it commits, and an application may add to that in before_commit."""
        import sqlalchemy
        from sqlalchemy.orm import declarative_base

        class Account(declarative_base()):
            __tablename__ = "accounts"
            id = sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)
            balance = sqlalchemy.Column(sqlalchemy.BigInteger)

        (one, first), (two, second), (three, _) = self.account(40), self.account(41), self.account(42)

        def deposit(session, *ids):
            for id in ids:
                session.get(Account, id).balance += 10

        with self.connect() as session:
            sqlalchemy.event.listen(session, "before_commit", lambda session: deposit(session, two))
            with fenced(session, lease((first, 1), (second, 1))):
                deposit(session, one)
            with self.assertRaises(RefusedError) as caught:
                with fenced(session, lease((first, 2), (second, 2))):
                    deposit(session, one, three)
            self.assertEqual(caught.exception.kind, "token-required")
        self.assertEqual([self.balance(id) for id in (one, two, three)], [10, 10, 0])

    def test_a_transaction_in_two_phases(self):
        from sqlalchemy.orm import Session

        id, name = self.account(43)
        for amount in 10, 0:
            with Session(self.engine, future=True, twophase=True) as session, contextlib.suppress(ZeroDivisionError):
                with fenced(session, lease((name, 1))) as tx:
                    self.write(tx, id, 100 / amount)
            with self.connect() as conn:
                self.assertEqual(self.idle_limit(conn, "idle_transaction_timeout"), 0)
                self.assertEqual(self.value(conn, "SELECT @fencing_claimer IS NULL"), 1)
        self.assertEqual(self.balance(id), 10)


@needs("MySQLdb")
class DjangoMariaDB(InMariaDB, Django):
    base = 500

    def raw(self):
        import MySQLdb

        return MySQLdb.connect(**mariadb_arguments())

    def connect(self):
        from django.db import connections

        return contextlib.nullcontext(connections["mariadb"])

    @contextlib.contextmanager
    def connect_by(self, port):
        from django.db import connections

        alias = f"mariadb-{port}"
        conn = connections[alias] = connections["mariadb"].copy(alias)
        conn.settings_dict["PORT"] = port
        try:
            yield conn
        finally:
            conn.close()
            del connections[alias]

    def test_the_transaction_of_a_test_case_is_not_committed(self):
        import django.test

        id, name = self.account(14)
        outer = self

        class Application(django.test.TestCase):
            databases = {"mariadb"}

            def test(self):
                for amount in 10, 0:
                    with outer.connect() as conn, contextlib.suppress(ZeroDivisionError):
                        with fenced(conn, lease((name, 1))):
                            outer.write(conn, id, 10 // amount)
                with outer.assertRaisesRegex(Exception, "no fencing token for"):
                    outer.write(conn, id, 2)
                outer.assertEqual(outer.idle_limit(conn, "idle_transaction_timeout"), 0)

        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(Application).run(result)
        self.assertEqual((result.testsRun, result.errors, result.failures), (1, [], []))
        self.assertEqual(self.balance(id), 0)

    def test_a_block_that_is_to_be_rolled_back_is(self):
        from django.db import transaction

        id, name = self.account(15)
        with self.connect() as conn:
            with fenced(conn, lease((name, 1))):
                self.write(conn, id, 10)
                transaction.set_rollback(True, using="mariadb")
            with self.assertRaisesRegex(Exception, "no fencing token for"), self.transaction(conn):
                self.write(conn, id, 10)
        self.assertEqual(self.balance(id), 0)

    def begun(self, conn):
        from django.db import transaction

        return transaction.atomic(using="mariadb")


@needs("psycopg")
class PsycopgAsync(unittest.TestCase):
    base = 900

    def test_deposit_and_stale(self):
        import psycopg

        async def run():
            conn = await psycopg.AsyncConnection.connect(URL)
            async with conn:
                async with afenced(conn, lease(("accounts/901", 7))):
                    await conn.execute("UPDATE accounts SET balance = 10 WHERE id = 901")
                with self.assertRaises(StaleTokenError) as caught:
                    async with afenced(conn, lease(("accounts/901", 6))):
                        self.fail("the claim was not refused")
                self.assertEqual(caught.exception.highest, 7)
                row = await (await conn.execute("SELECT balance FROM accounts WHERE id = 901")).fetchone()
                self.assertEqual(row[0], 10)

        asyncio.run(run())

    def test_a_cancelled_statement_leaves_no_transaction_open(self):
        import psycopg

        async def run():
            conn = await psycopg.AsyncConnection.connect(URL)

            async def job():
                async with afenced(conn, lease(("accounts/902", 1))):
                    await conn.execute("SELECT pg_sleep(3)")

            task = asyncio.create_task(job())
            await asyncio.sleep(0.5)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            other = await psycopg.AsyncConnection.connect(URL)
            async with other:
                async with afenced(other, lease(("accounts/902", 2))):
                    pass
            await conn.close()

        asyncio.run(run())


@needs("asyncpg")
class Asyncpg(unittest.TestCase):
    def test_deposit_stale_and_refused(self):
        import asyncpg

        async def run():
            conn = await asyncpg.connect(URL)
            async with afenced(conn, lease(("accounts/911", 7), ("accounts/912", 3))):
                await conn.execute("UPDATE accounts SET balance = $1 WHERE id = 911", 10)
            with self.assertRaises(StaleTokenError) as caught:
                async with afenced(conn, lease(("accounts/911", 6))):
                    self.fail("the claim was not refused")
            self.assertEqual((caught.exception.resource, caught.exception.presented, caught.exception.highest), ("accounts/911", 6, 7))
            with self.assertRaises(RefusedError) as refused:
                async with afenced(conn, lease(("accounts/912", 3))):
                    await conn.execute("UPDATE accounts SET balance = 1 WHERE id = 911")
            self.assertEqual(refused.exception.kind, "token-required")
            async with conn.transaction():
                with self.assertRaises(RuntimeError):
                    async with afenced(conn, lease(("accounts/911", 8))):
                        self.fail("it ran")
            self.assertEqual(await conn.fetchval("SELECT balance FROM accounts WHERE id = 911"), 10)
            await conn.close()

        asyncio.run(run())


@needs("psycopg")
class Refusals(unittest.TestCase):
    def test_a_database_without_a_guard_says_what_to_do(self):
        import psycopg

        with psycopg.connect(urllib.parse.urlsplit(URL)._replace(path="/template1").geturl()) as conn:
            with self.assertRaisesRegex(RefusedError, "fencelock guard install") as caught:
                with fenced(conn, lease(("accounts/1", 1))):
                    self.fail("it ran")
        self.assertEqual((caught.exception.kind, caught.exception.__cause__.sqlstate), ("guard-not-configured", "3F000"))

    def test_a_valid_lease_that_is_refused_names_the_suspicion(self):
        import psycopg

        with psycopg.connect(URL) as conn:
            with fenced(conn, lease(("accounts/921", 9))):
                pass
            with self.assertRaisesRegex(StaleTokenError, "another fencelock cluster"):
                with fenced(conn, lease(("accounts/921", 8))):
                    self.fail("it ran")
            with self.assertRaises(RefusedError) as caught:
                with fenced(conn, lease(("accounts/922", 1))):
                    conn.execute("UPDATE accounts SET balance = 1 WHERE id = 923")
            self.assertEqual(caught.exception.kind, "token-required")


class Unknown(unittest.TestCase):
    def test_an_unknown_connection_is_refused(self):
        with self.assertRaises(TypeError):
            with fenced(object(), lease(("accounts/1", 1))):
                self.fail("it ran")


if __name__ == "__main__":
    unittest.main()
