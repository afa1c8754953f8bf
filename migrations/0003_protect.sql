-- Protected tables: triggers that let a row of a resource change only in a
-- transaction that has presented a live token for it.

CREATE TABLE IF NOT EXISTS fencing.protected (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relation     regclass NOT NULL UNIQUE,
    resource_sql text NOT NULL,
    mode         text NOT NULL CHECK (mode IN ('strict', 'inserts', 'migrating')),
    since        timestamptz NOT NULL DEFAULT now(),
    prefix       text
);
COMMENT ON TABLE fencing.protected IS
    'The protected tables. Use fencing.protect and fencing.unprotect; a row alone protects nothing. The id is in the names of the table''s functions and counters: guard_<id>, truncate_<id>, refused_<id>, unfenced_<id>.';
COMMENT ON COLUMN fencing.protected.resource_sql IS 'the expression over a row that names its resource, as PostgreSQL printed it back';
COMMENT ON COLUMN fencing.protected.mode IS
    'strict: no token, no write; inserts: the same, but a row may be inserted without a token while its resource has no mark; migrating: writes without a token are let through and counted';
COMMENT ON COLUMN fencing.protected.prefix IS
    'what every resource of the table begins with, if the expression begins with a literal: a claim refused for such a resource is counted as one of the table';

CREATE TABLE IF NOT EXISTS fencing.unguarded (
    xid    xid8 NOT NULL,
    at     timestamptz NOT NULL,
    role   name NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (xid, at)
);
COMMENT ON TABLE fencing.unguarded IS
    'The transactions that wrote protected tables without tokens, and why: see fencing.unguarded(reason). Old rows may be deleted.';

-- A transaction may present a token in the setting fencing.token instead of
-- calling fencing.claim. The setting begins with the transaction's own number,
-- so what an earlier transaction left on the connection never counts, whether
-- it was set for the session or reads as '' after a SET LOCAL.
CREATE OR REPLACE FUNCTION fencing.present(resource text, token bigint) RETURNS text
    LANGUAGE sql VOLATILE
AS $$
    -- After a newline the setting would state another token for another resource.
    SELECT CASE WHEN pg_catalog.strpos(resource COLLATE pg_catalog."C", E'\n') OPERATOR(pg_catalog.>) 0
        THEN fencing._malformed(resource, token)::pg_catalog.text
        ELSE pg_catalog.set_config('fencing.token', pg_catalog.concat_ws(' ', pg_catalog.pg_current_xact_id(), token, resource), true) END
