-- Proofs: a token that is shown to have been minted, by an HMAC-SHA256 that the
-- lock service made of resource and token (the fencing_proof of a lease). Tables can
-- be protected so that nothing else counts for them. Where none is, nothing here
-- is ever called.

-- HMAC(key, m) = sha256(outer_pad || sha256(inner_pad || m)). The pads are kept
-- and not the key: then a proof costs two calls of a built-in function, and needs
-- no extension.
CREATE TABLE IF NOT EXISTS fencing.proof_keys (
    id        text COLLATE "C" PRIMARY KEY,
    inner_pad bytea NOT NULL,
    outer_pad bytea NOT NULL,
    since     timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE fencing.proof_keys IS
    'The keys that proofs are verified with; who reads them can mint. Set them with fencing.set_proof_key or "fencelock guard proof-keys", delete rows to drop keys. Row security hides them from everybody but the owner, whatever is granted.';
COMMENT ON COLUMN fencing.proof_keys.inner_pad IS 'the key, filled up to 64 bytes, XOR 0x36';
COMMENT ON COLUMN fencing.proof_keys.outer_pad IS 'the key, filled up to 64 bytes, XOR 0x5c';
ALTER TABLE fencing.proof_keys ENABLE ROW LEVEL SECURITY;
REVOKE ALL ON fencing.proof_keys FROM PUBLIC;

-- A mark of its own: nothing but a proven token ever touches it, so a number that
-- was made up stays among the ordinary marks.
CREATE TABLE IF NOT EXISTS fencing.proven (
    resource   text COLLATE "C" PRIMARY KEY,
    mark       bigint NOT NULL,
    previous   bigint NOT NULL,
    xid        xid8 NOT NULL,
    claimed_at timestamptz NOT NULL
) WITH (fillfactor = 20);
COMMENT ON TABLE fencing.proven IS
    'One row for each resource claimed with a proof: its mark among proven tokens. The columns are as in fencing.marks.';

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'fencing.proven'::regclass AND tgname = 'merge') THEN
        CREATE TRIGGER merge BEFORE INSERT OR UPDATE OR DELETE ON fencing.proven FOR EACH ROW EXECUTE FUNCTION fencing._merge();
    END IF;
END
$$;
ALTER TABLE fencing.proven ENABLE REPLICA TRIGGER merge;

ALTER TABLE fencing.protected ADD COLUMN IF NOT EXISTS proof boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN fencing.protected.proof IS 'whether only a token that was claimed with its proof counts';

