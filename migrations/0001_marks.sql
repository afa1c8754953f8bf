-- The marks: for each resource its high-water mark, the largest fencing token seen.
-- Every statement of these files can be run again. They run in one transaction,
-- with search_path = pg_catalog, pg_temp, and the schema is there.

COMMENT ON SCHEMA fencing IS
    'Fencing tokens: refuses writes by holders of a lock that another holder has taken over since. Made by fencelock.';

DO $$
BEGIN
    IF current_setting('server_version_num')::int < 130000 THEN
        RAISE EXCEPTION 'the guard needs PostgreSQL 13 or newer, this is %', current_setting('server_version')
            USING ERRCODE = 'feature_not_supported';
    END IF;
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'the guard needs a database in UTF8, this one is in %', current_setting('server_encoding')
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Make one with CREATE DATABASE name ENCODING ''UTF8'' TEMPLATE template0.';
    END IF;
END
$$;

-- A transaction that claims a mark rewrites its row, even when the mark stays
-- as high as it was. Three things follow. The row lock lasts until the
-- transaction ends, so a larger token waits for it. A REPEATABLE READ or
-- SERIALIZABLE claim whose snapshot is older than the last guarded commit fails
-- instead of reading the past. And xid names the transaction that may write,
-- which nothing left over on a connection can look like, and which a rollback
-- to a savepoint takes back.
-- An argument may come from a column with a collation of its own, or with two that
-- conflict, so each comparison says which is meant.
-- The functions check what goes in: every statement reads a CHECK again, which
-- was measured to double the cost of a claim.
-- Few rows share a page, since each look at one clears its page of the row's last
-- version, at a cost for every row on it.
CREATE TABLE IF NOT EXISTS fencing.marks (
    resource   text COLLATE "C" PRIMARY KEY,
    mark       bigint NOT NULL,
    previous   bigint NOT NULL,
    xid        xid8 NOT NULL,
    claimed_at timestamptz NOT NULL
) WITH (fillfactor = 20);
COMMENT ON TABLE fencing.marks IS
    'One row for each resource ever claimed. Never delete a row while a holder of an older token may live.';
COMMENT ON COLUMN fencing.marks.mark IS 'the largest token seen; a smaller one is refused';
COMMENT ON COLUMN fencing.marks.previous IS 'the mark before the last claim; equal to mark when it raised nothing; 0 before the first';
COMMENT ON COLUMN fencing.marks.xid IS
    'the transaction that claimed last; together with claimed_at it names one transaction even in a restored copy';
COMMENT ON COLUMN fencing.marks.claimed_at IS 'when that transaction began';

-- A subscription would write its publisher's mark over a larger one of here, and stop
-- for good where both have made a row. So marks that are replicated are merged: the
-- larger one stays. The trigger fires for replicated changes only (ENABLE REPLICA),
-- so no claim pays for it. No transaction of here has the number that comes along.
CREATE OR REPLACE FUNCTION fencing._merge() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here bigint := 0;
BEGIN
    IF TG_OP = 'INSERT' THEN
        EXECUTE format('UPDATE %s SET mark = greatest(mark, $1) WHERE resource = $2', TG_RELID::regclass) USING new.mark, new.resource;
        GET DIAGNOSTICS here = ROW_COUNT;
    END IF;
    IF TG_OP = 'DELETE' OR here > 0 OR (TG_OP = 'UPDATE' AND new.mark < old.mark) THEN
        RETURN NULL;
    END IF;
    new.xid := '0';
    RETURN new;
END
$$;
COMMENT ON FUNCTION fencing._merge() IS
    'what replication does to marks: a larger one stays, none is deleted; a trigger of fencing.marks and fencing.proven that fires for replicated changes only';
REVOKE ALL ON FUNCTION fencing._merge() FROM PUBLIC;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'fencing.marks'::regclass AND tgname = 'merge') THEN
        CREATE TRIGGER merge BEFORE INSERT OR UPDATE OR DELETE ON fencing.marks FOR EACH ROW EXECUTE FUNCTION fencing._merge();
    END IF;
END
$$;
ALTER TABLE fencing.marks ENABLE REPLICA TRIGGER merge;

-- A sequence keeps its step when the transaction is rolled back, and needs no lock.
CREATE SEQUENCE IF NOT EXISTS fencing.refusals;
COMMENT ON SEQUENCE fencing.refusals IS 'claims and writes refused as stale, over all resources; the history of the guarded records has theirs';

