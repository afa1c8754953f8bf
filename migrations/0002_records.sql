-- The guarded records of the service: values that are read and written under
-- a mark, with a bounded history of every attempt.

CREATE TABLE IF NOT EXISTS fencing.records (
    resource text COLLATE "C" PRIMARY KEY,
    value    json,
    version  bigint NOT NULL DEFAULT 0,
    attempts bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 80);
COMMENT ON TABLE fencing.records IS 'The service''s guarded records: one row for each resource claimed or written through it.';
COMMENT ON COLUMN fencing.records.value IS 'as it was written, to the byte; NULL until the first write';
COMMENT ON COLUMN fencing.records.version IS 'the number of accepted writes';
COMMENT ON COLUMN fencing.records.attempts IS 'the number of attempts ever made, which numbers their history';

CREATE TABLE IF NOT EXISTS fencing.attempts (
    resource text COLLATE "C" NOT NULL,
    seq      bigint NOT NULL,
    token    bigint NOT NULL,
    compared bigint NOT NULL,
    kind     text NOT NULL CHECK (kind IN ('write', 'claim')),
    version  bigint NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (resource, seq)
);
COMMENT ON TABLE fencing.attempts IS
    'The newest attempts on each guarded record, accepted (compared <= token) and refused; trimmed as new ones come.';
COMMENT ON COLUMN fencing.attempts.compared IS 'the mark that the token was compared with';
COMMENT ON COLUMN fencing.attempts.version IS 'the record''s version after the attempt';

CREATE OR REPLACE FUNCTION fencing._attempt(
    p_resource text, p_token bigint, p_kind text, p_value json, p_keep bigint,
    OUT compared bigint, OUT version bigint, OUT value json)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    writes boolean;
    number bigint;
BEGIN
    compared := fencing._raise(p_resource, p_token);
    writes := p_kind = 'write' AND compared <= p_token;
    INSERT INTO fencing.records AS r (resource, value, version, attempts)
    VALUES (p_resource, CASE WHEN writes THEN p_value END, writes::int, 1)
    ON CONFLICT (resource) DO UPDATE
       SET value = CASE WHEN writes THEN excluded.value ELSE r.value END,
           version = r.version + writes::int,
           attempts = r.attempts + 1
    RETURNING r.version, r.attempts, CASE WHEN p_kind = 'claim' THEN r.value END
         INTO version, number, value;
    INSERT INTO fencing.attempts VALUES (p_resource, number, p_token, compared, p_kind, version, clock_timestamp());
    DELETE FROM fencing.attempts AS a WHERE a.resource = p_resource COLLATE "C" AND a.seq <= number - p_keep;
END
$$;
COMMENT ON FUNCTION fencing._attempt(text, bigint, text, json, bigint) IS
    'one claim or write of a guarded record, and its line in the history; a refusal changes nothing else and raises nothing, so that it can be kept';
REVOKE ALL ON FUNCTION fencing._attempt(text, bigint, text, json, bigint) FROM PUBLIC;
