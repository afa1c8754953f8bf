-- The rows of a lock node, when a server's FENCELOCK_STORE is this database. Every
-- statement of these files can be run again. They run in one transaction, with
-- search_path = pg_catalog, pg_temp, and the schema is there.

DO $$
BEGIN
    IF current_setting('server_version_num')::int < 150000 THEN
        RAISE EXCEPTION 'the lock node needs PostgreSQL 15 or newer, this is %', current_setting('server_version')
            USING ERRCODE = 'feature_not_supported', HINT = 'Upgrade the server, or name another one.';
    END IF;
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'the lock node needs a database in UTF8, this one is in %', current_setting('server_encoding')
            USING ERRCODE = 'feature_not_supported', HINT = 'Make a database with ENCODING ''UTF8'' TEMPLATE template0, and name that one.';
    END IF;
END
$$;
COMMENT ON SCHEMA fencelock IS 'Locks, counters and queues of the lock service. Made by fencelock; change nothing in it.';

-- Half of each page stays free, and no index but the key's: then a row that is
-- written again stays on its page, and no index changes.
CREATE TABLE IF NOT EXISTS fencelock.rows (
    key   bytea PRIMARY KEY,
    value bytea NOT NULL,
    ends  bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE fencelock.rows IS 'What the lock node keeps: its admission record, locks, counters and queues.';
COMMENT ON COLUMN fencelock.rows.key IS 'a letter for the kind of row, and what it is about';
COMMENT ON COLUMN fencelock.rows.ends IS 'Unix microseconds by clock_timestamp() of the primary, after which the row is as good as deleted; the largest bigint for never';

-- A server that finds the number unchanged knows that no other has written since.
-- Under the writers' lock alone it counts one by one; a crash may skip some.
CREATE SEQUENCE IF NOT EXISTS fencelock.writes;
COMMENT ON SEQUENCE fencelock.writes IS 'counts the transactions that wrote';

-- Keys are looked up one by one, whatever the statistics say: a plan that was made
-- for a small table must not read a large one. It is made once.
CREATE OR REPLACE FUNCTION fencelock._read(p_now bigint, p_keys bytea[], p_from bytea[], p_to bytea[], p_limits int[])
    RETURNS TABLE (range int, key bytea, value bytea, ends bigint)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    RETURN QUERY SELECT 0, r.key, r.value, r.ends
      FROM unnest(p_keys) AS k (key) JOIN fencelock.rows AS r ON r.key = k.key
     WHERE r.ends > p_now;
    IF cardinality(p_from) > 0 THEN
        RETURN QUERY SELECT q.n::int, r.key, r.value, r.ends
          FROM unnest(p_from, p_to, p_limits) WITH ORDINALITY AS q (first, after, size, n)
         CROSS JOIN LATERAL (
              SELECT * FROM fencelock.rows AS a
               WHERE a.key >= q.first AND a.key < q.after AND a.ends > p_now
               ORDER BY a.key LIMIT q.size) AS r;
    END IF;
END
$$;
COMMENT ON FUNCTION fencelock._read(bigint, bytea[], bytea[], bytea[], int[]) IS
    'the living rows with these keys as range 0, and the first of the ranges as 1 and so on';

-- The functions that have no search_path of their own are called by those that have.
-- An assignment of an expression is cheaper than a query.
CREATE OR REPLACE FUNCTION fencelock._incarnation() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    place text := current_setting('fencelock.place', true);
    timeline text := 'standby';
BEGIN
    IF coalesce(place, '') = '' THEN
        -- It is the same for the whole life of a process of the server, and is kept there
        -- since it costs the reading of a file.
        SELECT set_config('fencelock.place', c.system_identifier || '/' || d.oid, false) INTO place
          FROM pg_control_system() AS c, pg_database AS d WHERE d.datname = current_database();
    END IF;
    IF NOT pg_is_in_recovery() THEN
        -- That of the last checkpoint would be the old one for a while after a promotion.
        timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    END IF;
    -- A database or table that was made again from a backup is another one, too.
    RETURN timeline || '/' || place || '/' || 'fencelock.rows'::regclass::oid;
END
$$;
COMMENT ON FUNCTION fencelock._incarnation() IS 'changes whenever committed rows may have been lost';

CREATE OR REPLACE FUNCTION fencelock._unfit() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN 'it is a standby: name the primary, or all hosts with target_session_attrs=primary';
    ELSIF current_setting('default_transaction_read_only') = 'on' THEN
        RETURN 'its transactions are read-only: set default_transaction_read_only = off for the role and the database';
    ELSIF current_setting('fsync') = 'off' THEN
        RETURN 'fsync is off, so a crash loses what was committed: set fsync = on';
    END IF;
    RETURN '';
END
$$;
COMMENT ON FUNCTION fencelock._unfit() IS 'why the server must not vote, and what to change; empty if it may';

CREATE OR REPLACE FUNCTION fencelock._open(p_writes boolean, p_idle text, p_keys bytea[], p_from bytea[], p_to bytea[], p_limits int[])
    RETURNS TABLE (range int, key bytea, value bytea, ends bigint)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment bigint;
    ignored text;
BEGIN
    IF p_writes THEN
        -- A server that stops in the middle of a transaction must not stop the others.
        ignored := set_config('idle_in_transaction_session_timeout', p_idle, true);
        ignored := fencelock._lock()::text;
        moment := extract(epoch FROM clock_timestamp()) * 1000000;
        range := -2;
        SELECT w.last_value + w.is_called::int INTO ends FROM fencelock.writes AS w;
        RETURN NEXT;
    ELSE
        -- The snapshot is younger, so what has ended by then has ended.
        moment := extract(epoch FROM transaction_timestamp()) * 1000000;
    END IF;
    range := -1;
    key := convert_to(fencelock._incarnation(), 'UTF8');
    value := convert_to(fencelock._unfit(), 'UTF8');
    ends := moment;
    RETURN NEXT;
    RETURN QUERY SELECT * FROM fencelock._read(moment, p_keys, p_from, p_to, p_limits);
END
$$;
COMMENT ON FUNCTION fencelock._open(boolean, text, bytea[], bytea[], bytea[], int[]) IS
    'begins what a transaction does: as range -2 how many have written, as range -1 the incarnation, what makes it unfit to vote, and the time; then fencelock._read';

CREATE OR REPLACE FUNCTION fencelock._write(p_now bigint, p_purge boolean, p_deleted bytea[], p_keys bytea[], p_values bytea[], p_ends bigint[], p_channels text[], p_words text[])
    RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    PERFORM nextval('fencelock.writes');
    IF p_purge THEN
        DELETE FROM fencelock.rows;
    ELSIF cardinality(p_deleted) > 0 THEN
        DELETE FROM fencelock.rows AS r USING unnest(p_deleted) AS d (key) WHERE r.key = d.key;
    END IF;
    IF cardinality(p_keys) > 0 THEN
        INSERT INTO fencelock.rows AS r (key, value, ends)
            SELECT w.key, w.value, CASE WHEN w.ends < 0 THEN p_now - w.ends ELSE w.ends END FROM unnest(p_keys, p_values, p_ends)
              AS w (key, value, ends)
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, ends = excluded.ends;
    END IF;
    IF cardinality(p_channels) > 0 THEN
        PERFORM pg_notify(channel, word) FROM unnest(p_channels, p_words) AS n (channel, word);
    END IF;
END
$$;
COMMENT ON FUNCTION fencelock._write(bigint, boolean, bytea[], bytea[], bytea[], bigint[], text[], text[]) IS 'what a transaction leaves; a negative end counts from p_now';

-- A server whose rows are still true needs no other round trip. It has judged them by
-- a time of its own making, which must not be ahead, and not far behind.
CREATE OR REPLACE FUNCTION fencelock._write_if(p_incarnation text, p_unfit text, p_writes bigint, p_now bigint,
        p_purge boolean, p_deleted bytea[], p_keys bytea[], p_values bytea[], p_ends bigint[], p_channels text[], p_words text[])
    RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    moment bigint;
    written bigint;
    ignored text;
BEGIN
    ignored := fencelock._lock()::text;
    moment := extract(epoch FROM clock_timestamp()) * 1000000;
    SELECT w.last_value + w.is_called::int INTO written FROM fencelock.writes AS w;
    IF written <> p_writes OR p_now > moment OR p_now < moment - 1000000
        OR fencelock._incarnation() <> p_incarnation OR fencelock._unfit() <> p_unfit
    THEN
        RETURN -1;
    END IF;
    IF p_purge OR cardinality(p_deleted) + cardinality(p_keys) + cardinality(p_channels) > 0 THEN
        ignored := fencelock._write(moment, p_purge, p_deleted, p_keys, p_values, p_ends, p_channels, p_words)::text;
    END IF;
    RETURN moment;
END
$$;
COMMENT ON FUNCTION fencelock._write_if(text, text, bigint, bigint, boolean, bytea[], bytea[], bytea[], bigint[], text[], text[]) IS
    'a whole transaction: fencelock._write if nothing has changed since so many transactions had written; the time, or -1 if it did nothing';

-- It needs no turn of its own: no transaction sees the rows that it deletes, and it
-- leaves out those that one is writing again.
CREATE OR REPLACE FUNCTION fencelock._sweep(p_from bytea, p_page int, OUT deleted bigint, OUT next bytea)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    moment bigint := extract(epoch FROM clock_timestamp()) * 1000000;
BEGIN
    SELECT r.key INTO next FROM fencelock.rows AS r WHERE r.key >= p_from ORDER BY r.key OFFSET p_page LIMIT 1;
    DELETE FROM fencelock.rows WHERE key IN (
        SELECT r.key FROM fencelock.rows AS r
         WHERE r.key >= p_from AND (next IS NULL OR r.key < next) AND r.ends <= moment
           FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS deleted = ROW_COUNT;
END
$$;
COMMENT ON FUNCTION fencelock._sweep(bytea, int) IS 'deletes what has ended among the next rows, and says where to continue; NULL after the last';
