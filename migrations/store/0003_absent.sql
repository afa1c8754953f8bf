-- A server takes the rows that it has not seen to be absent. The transaction that writes
-- finds out whether they are.
CREATE OR REPLACE FUNCTION fencelock._as_known(p_now bigint, p_from bytea[], p_to bytea[], p_living int[])
    RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT FROM unnest(p_from, p_to, p_living) AS q (first, after, living)
         WHERE living <> (SELECT count(*) FROM fencelock.rows AS a WHERE a.key >= q.first AND a.key < q.after AND a.ends > p_now));
END
$$;
COMMENT ON FUNCTION fencelock._as_known(bigint, bytea[], bytea[], int[]) IS 'whether so many rows live in each of the ranges';

-- The function of 0001 with this name stays: servers of the version before call it.
CREATE OR REPLACE FUNCTION fencelock._write_if(p_incarnation text, p_unfit text, p_writes bigint, p_now bigint,
        p_from bytea[], p_to bytea[], p_living int[],
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
    ELSIF cardinality(p_from) > 0 AND NOT fencelock._as_known(p_now, p_from, p_to, p_living) THEN
        RETURN -2;
    END IF;
    IF p_purge OR cardinality(p_deleted) + cardinality(p_keys) + cardinality(p_channels) > 0 THEN
        ignored := fencelock._write(moment, p_purge, p_deleted, p_keys, p_values, p_ends, p_channels, p_words)::text;
    END IF;
    RETURN moment;
END
$$;
COMMENT ON FUNCTION fencelock._write_if(text, text, bigint, bigint, bytea[], bytea[], int[], boolean, bytea[], bytea[], bytea[], bigint[], text[], text[]) IS
    'a whole transaction: fencelock._write if nothing has changed since so many transactions had written, and fencelock._as_known; the time, -1 if others wrote, -2 if there are other rows than were known';