CREATE OR REPLACE FUNCTION fencing.set_proof_key(key_id text, key bytea) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
BEGIN
    IF (key_id ~ '^[A-Za-z0-9_-]{1,16}$' AND octet_length(key) BETWEEN 32 AND 64) IS NOT TRUE THEN
        RAISE EXCEPTION 'a proof key has an id of 1 to 16 letters, digits, - or _, and 32 to 64 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR i IN 0 .. octet_length(key) - 1 LOOP
        inner_pad := set_byte(inner_pad, i, get_byte(key, i) # 54);
        outer_pad := set_byte(outer_pad, i, get_byte(key, i) # 92);
    END LOOP;
    INSERT INTO fencing.proof_keys AS k VALUES (key_id, inner_pad, outer_pad)
    ON CONFLICT (id) DO UPDATE SET inner_pad = excluded.inner_pad, outer_pad = excluded.outer_pad;
END
$$;
COMMENT ON FUNCTION fencing.set_proof_key(text, bytea) IS
    'Adds a key that proofs are verified with, or replaces it. For the schema''s owner. The statement holds the key: mind log_statement.';

CREATE OR REPLACE FUNCTION fencing._proven(p_resource text, p_token bigint, p_proof text) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    -- Hashes are compared, so that the time it takes says nothing of the proof.
    SELECT EXISTS (
        SELECT FROM fencing.proof_keys AS k
         WHERE k.id = split_part(p_proof COLLATE "C", '.', 1)
           AND sha256(convert_to(substr(p_proof, length(k.id) + 2), 'UTF8')) = sha256(convert_to(rtrim(translate(encode(
                   sha256(k.outer_pad || sha256(k.inner_pad || convert_to(concat('fencelock proof v1', chr(10), p_token, chr(10), p_resource), 'UTF8'))),
               'base64'), '+/', '-_'), '='), 'UTF8')))
$$;
COMMENT ON FUNCTION fencing._proven(text, bigint, text) IS 'whether the proof is one of the token for the resource, by a key that is known';

CREATE OR REPLACE FUNCTION fencing._unproven(p_resource text, p_token bigint, p_proof text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '% proof of fencing token % for %', CASE WHEN coalesce(p_proof, '') COLLATE "C" = '' THEN 'no' ELSE 'wrong' END, p_token, quote_literal(p_resource)
        USING ERRCODE = 'LK004',
              DETAIL = json_build_object('resource', p_resource, 'presented', p_token,
                  'highest', (SELECT mark FROM fencing.proven WHERE resource = p_resource COLLATE "C"), 'missing', coalesce(p_proof, '') COLLATE "C" = ''),
              HINT = 'Call fencing.claim(resource, token, proof) with the fencing_proof of the lease.';
END
$$;
COMMENT ON FUNCTION fencing._unproven(text, bigint, text) IS 'raises LK004';

-- The ordinary mark is raised as well, for tables that demand no proof. It comes
-- first, so that whoever claims in either way locks the two in one order. If it is
-- larger, it was raised without a proof, which counts for nothing here.
CREATE OR REPLACE FUNCTION fencing._claim_proven(p_resource text, p_token bigint, p_proof text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    compared bigint;
BEGIN
    PERFORM fencing._malformed(p_resource, p_token);
    IF fencing._proven(p_resource, p_token, p_proof) IS NOT TRUE THEN
        PERFORM fencing._unproven(p_resource, p_token, p_proof);
    END IF;
    IF fencing._raise(p_resource, p_token) <= p_token THEN
        PERFORM set_config('fencing.claimed', pg_current_xact_id() || ' ' || p_resource, true);
    END IF;
    UPDATE fencing.proven
       SET previous = mark, mark = p_token, xid = pg_current_xact_id(), claimed_at = now()
     WHERE resource = p_resource COLLATE "C" AND mark <= p_token
    RETURNING previous INTO compared;
    IF compared IS NULL THEN -- see fencing._raise
        INSERT INTO fencing.proven AS m (resource, mark, previous, xid, claimed_at)
        VALUES (p_resource, p_token, 0, pg_current_xact_id(), now())
        ON CONFLICT (resource) DO UPDATE
           SET previous = m.mark, mark = excluded.mark, xid = excluded.xid, claimed_at = excluded.claimed_at
         WHERE m.mark <= excluded.mark
        RETURNING previous INTO compared;
        IF compared IS NULL THEN
            SELECT m.mark INTO STRICT compared FROM fencing.proven AS m WHERE m.resource = p_resource COLLATE "C";
            RETURN compared;
        END IF;
    END IF;
    IF compared < p_token AND current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN compared;
END
$$;
COMMENT ON FUNCTION fencing._claim_proven(text, bigint, text) IS
    'fencing._raise for a token with its proof, and for both marks; returns the proven mark that it was compared with';

CREATE OR REPLACE FUNCTION fencing.claim(resource text, token bigint, proof text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    compared bigint := fencing._claim_proven(resource, token, proof);
BEGIN
    IF compared > token THEN
        PERFORM fencing._stale(resource, token, compared, NULL);
    END IF;
    RETURN compared;
END
$$;
COMMENT ON FUNCTION fencing.claim(text, bigint, text) IS
    'fencing.claim with the fencing_proof of the lease, for tables that demand it; works for all others, too. Returns the previous proven mark. LK001: the token is stale. LK003: token or resource is malformed. LK004: the proof is missing or wrong; no mark was raised.';

CREATE OR REPLACE FUNCTION fencing.try_claim(resource text, token bigint, proof text, OUT accepted boolean, OUT highest bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    compared bigint := fencing._claim_proven(resource, token, proof);
BEGIN
    accepted := compared <= token;
    highest := greatest(compared, token);
    IF NOT accepted THEN
        PERFORM fencing._count_refusal(resource, NULL);
    END IF;
END
$$;
COMMENT ON FUNCTION fencing.try_claim(text, bigint, text) IS
    'fencing.claim with a proof that answers instead of raising LK001, so that the transaction can continue; a proof that is missing or wrong still raises LK004';

CREATE OR REPLACE FUNCTION fencing._proof_body(p_id bigint, p_mode text, p_new text, p_old text) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format($body$
DECLARE
    row_now ALIAS FOR new;
    row_was ALIAS FOR old;
    resource_now text;
    resource_was text;
BEGIN
    IF TG_OP <> 'DELETE' THEN
        resource_now := %1$s;
        PERFORM FROM fencing.proven WHERE resource = resource_now AND xid = pg_current_xact_id() AND claimed_at = now();
        IF NOT FOUND THEN
            PERFORM fencing._admit_proven(resource_now, %3$s, %4$L, TG_OP = 'INSERT');
        END IF;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        resource_was := %2$s;
        IF TG_OP = 'DELETE' OR resource_was IS DISTINCT FROM resource_now THEN
            PERFORM fencing._admit_proven(resource_was, %3$s, %4$L, false);
        END IF;
    END IF;
    RETURN NULL;
END
$body$, '(' || p_new || ')', '(' || p_old || ')', p_id, p_mode)
$$;
COMMENT ON FUNCTION fencing._proof_body(bigint, text, text, text) IS 'the text of the row trigger function of a table that demands proofs';

CREATE OR REPLACE FUNCTION fencing._demand(p_relation regclass) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET datestyle = 'ISO, MDY'
    SET timezone = 'UTC'
    SET intervalstyle = 'postgres'
    SET extra_float_digits = 1
    SET bytea_output = 'hex'
    SET lc_monetary = 'C'
    SET quote_all_identifiers = off
    SET standard_conforming_strings = on
    SET client_min_messages = warning
AS $$
DECLARE
    table_of fencing.protected;
    compiled record;
BEGIN
    SELECT * INTO STRICT table_of FROM fencing.protected WHERE relation = p_relation;
    -- What is kept names everything in full, so the path does not matter, and was
    -- printed under the settings that are set here too.
    compiled := fencing._compile(p_relation, table_of.resource_sql, 'pg_catalog, pg_temp');
    EXECUTE format('CREATE OR REPLACE FUNCTION fencing.guard_%s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER %s AS %L',
        table_of.id, fencing._settings(), fencing._proof_body(table_of.id, table_of.mode, compiled.of_new, compiled.of_old));
    EXECUTE format('CREATE OR REPLACE FUNCTION fencing.truncate_%s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER %s SET row_security = off AS %L',
        table_of.id, fencing._settings(), replace(fencing._truncate_body(table_of.id, table_of.mode, compiled.bare), 'fencing._admit(', 'fencing._admit_proven('));
END
$$;
COMMENT ON FUNCTION fencing._demand(regclass) IS 'makes the trigger functions of a protected table demand proofs';

CREATE OR REPLACE FUNCTION fencing._protect_proof(p_relation regclass, p_resource_sql text, p_mode text, p_proof boolean, p_path text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    demanded boolean := coalesce((SELECT proof FROM fencing.protected WHERE relation = p_relation), false);
    demands boolean := coalesce(p_proof, demanded);
    problem text;
BEGIN
    IF p_relation IS NULL OR p_resource_sql IS NULL OR (p_mode IN ('strict', 'inserts', 'migrating')) IS NOT TRUE THEN
        RAISE EXCEPTION 'fencing.protect needs a table, an expression, and the mode strict, inserts or migrating'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF demands AND NOT demanded THEN
        -- An older snapshot might not show all the marks that count below.
        IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
            RAISE EXCEPTION 'proofs cannot be switched on at isolation level %', current_setting('transaction_isolation')
                USING ERRCODE = 'feature_not_supported', HINT = 'Use READ COMMITTED.';
        END IF;
        -- This waits for claims without a proof that are under way: their marks count below.
        LOCK TABLE fencing.marks IN SHARE ROW EXCLUSIVE MODE;
        IF NOT EXISTS (SELECT FROM fencing.proof_keys) THEN
            RAISE EXCEPTION 'there is no key to verify proofs with'
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run "fencelock guard proof-keys", or fencing.set_proof_key(id, key), first.';
        END IF;
    END IF;
    PERFORM fencing._protect(p_relation, p_resource_sql, p_mode, p_path);
    UPDATE fencing.protected SET proof = demands WHERE relation = p_relation;
    IF demands THEN
        PERFORM fencing._demand(p_relation);
    END IF;
    IF demands AND NOT demanded THEN
        -- There may be a smaller proven mark, from claims with a proof that was not
        -- demanded, or from before the demand was withdrawn.
        INSERT INTO fencing.proven AS p (resource, mark, previous, xid, claimed_at)
        SELECT resource, mark, previous, '0', claimed_at FROM fencing.marks
        ON CONFLICT (resource) DO UPDATE
           SET previous = p.mark, mark = excluded.mark, xid = excluded.xid, claimed_at = excluded.claimed_at
         WHERE p.mark < excluded.mark;
    END IF;
    problem := fencing._problem(p_relation, (SELECT id FROM fencing.protected WHERE relation = p_relation));
    IF problem IS NOT NULL THEN
        RAISE WARNING '% is protected, but not fully: %', p_relation, problem;
    END IF;
END
$$;
COMMENT ON FUNCTION fencing._protect_proof(regclass, text, text, boolean, text) IS
    'fencing.protect, with the search_path of its caller; a proof that is NULL leaves the demand as it is';

CREATE OR REPLACE FUNCTION fencing.protect(relation regclass, resource_sql text, mode text DEFAULT 'strict') RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM fencing._protect_proof(relation, resource_sql, mode, NULL, pg_catalog.current_setting('search_path'));
END
$$;
COMMENT ON FUNCTION fencing.protect(regclass, text, text) IS
    'Makes a table refuse changes of rows whose resource the transaction has no live token for. resource_sql is an expression of type text over a row, like ''accounts/'' || id. strict: no token, no write. inserts: the same, but a row may be inserted without a token while its resource has no mark. migrating: writes without a token are let through and counted, stale ones refused. Call it again to change expression or mode, or to include partitions made since.';

CREATE OR REPLACE FUNCTION fencing.protect(relation regclass, resource_sql text, proof boolean, mode text DEFAULT 'strict') RETURNS void
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM fencing._protect_proof(relation, resource_sql, mode, proof, pg_catalog.current_setting('search_path'));
END
$$;
COMMENT ON FUNCTION fencing.protect(regclass, text, boolean, text) IS
    'fencing.protect that says whether proofs are demanded: protect(''accounts'', $$''accounts/'' || id$$, proof => true). Then only a claim with the fencing_proof of the lease lets its transaction write. Marks from before count as proven at that moment.';

REVOKE ALL ON FUNCTION fencing.set_proof_key(text, bytea), fencing._proven(text, bigint, text), fencing._unproven(text, bigint, text),
    fencing._claim_proven(text, bigint, text) FROM PUBLIC;