CREATE OR REPLACE FUNCTION fencing.valid_resource(resource text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT resource IS NOT NULL
       AND octet_length(resource) BETWEEN 1 AND 256
       AND resource COLLATE "C" !~ '[\u0001-\u001f\u007f-\u009f]'
$$;
COMMENT ON FUNCTION fencing.valid_resource(text) IS 'true for 1 to 256 bytes of UTF-8 without control characters';

CREATE OR REPLACE FUNCTION fencing._malformed(resource text, token bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF token IS NULL OR token NOT BETWEEN 1 AND 9007199254740991 THEN
        RAISE EXCEPTION 'malformed fencing token %: a token is a number from 1 to 9007199254740991', coalesce(token::text, 'NULL')
            USING ERRCODE = 'LK003',
                  DETAIL = json_build_object('resource', resource, 'presented', token, 'highest', NULL);
    END IF;
    IF NOT fencing.valid_resource(resource) THEN
        RAISE EXCEPTION 'malformed resource %: a resource is 1 to 256 bytes without control characters', coalesce(quote_literal(left(resource, 256)), 'NULL')
            USING ERRCODE = 'LK003',
                  DETAIL = json_build_object('resource', left(resource, 256), 'presented', token, 'highest', NULL);
    END IF;
END
$$;
COMMENT ON FUNCTION fencing._malformed(text, bigint) IS 'raises LK003 unless both are well formed';

CREATE OR REPLACE FUNCTION fencing._raise(p_resource text, p_token bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    compared bigint;
BEGIN
    IF p_token IS NULL OR p_token NOT BETWEEN 1 AND 9007199254740991 THEN
        PERFORM fencing._malformed(p_resource, p_token);
    END IF;
    UPDATE fencing.marks
       SET previous = mark, mark = p_token, xid = pg_current_xact_id(), claimed_at = now()
     WHERE resource = p_resource COLLATE "C" AND mark <= p_token
    RETURNING previous INTO compared;
    IF compared = p_token THEN
        RETURN compared;
    END IF;
    IF compared IS NULL THEN
        PERFORM fencing._malformed(p_resource, p_token);
        -- The first claim of the resource, a race between first claims, or a
        -- stale token. An update that finds nothing proves none of them: under
        -- REPEATABLE READ the row may be newer than the snapshot. The insert
        -- finds it, and then fails as the serialization error that it is.
        INSERT INTO fencing.marks AS m (resource, mark, previous, xid, claimed_at)
        VALUES (p_resource, p_token, 0, pg_current_xact_id(), now())
        ON CONFLICT (resource) DO UPDATE
           SET previous = m.mark, mark = excluded.mark, xid = excluded.xid, claimed_at = excluded.claimed_at
         WHERE m.mark <= excluded.mark
        RETURNING previous INTO compared;
        IF compared IS NULL THEN
            SELECT m.mark INTO STRICT compared FROM fencing.marks AS m WHERE m.resource = p_resource COLLATE "C";
            RETURN compared;
        END IF;
    END IF;
    -- A raised mark is a promise to the claimant. It must outlive a crash even
    -- where synchronous_commit is off.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN compared;
END
$$;
COMMENT ON FUNCTION fencing._raise(text, bigint) IS
    'locks the mark for the transaction and raises it to the token; returns the mark it was compared with: if that is larger than the token, the token is stale and nothing was raised';

-- The setting fencing.claimed says what this transaction claimed last. It
-- spares the triggers of protected tables a look at the mark. It begins with
-- the transaction's own number, so what an earlier transaction left behind
-- never counts, and a rollback to a savepoint takes it back with the claim.
-- Every name is written in full, operators and types too, because there is no
-- SET search_path: to set and reset it at each call was a ninth of its cost.
-- An assignment is cheaper than PERFORM, which starts an executor.
CREATE OR REPLACE FUNCTION fencing.claim(resource text, token bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    compared pg_catalog.int8 := token;
    noted pg_catalog.text;
BEGIN
    UPDATE fencing.marks AS m
       SET previous = m.mark, xid = pg_catalog.pg_current_xact_id(), claimed_at = pg_catalog.now()
     WHERE m.resource OPERATOR(pg_catalog.=) claim.resource COLLATE pg_catalog."C" AND m.mark OPERATOR(pg_catalog.=) token;
    IF NOT FOUND THEN
        compared := fencing._raise(resource, token);
        IF compared OPERATOR(pg_catalog.>) token THEN
            PERFORM fencing._stale(resource, token, compared, NULL);
        END IF;
    END IF;
    noted := pg_catalog.set_config('fencing.claimed', pg_catalog.concat(pg_catalog.pg_current_xact_id(), ' ', resource), true);
    RETURN compared;
END
$$;
COMMENT ON FUNCTION fencing.claim(text, bigint) IS
    'Call it before the first read. Takes the resource''s mark for the transaction (a row lock), raises it to the token, and lets this transaction write the rows of the resource. Returns the previous mark, 0 before the first. LK001: the token is stale. LK003: token or resource is malformed.';

CREATE OR REPLACE FUNCTION fencing.try_claim(resource text, token bigint, OUT accepted boolean, OUT highest bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    compared bigint := fencing._raise(resource, token);
BEGIN
    accepted := compared <= token;
    highest := greatest(compared, token);
    IF NOT accepted THEN
        PERFORM fencing._count_refusal(resource, NULL);
    END IF;
END
$$;
COMMENT ON FUNCTION fencing.try_claim(text, bigint) IS
    'fencing.claim that answers instead of raising LK001, so that the transaction can continue';

REVOKE ALL ON FUNCTION fencing._raise(text, bigint) FROM PUBLIC;
