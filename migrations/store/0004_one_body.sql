-- A commit of a server that is alone runs in one function body: each call of a function with
-- settings of its own, and each statement, costs it as much as several rows. The plans use the
-- key's index row by row: a scan through a bitmap does not mark the entries of deleted rows as
-- dead, so that each look-up of a key that is locked and released often would visit all of them.
CREATE OR REPLACE FUNCTION fencelock._write_if(p_incarnation text, p_unfit text, p_writes bigint, p_now bigint,
        p_from bytea[], p_to bytea[], p_living int[],
        p_purge boolean, p_deleted bytea[], p_keys bytea[], p_values bytea[], p_ends bigint[], p_channels text[], p_words text[])
    RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    moment bigint;
    ignored text;
BEGIN
    ignored := fencelock._lock()::text;
    moment := extract(epoch FROM clock_timestamp()) * 1000000;
    IF coalesce(pg_sequence_last_value('fencelock.writes'), 0) + 1 <> p_writes OR p_now > moment OR p_now < moment - 1000000
        OR fencelock._incarnation() <> p_incarnation OR fencelock._unfit() <> p_unfit
    THEN
        RETURN -1;
    ELSIF EXISTS (
        SELECT FROM unnest(p_from, p_to, p_living) AS q (first, after, living)
         WHERE living <> (SELECT count(*) FROM fencelock.rows AS a WHERE a.key >= q.first AND a.key < q.after AND a.ends > p_now))
    THEN
        RETURN -2;
    ELSIF NOT p_purge AND cardinality(p_deleted) + cardinality(p_keys) + cardinality(p_channels) = 0 THEN
        RETURN moment;
    END IF;
    -- What follows is as in fencelock._write.
    ignored := nextval('fencelock.writes')::text;
    IF p_purge THEN
        DELETE FROM fencelock.rows;
    ELSIF cardinality(p_deleted) > 0 THEN
        DELETE FROM fencelock.rows AS r USING unnest(p_deleted) AS d (key) WHERE r.key = d.key;
    END IF;
    IF cardinality(p_keys) > 0 THEN
        INSERT INTO fencelock.rows AS r (key, value, ends)
            SELECT w.key, w.value, CASE WHEN w.ends < 0 THEN moment - w.ends ELSE w.ends END
              FROM unnest(p_keys, p_values, p_ends) AS w (key, value, ends)
            ON CONFLICT (key) DO UPDATE SET value = excluded.value, ends = excluded.ends;
    END IF;
    IF cardinality(p_channels) > 0 THEN
        PERFORM pg_notify(channel, word) FROM unnest(p_channels, p_words) AS n (channel, word);
    END IF;
    RETURN moment;
END
$$;
