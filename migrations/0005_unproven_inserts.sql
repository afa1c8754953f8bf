-- A row that is inserted without a proof, in the mode inserts, lets its transaction insert
-- more rows of the resource and nothing else.

-- The mark that an insert makes is dated a microsecond before the transaction, so that no
-- trigger takes it for a claim, and this function knows it by that.
CREATE OR REPLACE FUNCTION fencing._admit_proven(p_resource text, p_protected bigint, p_mode text, p_insert boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    inserted timestamptz := now() - interval '1 microsecond';
    current_mark bigint;
    since timestamptz;
BEGIN
    SELECT mark, CASE WHEN xid = pg_current_xact_id() THEN claimed_at END
      INTO current_mark, since
      FROM fencing.proven WHERE resource = p_resource COLLATE "C";
    IF since = now() THEN
        RETURN;
    END IF;
    IF p_insert AND p_mode = 'inserts' AND fencing.valid_resource(p_resource) THEN -- see fencing._admit
        IF since = inserted THEN
            RETURN;
        END IF;
        INSERT INTO fencing.proven (resource, mark, previous, xid, claimed_at)
        VALUES (p_resource, 1, 0, pg_current_xact_id(), inserted) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    PERFORM fencing._unclaimed(p_resource, p_protected, p_mode, current_mark, true);
END
$$;
COMMENT ON FUNCTION fencing._admit_proven(text, bigint, text, boolean) IS
    'fencing._admit for tables that demand proofs: nothing counts but a claim of this transaction with a proof, which is in fencing.proven and in no setting. An insert that makes the mark lets more inserts pass, and nothing else';
REVOKE ALL ON FUNCTION fencing._admit_proven(text, bigint, text, boolean) FROM PUBLIC;