$$;
COMMENT ON FUNCTION fencing.present(text, bigint) IS
    'States a token for the writes of this transaction, inside the statement that writes: UPDATE … WHERE … AND fencing.present(''accounts/1'', 34) <> ''''. It is shorthand for set_config(''fencing.token'', pg_current_xact_id() || '' 34 accounts/1'', true). The write itself raises the mark and is refused if the token is stale. It does not claim: claim before the first read. It locks the row before the mark, where a transaction that claims locks the mark first: the two can deadlock, and one of them is then told 40P01. UPDATE … WHERE … AND (SELECT fencing.claim(''accounts/1'', 34)) IS NOT NULL cannot.';

CREATE OR REPLACE FUNCTION fencing._presented(p_resource text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    line text;
    xid text := pg_current_xact_id()::text || ' ';
    word text;
BEGIN
    FOREACH line IN ARRAY coalesce(string_to_array(current_setting('fencing.token', true), E'\n'), '{}') LOOP
        CONTINUE WHEN NOT starts_with(line, xid);
        word := split_part(line, ' ', 2);
        CONTINUE WHEN substr(line, length(xid) + length(word) + 2) IS DISTINCT FROM p_resource;
        IF word !~ '^[1-9][0-9]{0,15}$' THEN
            RAISE EXCEPTION 'malformed fencing token %: a token is a number from 1 to 9007199254740991', quote_literal(left(word, 32))
                USING ERRCODE = 'LK003',
                      DETAIL = json_build_object('resource', p_resource, 'presented', left(word, 32), 'highest', NULL);
        END IF;
        RETURN word::bigint;
    END LOOP;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION fencing._presented(text) IS
    'the token that this transaction presents for the resource in the setting fencing.token, NULL if none: lines of "transaction token resource"';

CREATE OR REPLACE FUNCTION fencing._count_refusal(p_resource text, p_protected bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    counter regclass;
BEGIN
    PERFORM nextval('fencing.refusals');
    FOR counter IN
        SELECT to_regclass('fencing.refused_' || id) FROM fencing.protected
         WHERE id = p_protected OR p_protected IS NULL AND starts_with(p_resource, prefix)
    LOOP
        PERFORM nextval(counter) WHERE counter IS NOT NULL;
    END LOOP;
END
$$;
COMMENT ON FUNCTION fencing._count_refusal(text, bigint) IS
    'counts a stale claim or write: in all, and for the protected table, or for every table with such resources';

CREATE OR REPLACE FUNCTION fencing._stale(p_resource text, p_presented bigint, p_highest bigint, p_protected bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM fencing._count_refusal(p_resource, p_protected);
    RAISE EXCEPTION 'stale fencing token for %: presented %, highest seen %', quote_literal(p_resource), p_presented, p_highest
        USING ERRCODE = 'LK001',
              DETAIL = json_build_object('resource', p_resource, 'presented', p_presented, 'highest', p_highest),
              HINT = 'Another holder has, or has had, the resource since. Stop, and acquire the lock again.';
END
$$;
COMMENT ON FUNCTION fencing._stale(text, bigint, bigint, bigint) IS 'counts a refusal and raises it as LK001';

-- There is no index on xid, which would cost every claim. So the marks are searched
-- only while that takes milliseconds; the settings name the last claim in any case.
CREATE OR REPLACE FUNCTION fencing._claimed() RETURNS text[]
    LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(resource ORDER BY resource), '{}') FROM (
        SELECT resource FROM fencing.marks
         WHERE (SELECT pg_relation_size('fencing.marks') < 64 * 1024 * 1024) AND xid = pg_current_xact_id() AND claimed_at = now()
        UNION
        SELECT substr(noted, length(pg_current_xact_id()::text) + 2) COLLATE "C" FROM current_setting('fencing.claimed', true) AS noted
         WHERE starts_with(noted, pg_current_xact_id()::text || ' ')
        UNION
        SELECT regexp_replace(line, '^\d+ \S* ', '') COLLATE "C" FROM unnest(string_to_array(current_setting('fencing.token', true), E'\n')) AS line
         WHERE starts_with(line, pg_current_xact_id()::text || ' ')
         LIMIT 10) AS found
$$;
COMMENT ON FUNCTION fencing._claimed() IS 'at most ten of the resources that this transaction has claimed or presented a token for';

CREATE OR REPLACE FUNCTION fencing._unclaimed(p_resource text, p_protected bigint, p_mode text, p_highest bigint, p_proof boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    claimed text[];
    unproven bigint;
BEGIN
    PERFORM nextval(format('fencing.unfenced_%s', p_protected));
    IF p_mode = 'migrating' OR EXISTS (SELECT FROM fencing.unguarded WHERE xid = pg_current_xact_id() AND at = now()) THEN
        RETURN;
    END IF;
    IF p_resource IS NULL THEN
        RAISE EXCEPTION 'a row of % has no resource: the expression gave NULL', (SELECT relation FROM fencing.protected WHERE id = p_protected)
            USING ERRCODE = 'LK003',
                  DETAIL = json_build_object('resource', NULL, 'presented', NULL, 'highest', NULL);
    END IF;
    IF p_proof THEN
        unproven := coalesce(fencing._presented(p_resource), (SELECT mark FROM fencing.marks WHERE resource = p_resource COLLATE "C" AND xid = pg_current_xact_id() AND claimed_at = now()));
        IF unproven IS NOT NULL THEN
            PERFORM fencing._unproven(p_resource, unproven, NULL);
        END IF;
    END IF;
    claimed := fencing._claimed();
    RAISE EXCEPTION 'no fencing token for %: this transaction has claimed %', quote_literal(p_resource),
            CASE WHEN claimed = '{}' THEN 'nothing' ELSE 'only ' || (SELECT string_agg(quote_literal(c), ', ') FROM unnest(claimed) AS c) END
        USING ERRCODE = 'LK002',
              DETAIL = json_build_object('resource', p_resource, 'presented', NULL, 'highest', p_highest, 'claimed', claimed),
              HINT = format('Run this first in the transaction: SELECT fencing.claim(%s, <fencing_token of your lease>%s); For backfills, fixtures, new rows and imports there are fencing.claim_existing, fencing.unguarded and the mode inserts.',
                  quote_literal(p_resource), CASE WHEN p_proof THEN ', <its fencing_proof>' ELSE '' END);
END
$$;
COMMENT ON FUNCTION fencing._unclaimed(text, bigint, text, bigint, boolean) IS
    'counts a write without a token, and raises LK002, LK003 for a row without a resource, or LK004 for a token without its proof, unless the mode or the transaction lets it pass';

CREATE OR REPLACE FUNCTION fencing._admit(p_resource text, p_protected bigint, p_mode text, p_insert boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    presented bigint := fencing._presented(p_resource);
    current_mark bigint;
    own boolean;
BEGIN
    SELECT mark, xid = pg_current_xact_id() AND claimed_at = now()
      INTO current_mark, own
      FROM fencing.marks WHERE resource = p_resource;
    IF own AND (presented IS NULL OR presented = current_mark) THEN
        RETURN;
    END IF;
    IF presented IS NULL THEN
        -- Without a mark there is no holder that could be stale. The mark is made here,
        -- so a claim at the same time waits for this transaction, or makes it fail.
        IF p_insert AND p_mode = 'inserts' AND fencing.valid_resource(p_resource) THEN
            INSERT INTO fencing.marks (resource, mark, previous, xid, claimed_at)
            VALUES (p_resource, 1, 0, pg_current_xact_id(), now()) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
        PERFORM fencing._unclaimed(p_resource, p_protected, p_mode, current_mark, false);
        RETURN;
    END IF;
    current_mark := fencing._raise(p_resource, presented);
    IF current_mark > presented THEN
        PERFORM fencing._stale(p_resource, presented, current_mark, p_protected);
    END IF;
END
$$;
COMMENT ON FUNCTION fencing._admit(text, bigint, text, boolean) IS
    'lets a change of a protected row pass, or raises LK001, LK002 or LK003: what the table''s own trigger function falls back to when its short path does not decide';

CREATE OR REPLACE FUNCTION fencing.unguarded(reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(reason, '') = '' THEN
        RAISE EXCEPTION 'fencing.unguarded needs a reason, which is kept' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO fencing.unguarded (xid, at, role, reason) VALUES (pg_current_xact_id(), now(), session_user, unguarded.reason)
    ON CONFLICT DO NOTHING;
END
$$;
COMMENT ON FUNCTION fencing.unguarded(text) IS
    'Lets the rest of this transaction write protected tables without tokens, and keeps the reason in the table fencing.unguarded. It waits for no holder: use it while there is none. For the schema''s owner and roles that are granted it.';

-- The condition runs with the rights of its caller.
CREATE OR REPLACE FUNCTION fencing.claim_existing(relation regclass, condition text DEFAULT 'true') RETURNS bigint
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
AS $$
DECLARE
    resources text[];
BEGIN
    EXECUTE format(E'SELECT array_agg(DISTINCT (%s) COLLATE "C") FROM %s WHERE (\n%s\n)', fencing._resource_sql(relation), relation, condition) INTO resources;
    RETURN fencing._claim_existing(relation, array_remove(resources, NULL));
END
$$;
COMMENT ON FUNCTION fencing.claim_existing(regclass, text) IS
    'Claims the resources of all rows that fulfil the condition for this transaction, each at the mark that it has, or 1: for backfills. Returns how many. It waits for transactions of holders, and they wait for this one. The condition is read with search_path = pg_catalog and dates in ISO. For the schema''s owner and roles that are granted it and fencing._claim_existing.';

CREATE OR REPLACE FUNCTION fencing._resource_sql(p_relation regclass) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    expression text := (SELECT resource_sql FROM fencing.protected WHERE relation = p_relation);
BEGIN
    IF expression IS NULL THEN
        RAISE EXCEPTION '% is not a protected table', p_relation USING ERRCODE = 'wrong_object_type';
    END IF;
    RETURN expression;
END
$$;
COMMENT ON FUNCTION fencing._resource_sql(regclass) IS 'the resource expression of a protected table';

CREATE OR REPLACE FUNCTION fencing._claim_existing(p_relation regclass, p_resources text[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    claimed bigint;
    marks text;
BEGIN
    PERFORM fencing._malformed(r, 1) FROM unnest(p_resources) AS r;
    FOREACH marks IN ARRAY CASE WHEN (SELECT proof FROM fencing.protected WHERE relation = p_relation)
                                THEN ARRAY['fencing.marks', 'fencing.proven'] ELSE ARRAY['fencing.marks'] END LOOP
        EXECUTE format('INSERT INTO %s AS m (resource, mark, previous, xid, claimed_at)
            SELECT r, 1, 0, pg_current_xact_id(), now() FROM unnest($1) AS r
            ON CONFLICT (resource) DO UPDATE SET previous = m.mark, xid = excluded.xid, claimed_at = excluded.claimed_at', marks) USING p_resources;
        GET DIAGNOSTICS claimed = ROW_COUNT;
    END LOOP;
    RETURN claimed;
END
$$;
COMMENT ON FUNCTION fencing._claim_existing(regclass, text[]) IS 'claims resources of a table at the marks that they have, in the order given';

REVOKE ALL ON FUNCTION fencing._count_refusal(text, bigint), fencing._stale(text, bigint, bigint, bigint), fencing.unguarded(text),
    fencing.claim_existing(regclass, text), fencing._claim_existing(regclass, text[]) FROM PUBLIC;

-- The expression is the table owner's, and becomes part of a function. It is
-- read twice, between brackets of different kinds: text that could end one
-- kind and continue as SQL of its own is a syntax error in the other. A cursor
-- takes one statement only, and runs none of it. What is kept is not the text
-- but what PostgreSQL understood, printed back with every name resolved.
CREATE OR REPLACE FUNCTION fencing._compile(
    p_relation regclass, p_resource_sql text, p_path text,
    OUT bare text, OUT of_new text, OUT of_old text)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    probe text := format('_probe_%s', pg_current_xact_id());
    probing refcursor;
BEGIN
    EXECUTE format('CREATE TABLE fencing.%I (LIKE %s)', probe, p_relation);
    BEGIN
        PERFORM set_config('search_path', p_path, true);
        OPEN probing FOR EXECUTE pg_catalog.format(E'SELECT ARRAY[\n%s\n] FROM fencing.%I', p_resource_sql, probe);
        CLOSE probing;
        EXECUTE pg_catalog.format(E'ALTER TABLE fencing.%I ADD CONSTRAINT resource CHECK (fencing.valid_resource(\n%s\n))', probe, p_resource_sql);
    EXCEPTION WHEN OTHERS THEN
        RAISE EXCEPTION 'the resource expression of % cannot be used: %', p_relation, SQLERRM
            USING ERRCODE = SQLSTATE,
                  DETAIL = pg_catalog.format('expression: %s', p_resource_sql),
                  HINT = 'It must be an expression of type text over the columns of one row, like ''accounts/'' || id, without subqueries, aggregates or parameters.';
    END;
    PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
    PERFORM fencing._refuse_foreign(p_relation, probe);
    SELECT p.bare, p.of_new, p.of_old INTO STRICT bare, of_new, of_old FROM fencing._print(probe) AS p;
    EXECUTE format('DROP TABLE fencing.%I CASCADE', probe);
    IF of_new ~ $re$\mrow_now\.\*$re$ THEN
        RAISE EXCEPTION 'the resource expression of % uses the whole row: name its columns', p_relation
            USING ERRCODE = 'feature_not_supported', DETAIL = format('expression: %s', p_resource_sql);
    END IF;
END
$$;
COMMENT ON FUNCTION fencing._compile(regclass, text, text) IS
    'checks a resource expression and gives it with plain columns, and with those of row_now and row_was';

-- What the expression uses runs with the rights of the schema's owner, and its own
-- owner can change it later. It may have come into the expression unseen, like an
-- operator || that fits better than PostgreSQL's.
CREATE OR REPLACE FUNCTION fencing._refuse_foreign(p_relation regclass, p_probe text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema_owner oid := (SELECT nspowner FROM pg_namespace WHERE nspname = 'fencing');
    table_owner oid := (SELECT relowner FROM pg_class WHERE oid = p_relation);
    used record;
BEGIN
    FOR used IN
        SELECT coalesce(format_type(owned.type, NULL), pg_describe_object(d.refclassid, d.refobjid, 0)) AS name, owned.owner
          FROM pg_constraint AS c
          JOIN pg_depend AS d ON d.classid = 'pg_constraint'::regclass AND d.objid = c.oid
         CROSS JOIN LATERAL (
               SELECT proowner, NULL::oid FROM pg_proc WHERE d.refclassid = 'pg_proc'::regclass AND oid = d.refobjid AND pronamespace <> 'fencing'::regnamespace
               UNION ALL SELECT oprowner, NULL FROM pg_operator WHERE d.refclassid = 'pg_operator'::regclass AND oid = d.refobjid
               UNION ALL SELECT proowner, NULL FROM pg_operator AS o JOIN pg_proc AS p ON p.oid = o.oprcode WHERE d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
               UNION ALL SELECT typowner, oid FROM pg_type WHERE d.refclassid = 'pg_type'::regclass AND oid = d.refobjid
               UNION ALL SELECT typowner, atttypid FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
                          WHERE d.refclassid = 'pg_class'::regclass AND attrelid = d.refobjid AND attnum = d.refobjsubid
               ) AS owned (owner, type)
         WHERE c.conrelid = format('fencing.%I', p_probe)::regclass AND c.conname = 'resource'
    LOOP
        -- A member of one of the two may act as it, and a superuser is a member of all.
        IF NOT pg_has_role(used.owner, schema_owner, 'MEMBER') AND NOT pg_has_role(used.owner, table_owner, 'MEMBER') THEN
            RAISE EXCEPTION 'the resource expression of % uses what belongs to %: %', p_relation, used.owner::regrole, used.name
                USING ERRCODE = 'insufficient_privilege',
                      DETAIL = 'It would run with the rights of the owner of the schema fencing.',
                      HINT = 'Write OPERATOR(pg_catalog.||) if PostgreSQL''s own is meant. Else use what a superuser owns, or the owner of the table or of the schema fencing.';
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION fencing._refuse_foreign(regclass, text) IS
    'raises an error for a resource expression with functions, operators or types of anybody but superusers and the owners of the table and of the schema';

-- The expression was read under the settings of whoever protects, so that its
-- literals mean what they mean there. They are printed as the trigger functions
-- will read them, who run under fencing._settings(): these are the same settings.
CREATE OR REPLACE FUNCTION fencing._print(p_probe text, OUT bare text, OUT of_new text, OUT of_old text)
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
AS $$
BEGIN
    SELECT substr(def, length('fencing.valid_resource(') + 1, length(def) - length('fencing.valid_resource()'))
      INTO STRICT bare
      FROM (SELECT pg_get_expr(conbin, conrelid) AS def
              FROM pg_constraint WHERE conrelid = format('fencing.%I', p_probe)::regclass AND conname = 'resource') AS c;
    of_new := fencing._qualify(p_probe, bare, 'row_now');
    of_old := fencing._qualify(p_probe, bare, 'row_was');
END
$$;
COMMENT ON FUNCTION fencing._print(text) IS
    'a checked resource expression as PostgreSQL prints it, with plain columns, and with those of row_now and row_was';

CREATE OR REPLACE FUNCTION fencing._qualify(p_probe text, p_bare text, p_row text) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    viewed text[];
    expression text;
    head text := ' SELECT NULL::text AS r';
    printed text;
BEGIN
    -- Beside a second relation, PostgreSQL prints a column with its table's
    -- alias. A view of nothing shows how much of the text is not the expression.
    FOREACH expression IN ARRAY ARRAY['NULL::text', p_bare] LOOP
        EXECUTE format('CREATE VIEW fencing.%I AS SELECT %s AS r FROM fencing.%I AS %I, (SELECT) AS beside',
            p_probe || '_' || p_row, expression, p_probe, p_row);
        printed := rtrim(pg_get_viewdef(format('fencing.%I', p_probe || '_' || p_row)::regclass), E'; \n');
        viewed := viewed || printed;
        EXECUTE format('DROP VIEW fencing.%I', p_probe || '_' || p_row);
    END LOOP;
    IF NOT starts_with(viewed[1], head)
       OR right(viewed[2], length(viewed[1]) - length(head)) <> substr(viewed[1], length(head) + 1) THEN
        RAISE EXCEPTION 'cannot read back the resource expression: %', viewed[2];
    END IF;
    RETURN substr(viewed[2], length(' SELECT ') + 1,
        length(viewed[2]) - length(' SELECT ') - length(' AS r') - (length(viewed[1]) - length(head)));
END
$$;
COMMENT ON FUNCTION fencing._qualify(text, text, text) IS 'an expression over the probe table, with every column written as row.column';

-- A resource is one text, whoever writes. But the text of a date, a float or an
-- interval is another under another setting, that of a regclass under another
-- search_path, and a stale token for the other text would pass. So whatever forms
-- a resource's text does it under these settings: all that the text of a built-in
-- type depends on, and how literals are read.
CREATE OR REPLACE FUNCTION fencing._settings() RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT $set$SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, MDY' SET timezone = 'UTC' SET intervalstyle = 'postgres' SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET quote_all_identifiers = off SET standard_conforming_strings = on$set$
$$;
COMMENT ON FUNCTION fencing._settings() IS 'the settings under which the text of a resource is formed: ISO, UTC, and no search_path of the writer''s';

-- Most expressions are columns and literals joined with ||. Where no setting and
-- no search_path has a say in the columns' texts (see fencing._stays), they are
-- written so that none has one in the rest, and then the trigger function does
-- without SET, which costs a tenth of a guarded update for search_path alone.
-- In every other expression names were resolved by PostgreSQL under the path that
-- the function then sets.
-- A column becomes text before it is joined: || with another type is a function
-- in SQL that would look up the rest under the writer's search_path.
CREATE OR REPLACE FUNCTION fencing._in_full(p_expression text) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN string_agg(token, '' ORDER BY place) = p_expression THEN
               string_agg(CASE WHEN token = '||' THEN 'OPERATOR(pg_catalog.||)'
                               WHEN token = '::text' THEN '::pg_catalog.text'
                               WHEN token ~ '^row_' THEN '(' || token || ')::pg_catalog.text'
                               ELSE token END, '' ORDER BY place)
           END
      FROM regexp_matches(p_expression,
               $re$(\|\||::text\M|'(?:[^'\\]|'')*'|row_(?:now|was)\.(?:[a-z_][a-z0-9_]*|"(?:[^"]|"")*")|[\s()]+)$re$, 'g')
           WITH ORDINALITY AS found (tokens, place), unnest(tokens) AS token
$$;
COMMENT ON FUNCTION fencing._in_full(text) IS
    'a compiled resource expression with operators and types named in full; NULL if it is more than columns and literals joined with ||';

-- Whether a row stays with its resource is seen in its columns, which costs half
-- of what two texts cost. The functions compare to the bit, and do not exist for
-- types that a column might be changed to and that they do not fit: so they also
-- keep columns out whose text depends on settings, then and later. A domain is
-- none of these types, and a user-defined cast to text keeps its type out.
CREATE OR REPLACE FUNCTION fencing._stays(p_relation regclass, p_new text) RETURNS text
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    SET quote_all_identifiers = off
AS $$
    SELECT CASE WHEN count(*) = 0 THEN 'true'
                WHEN count(*) = count(equal) THEN string_agg(format(equal, attname), ' AND ' ORDER BY attname COLLATE "C") END
      FROM (SELECT DISTINCT named[1] AS name
              FROM regexp_matches(p_new, $re$'(?:[^']|'')*'|row_now\.([a-z_][a-z0-9_]*|"(?:[^"]|"")*")$re$, 'g') AS found (named)
             WHERE named[1] IS NOT NULL) AS columns
      LEFT JOIN pg_attribute ON attrelid = p_relation AND attnum > 0 AND quote_ident(attname) = name
      LEFT JOIN (VALUES ('{int2,int4,int8}'::regtype[], 'pg_catalog.int8eq(row_now.%1$I, row_was.%1$I)'),
                        ('{bool}', 'pg_catalog.booleq(row_now.%1$I, row_was.%1$I)'),
                        ('{uuid}', 'pg_catalog.uuid_eq(row_now.%1$I, row_was.%1$I)'),
                        ('{text,varchar}', 'pg_catalog.texteq(row_now.%1$I COLLATE pg_catalog."C", row_was.%1$I)'))
             AS known (types, equal) ON atttypid = ANY (types)
                AND NOT EXISTS (SELECT FROM pg_cast AS c WHERE castsource = atttypid AND casttarget = 'text'::regtype AND c.oid >= 16384)
$$;
COMMENT ON FUNCTION fencing._stays(regclass, text) IS
    'the test whether old and new row have one resource, of an expression that _in_full takes; NULL if a column''s text could depend on a setting. Not true for an insert or a delete, unless all rows have one resource';

-- What a trigger does with the resource of a row, as text: a call would cost
-- more than what it does. First come the short paths: a presented token that
-- is the mark, which is taken for this transaction as a claim does; what this
-- transaction claimed last; and what it has taken before.
CREATE OR REPLACE FUNCTION fencing._admission(p_variable text, p_id bigint, p_mode text) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format($body$
        IF pg_catalog.current_setting('fencing.token', true) OPERATOR(pg_catalog.<>) '' THEN
            UPDATE fencing.marks SET xid = pg_catalog.pg_current_xact_id(), claimed_at = pg_catalog.now()
             WHERE resource OPERATOR(pg_catalog.=) %1$s
               AND pg_catalog.current_setting('fencing.token', true) OPERATOR(pg_catalog.=) pg_catalog.concat(pg_catalog.pg_current_xact_id(), ' ', mark, ' ', resource)
               AND xid OPERATOR(pg_catalog.<>) pg_catalog.pg_current_xact_id();
            admitted := FOUND;
        ELSE
            admitted := pg_catalog.current_setting('fencing.claimed', true) OPERATOR(pg_catalog.=) pg_catalog.concat(pg_catalog.pg_current_xact_id(), ' ', %1$s);
        END IF;
        IF admitted IS NOT TRUE THEN
            PERFORM FROM fencing.marks
             WHERE resource OPERATOR(pg_catalog.=) %1$s AND xid OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id() AND claimed_at OPERATOR(pg_catalog.=) pg_catalog.now();
            IF NOT FOUND THEN
                PERFORM fencing._admit(%1$s, %2$s, %3$L, TG_OP OPERATOR(pg_catalog.=) 'INSERT');
            END IF;
        END IF;$body$, p_variable, p_id, p_mode)
$$;
COMMENT ON FUNCTION fencing._admission(text, bigint, text) IS 'the part of a trigger function that lets a row of one resource pass or not';

-- Every transaction prepares each expression of the function again, so there are
-- few, and the cheaper of two was chosen by counting instructions:
-- no TG_OP on the short paths, and NEW is returned, which is ignored like NULL
-- but is not an expression.
CREATE OR REPLACE FUNCTION fencing._guard_body(p_id bigint, p_mode text, p_new text, p_old text, p_stays text) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format($body$
DECLARE
    row_now ALIAS FOR new;
    row_was ALIAS FOR old;
    resource_now pg_catalog.text;
    resource_was pg_catalog.text;
    admitted pg_catalog.bool;
BEGIN
    -- Runs after the row has changed, and so after every other trigger that
    -- could have changed it, and after every wait for another transaction.
    -- What is most common comes first, in as few steps as can be: an update
    -- of a row that stays with its resource.
    -- Names are written in full: there may be no SET search_path.
    IF pg_catalog.current_setting('fencing.token', true) OPERATOR(pg_catalog.<>) '' AND %5$s THEN
        resource_now := %1$s;
        UPDATE fencing.marks SET xid = pg_catalog.pg_current_xact_id(), claimed_at = pg_catalog.now()
         WHERE resource OPERATOR(pg_catalog.=) resource_now
           AND pg_catalog.current_setting('fencing.token', true) OPERATOR(pg_catalog.=) pg_catalog.concat(pg_catalog.pg_current_xact_id(), ' ', mark, ' ', resource)
           AND xid OPERATOR(pg_catalog.<>) pg_catalog.pg_current_xact_id();
        IF FOUND THEN
            RETURN row_now;
        END IF;
    ELSIF pg_catalog.current_setting('fencing.claimed', true) OPERATOR(pg_catalog.=) pg_catalog.concat(pg_catalog.pg_current_xact_id(), ' ', %1$s) AND %5$s THEN
        RETURN row_now;
    END IF;
    IF TG_OP OPERATOR(pg_catalog.<>) 'DELETE' THEN
        resource_now := %1$s;%3$s
    END IF;
    IF TG_OP OPERATOR(pg_catalog.<>) 'INSERT' THEN
        resource_was := %2$s;
        IF TG_OP OPERATOR(pg_catalog.<>) 'DELETE' AND resource_was OPERATOR(pg_catalog.=) resource_now THEN
            RETURN NULL;
        END IF;%4$s
    END IF;
    RETURN NULL;
END
$body$, p_new, p_old, fencing._admission('resource_now', p_id, p_mode), fencing._admission('resource_was', p_id, p_mode), p_stays)
$$;
COMMENT ON FUNCTION fencing._guard_body(bigint, text, text, text, text) IS 'the text of a protected table''s row trigger function';

CREATE OR REPLACE FUNCTION fencing._guard(p_relation regclass, p_id bigint, p_mode text, p_new text, p_old text) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stays text;
    settings text := '';
    -- A column's own collation may hold texts to be equal that are not.
    collated text := '((%s) COLLATE pg_catalog."C")';
    of_new text := format(collated, fencing._in_full(p_new));
    of_old text := format(collated, fencing._in_full(p_old));
BEGIN
    IF fencing._in_full(p_new) IS NOT NULL AND fencing._in_full(p_old) IS NOT NULL THEN
        stays := fencing._stays(p_relation, of_new);
    END IF;
    IF stays IS NULL THEN
        settings := fencing._settings();
        of_new := format(collated, p_new);
        of_old := format(collated, p_old);
        stays := format($stays$TG_OP = 'UPDATE' AND %s = %s$stays$, of_new, of_old);
    END IF;
    RETURN format('CREATE OR REPLACE FUNCTION fencing.guard_%s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER %s AS %L',
        p_id, settings, fencing._guard_body(p_id, p_mode, of_new, of_old, stays));
END
$$;
COMMENT ON FUNCTION fencing._guard(regclass, bigint, text, text, text) IS 'the statement that makes a protected table''s row trigger function';

CREATE OR REPLACE FUNCTION fencing._truncate_body(p_id bigint, p_mode text, p_bare text) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format($body$
DECLARE
    emptied text;
BEGIN
    -- The table is locked by now. A snapshot taken before that would not show
    -- all the rows that are about to go.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'a protected table cannot be truncated at isolation level %%', current_setting('transaction_isolation')
            USING ERRCODE = 'feature_not_supported', HINT = 'Use READ COMMITTED, or DELETE.';
    END IF;
    FOR emptied IN EXECUTE format('SELECT DISTINCT (%%s) COLLATE "C" FROM %%s', %1$L, TG_RELID::regclass) LOOP
        PERFORM fencing._admit(emptied, %2$s, %3$L, false);
    END LOOP;
    RETURN NULL;
END
$body$, p_bare, p_id, p_mode)
$$;
COMMENT ON FUNCTION fencing._truncate_body(bigint, text, text) IS
    'the text of a protected table''s truncate trigger function: a token is needed for every resource that has a row';

CREATE OR REPLACE FUNCTION fencing._unguarded_children(p_relation regclass) RETURNS SETOF regclass
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT inhrelid::regclass FROM pg_inherits
     WHERE inhparent = p_relation AND NOT EXISTS (SELECT FROM fencing.protected WHERE relation = inhrelid)
$$;
COMMENT ON FUNCTION fencing._unguarded_children(regclass) IS
    'the tables that inherit from a table, which is not partitioned, and are not protected themselves';

-- Partitions are protected with their table or each by itself, never both: else the
-- one would take off what the other needs.
CREATE OR REPLACE FUNCTION fencing._refuse_partition(p_relation regclass) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part regclass := (SELECT min(relation::oid) FROM fencing.protected
                       WHERE relation <> p_relation AND relation IN (SELECT relid FROM pg_partition_tree(p_relation)));
BEGIN
    IF part IS NOT NULL THEN
        RAISE EXCEPTION 'the protection of % cannot be changed: its partition % is protected by itself', p_relation, part
            USING ERRCODE = 'wrong_object_type', HINT = format('Call fencing.unprotect(%L) first, in the same transaction.', part);
    END IF;
    IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = p_relation AND tgname = '0_fencing_guard' AND tgparentid <> 0) THEN
        RAISE EXCEPTION 'the protection of % cannot be changed by itself: it is a partition of a protected table', p_relation
            USING ERRCODE = 'wrong_object_type';
    END IF;
END
$$;
COMMENT ON FUNCTION fencing._refuse_partition(regclass) IS
    'raises an error for a partition of a protected table, and for a table with a partition that is protected by itself';

CREATE OR REPLACE FUNCTION fencing._refuse_relation(p_relation regclass) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rel pg_class;
BEGIN
    SELECT * INTO STRICT rel FROM pg_class WHERE oid = p_relation;
    IF rel.relkind NOT IN ('r', 'p') OR rel.relpersistence = 't' THEN
        RAISE EXCEPTION '% cannot be protected: only tables that are not temporary can', p_relation
            USING ERRCODE = 'wrong_object_type';
    END IF;
    IF rel.relnamespace IN ('fencing'::regnamespace, 'pg_catalog'::regnamespace, 'information_schema'::regnamespace) THEN
        RAISE EXCEPTION '% cannot be protected: it is not an application''s table', p_relation
            USING ERRCODE = 'wrong_object_type';
    END IF;
    IF rel.relkind = 'r' AND EXISTS (SELECT FROM fencing._unguarded_children(p_relation)) THEN
        RAISE EXCEPTION '% cannot be protected: % inherits from it and is not guarded', p_relation, (SELECT min(child::text) FROM fencing._unguarded_children(p_relation) AS child)
            USING ERRCODE = 'wrong_object_type', HINT = 'Triggers are not inherited: protect the tables that inherit first, or use partitions.';
    END IF;
    PERFORM fencing._refuse_partition(p_relation);
    IF NOT pg_has_role((SELECT nspowner FROM pg_namespace WHERE nspname = 'fencing'), 'USAGE') THEN
        RAISE EXCEPTION 'only the owner of the schema fencing can protect tables' USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;
COMMENT ON FUNCTION fencing._refuse_relation(regclass) IS 'raises an error for what cannot be protected';

CREATE OR REPLACE FUNCTION fencing._drop_triggers(p_relation regclass) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_trigger record;
BEGIN
    FOR found_trigger IN
        SELECT tgrelid::regclass AS relation, tgname FROM pg_trigger
         WHERE tgrelid IN (SELECT p_relation UNION SELECT relid FROM pg_partition_tree(p_relation))
           AND tgname IN ('0_fencing_guard', '0_fencing_truncate') AND tgparentid = 0
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', found_trigger.tgname, found_trigger.relation);
    END LOOP;
END
$$;
COMMENT ON FUNCTION fencing._drop_triggers(regclass) IS 'takes the guard''s triggers off a table and its partitions';

CREATE OR REPLACE FUNCTION fencing._forget(p_id bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('DROP FUNCTION IF EXISTS fencing.guard_%1$s(), fencing.truncate_%1$s()', p_id);
    EXECUTE format('DROP SEQUENCE IF EXISTS fencing.refused_%1$s, fencing.unfenced_%1$s', p_id);
    DELETE FROM fencing.protected WHERE id = p_id;
END
$$;
COMMENT ON FUNCTION fencing._forget(bigint) IS 'drops what belongs to a protected table in the schema fencing';

CREATE OR REPLACE FUNCTION fencing._protect(p_relation regclass, p_resource_sql text, p_mode text, p_path text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET client_min_messages = warning
AS $$
DECLARE
    compiled record;
    number bigint;
    made text;
    part regclass;
BEGIN
    PERFORM fencing._refuse_relation(p_relation);
    -- From here on there are no writes until this transaction ends, and a second
    -- call for the same table waits.
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', p_relation);
    compiled := fencing._compile(p_relation, p_resource_sql, p_path);
    PERFORM fencing._forget(id) FROM fencing.protected WHERE NOT EXISTS (SELECT FROM pg_class WHERE oid = relation);

    INSERT INTO fencing.protected AS p (relation, resource_sql, mode, prefix)
    VALUES (p_relation, compiled.bare, p_mode, nullif(replace(substring(compiled.bare FROM $re$^\(*'((?:[^']|'')*)'::text(?: \|\||$)$re$), $q$''$q$, $q$'$q$), ''))
    ON CONFLICT (relation) DO UPDATE SET resource_sql = excluded.resource_sql, mode = excluded.mode, prefix = excluded.prefix
    RETURNING id INTO number;
    EXECUTE format('CREATE SEQUENCE IF NOT EXISTS fencing.refused_%s', number);
    EXECUTE format('CREATE SEQUENCE IF NOT EXISTS fencing.unfenced_%s', number);
    EXECUTE fencing._guard(p_relation, number, p_mode, compiled.of_new, compiled.of_old);
    EXECUTE format('CREATE OR REPLACE FUNCTION fencing.truncate_%s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER %s SET row_security = off AS %L',
        number, fencing._settings(), fencing._truncate_body(number, p_mode, compiled.bare));
    -- The trigger functions run as the schema's owner, whoever called protect.
    FOREACH made IN ARRAY ARRAY[format('FUNCTION fencing.guard_%s()', number), format('FUNCTION fencing.truncate_%s()', number),
                                format('SEQUENCE fencing.refused_%s', number), format('SEQUENCE fencing.unfenced_%s', number)] LOOP
        EXECUTE format('ALTER %s OWNER TO %s', made, (SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'fencing'));
        EXECUTE format('REVOKE ALL ON %s FROM PUBLIC', made);
        EXECUTE format('COMMENT ON %s IS %L', made, format('belongs to the protection of %s', p_relation));
    END LOOP;

    -- Default privileges, or a grant of all functions, may have given one away. Who
    -- may execute it can hang it on a table of its own, and run code as its owner.
    FOR made IN
        SELECT format('REVOKE ALL ON FUNCTION %s FROM %s CASCADE', f.oid::regprocedure, a.grantee::regrole)
          FROM pg_proc AS f CROSS JOIN aclexplode(f.proacl) AS a
         WHERE f.pronamespace = 'fencing'::regnamespace AND f.proname IN (format('guard_%s', number), format('truncate_%s', number))
           AND a.grantee NOT IN (0, f.proowner)
    LOOP
        EXECUTE made;
    END LOOP;

    PERFORM fencing._drop_triggers(p_relation);
    -- A constraint trigger cannot be replaced, which the right TRIGGER would allow.
    EXECUTE format('CREATE CONSTRAINT TRIGGER "0_fencing_guard" AFTER INSERT OR UPDATE OR DELETE ON %s NOT DEFERRABLE FOR EACH ROW EXECUTE FUNCTION fencing.guard_%s()',
        p_relation, number);
    -- A truncate trigger is not inherited by partitions, and cannot be a constraint's.
    FOR part IN SELECT p_relation UNION SELECT relid FROM pg_partition_tree(p_relation) LOOP
        EXECUTE format('CREATE TRIGGER "0_fencing_truncate" BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION fencing.truncate_%s()',
            part, number);
    END LOOP;
END
$$;
COMMENT ON FUNCTION fencing._protect(regclass, text, text, text) IS 'fencing.protect, with the search_path of its caller';

CREATE OR REPLACE FUNCTION fencing.unprotect(relation regclass) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    number bigint;
BEGIN
    PERFORM fencing._refuse_partition(relation);
    SELECT p.id INTO number FROM fencing.protected AS p WHERE p.relation = unprotect.relation;
    PERFORM fencing._drop_triggers(relation);
    IF number IS NULL THEN
        RETURN false;
    END IF;
    PERFORM fencing._forget(number);
    RETURN true;
END
$$;
COMMENT ON FUNCTION fencing.unprotect(regclass) IS
    'Takes the protection off a table; true if there was any. Marks stay: a table that is protected again still refuses what was stale.';

CREATE OR REPLACE FUNCTION fencing._counted(p_name text) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    counter regclass := to_regclass('fencing.' || quote_ident(p_name));
BEGIN
    RETURN CASE WHEN counter IS NULL THEN 0 ELSE coalesce(pg_sequence_last_value(counter), 0) END;
END
$$;
COMMENT ON FUNCTION fencing._counted(text) IS 'how often a counter has been stepped';

-- A subscription applies changes with session_replication_role = replica, which no
-- ordinary trigger sees. That is sound only if the marks come along. A trigger that
-- fires always does see it, and finds no claim. (Not SQL: fencing.protected gets its
-- column proof later.)
CREATE OR REPLACE FUNCTION fencing._unmarked(p_relation regclass) RETURNS SETOF text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    WITH target AS (
        SELECT DISTINCT r.srsubid, s.subname, r.srrelid FROM pg_subscription_rel AS r JOIN pg_stat_subscription AS s ON s.subid = r.srsubid
         WHERE r.srrelid IN (SELECT p_relation::oid UNION SELECT relid FROM pg_partition_tree(p_relation)))
    SELECT DISTINCT format('the subscription %I writes it and does not carry %s', t.subname, m.name)
      FROM target AS t
      JOIN (SELECT 'fencing.marks' UNION ALL SELECT 'fencing.proven' FROM fencing.protected WHERE relation = p_relation AND proof) AS m (name)
        ON NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubid = t.srsubid AND srrelid = m.name::regclass)
    UNION ALL
    SELECT DISTINCT format('the trigger %s of %s fires always, which stops the subscription %I', g.tgname, t.srrelid::regclass, t.subname)
      FROM target AS t JOIN pg_trigger AS g ON g.tgrelid = t.srrelid
     WHERE g.tgname IN ('0_fencing_guard', '0_fencing_truncate') AND g.tgenabled IN ('A', 'R');
END
$$;
COMMENT ON FUNCTION fencing._unmarked(regclass) IS
    'what is wrong with the subscriptions that write a protected table: marks that do not come along, triggers that make them stop';

CREATE OR REPLACE FUNCTION fencing._problem(p_relation regclass, p_id bigint) RETURNS text
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(problem, '; ') FROM (
        SELECT format('%s has no working trigger %s', t.relid::regclass, w.name) AS problem
          FROM (SELECT p_relation::oid AS relid UNION SELECT relid FROM pg_partition_tree(p_relation)) AS t
         -- events: the bits of AFTER INSERT OR UPDATE OR DELETE FOR EACH ROW, and of BEFORE TRUNCATE.
         CROSS JOIN (VALUES ('0_fencing_guard', 'guard', 29), ('0_fencing_truncate', 'truncate', 34)) AS w (name, runs, events)
         WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = t.relid)
           AND NOT EXISTS (
               SELECT FROM pg_trigger g JOIN pg_proc f ON f.oid = g.tgfoid
                WHERE g.tgrelid = t.relid AND g.tgname = w.name AND g.tgenabled IN ('O', 'A')
                  AND g.tgtype = w.events AND g.tgqual IS NULL AND NOT g.tgdeferrable
                  AND f.pronamespace = 'fencing'::regnamespace AND f.proname = format('%s_%s', w.runs, p_id))
        UNION ALL
        SELECT format('%s inherits from it and is not guarded', child)
          FROM fencing._unguarded_children(p_relation) AS child
         WHERE EXISTS (SELECT FROM pg_class WHERE oid = p_relation AND relkind = 'r')
        UNION ALL
        SELECT unmarked FROM fencing._unmarked(p_relation) AS unmarked
         ORDER BY 1
    ) AS p
$$;
COMMENT ON FUNCTION fencing._problem(regclass, bigint) IS 'what is missing from a table''s protection, NULL if nothing is';

CREATE OR REPLACE VIEW fencing.status AS
SELECT 'table' AS kind,
       p.relation::text AS name,
       p.mode,
       p.resource_sql,
       NULL::bigint AS mark,
       p.since,
       fencing._counted('refused_' || p.id) AS refused,
       fencing._counted('unfenced_' || p.id) AS unfenced,
       CASE WHEN c.oid IS NULL THEN 'the table has been dropped' ELSE fencing._problem(p.relation, p.id) END AS problem
  FROM fencing.protected AS p LEFT JOIN pg_catalog.pg_class AS c ON c.oid = p.relation
UNION ALL
SELECT 'resource', m.resource, NULL, NULL, m.mark, m.claimed_at, NULL, NULL, NULL
  FROM fencing.marks AS m
UNION ALL
SELECT 'database', pg_catalog.current_database(), NULL, NULL, NULL, NULL, fencing._counted('refusals'), NULL, NULL
UNION ALL
SELECT 'role', r.name, pg_catalog.string_agg(DISTINCT r.may, ', '), NULL, NULL, pg_catalog.max(r.at), NULL, pg_catalog.count(r.at), NULL
  FROM (SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(a.grantee)::text END AS name, f.proname::text AS may, NULL::timestamptz AS at
          FROM pg_catalog.pg_proc AS f CROSS JOIN pg_catalog.aclexplode(f.proacl) AS a
         WHERE f.pronamespace = 'fencing'::regnamespace AND f.proname IN ('unguarded', 'claim_existing') AND a.grantee <> f.proowner
        UNION ALL SELECT role::text, NULL, at FROM fencing.unguarded) AS r
 GROUP BY r.name;
COMMENT ON VIEW fencing.status IS
    'Every protected table, every resource, the database as a whole, and every role that may write without tokens, or has. since: protected since, claimed last, or wrote unguarded last. refused: stale claims and writes. unfenced: writes of a table without a token, refused in the modes strict and inserts; transactions of a role without tokens. problem: what is missing from the protection, such as a partition made since, or the marks for what a subscription writes. Counts of tables and of the database survive rollbacks, and may run ahead by up to 32 after a crash.';
