-- One transaction at a time writes. Its turn is the lock of a table, which only a role with a
-- right on the table can take: an advisory lock needs none, so that any role that could log
-- in was able to keep all servers waiting.
CREATE TABLE IF NOT EXISTS fencelock.turn ();
COMMENT ON TABLE fencelock.turn IS 'has no rows: whoever writes locks it';

-- It has no search_path of its own: those that call it have.
CREATE OR REPLACE FUNCTION fencelock._lock() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ignored text;
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        ignored := set_config('synchronous_commit', 'on', true);
    END IF;
    -- The statements behind see what the one before has committed, since every statement
    -- has a snapshot of its own. The mode lets a dump read the table.
    LOCK TABLE fencelock.turn IN EXCLUSIVE MODE;
END
$$;
COMMENT ON FUNCTION fencelock._lock() IS 'begins a transaction that writes: it comes after all others, and its commit waits for the disk';

-- A role that was granted what 0001 needs goes on.
DO $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
          FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
         WHERE c.oid = 'fencelock.rows'::regclass AND a.privilege_type = 'UPDATE' AND a.grantee <> c.relowner
    LOOP
        EXECUTE 'GRANT UPDATE ON fencelock.turn TO ' || grantee;
    END LOOP;
END
$$;
