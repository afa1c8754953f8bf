-- The guard of fencelock in MariaDB 10.11 or newer: tables and routines whose names begin
-- with "fencing_", in the current database. It can be run again, also over an older
-- version. Run it with the mariadb client as it is: DELIMITER is a command of that client.

SET NAMES utf8mb4;
-- || joins, as in the other databases' resource expressions. Routines keep this mode.
SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,PIPES_AS_CONCAT';

DELIMITER //

BEGIN NOT ATOMIC
    IF (SELECT COUNT(*) FROM information_schema.SYSTEM_VARIABLES WHERE VARIABLE_NAME = 'INNODB_SNAPSHOT_ISOLATION') = 0 THEN
        SIGNAL SQLSTATE '0A000' SET MESSAGE_TEXT = 'the guard needs the variable innodb_snapshot_isolation: MariaDB 10.11.8 or newer';
    END IF;
    IF @@log_bin AND @@GLOBAL.binlog_format = 'STATEMENT' THEN
        SIGNAL SQLSTATE '0A000' SET MESSAGE_TEXT = 'the guard needs binlog_format = MIXED or ROW: a replica cannot repeat claims from statements';
    END IF;
END//

-- One connection at a time changes the guard, by GET_LOCK of a name that only those can
-- read who may do it anyway: that function needs no right, and whoever knew the name could
-- keep everybody else from it.
CREATE TABLE IF NOT EXISTS fencing_turn (
    id   TINYINT NOT NULL PRIMARY KEY,
    name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE = InnoDB COMMENT = 'The name of the lock under which the guard is changed. Grant nobody this table.'//

INSERT IGNORE INTO fencing_turn (id, name) VALUES (1, CONCAT('fencing.', HEX(RANDOM_BYTES(16))))//

CREATE TABLE IF NOT EXISTS fencing_version (
    version      INT NOT NULL PRIMARY KEY,
    installed_at DATETIME(6) NOT NULL
) ENGINE = InnoDB COMMENT = 'The versions of the schema that were installed; the largest one is in use.'//

-- The marks: for each resource its high-water mark, the largest token seen. Every claim
-- changes the row, even when the mark stays as high as it was (claims): so a claim whose
-- snapshot is older than the last claim fails instead of reading the past. claimer says
-- which connection has claimed: the hash of its number, and of the random @fencing_claimer
-- that it got at its first claim. So nobody can guess it, and whoever reads it, or the
-- variable, can use neither on another connection. It is zeros after a claim that was a
-- transaction of its own.
-- The partition is there for its name: a temporary table hides the real one also from
-- triggers and routines, but has no partitions, so that a statement that names one fails.
CREATE TABLE IF NOT EXISTS fencing_marks (
    resource   VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin PRIMARY KEY,
    mark       BIGINT NOT NULL COMMENT 'the largest token seen; a smaller one is refused',
    previous   BIGINT NOT NULL COMMENT 'the mark before the last claim; 0 before the first',
    claims     BIGINT NOT NULL COMMENT 'the number of claims',
    claimer    BINARY(16) NOT NULL COMMENT 'the connection that claimed last, as a hash; zeros for none',
    claimed_at DATETIME(6) NOT NULL COMMENT 'when, in UTC'
) ENGINE = InnoDB
  COMMENT = 'One row for each resource ever claimed. Never delete a row while a holder of an older token may live.'
  PARTITION BY KEY (resource) (PARTITION base)//

CREATE TABLE IF NOT EXISTS fencing_protected (
    id           INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name         VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL UNIQUE,
    resource_sql TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL COMMENT 'the expression, as MariaDB printed it back',
    mode         VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    triggers     CHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL COMMENT 'the hash of the triggers'' texts',
    since        DATETIME(6) NOT NULL
) ENGINE = InnoDB
  COMMENT = 'The protected tables. Use fencing_protect and fencing_unprotect; a row alone protects nothing.'//

CREATE TABLE IF NOT EXISTS fencing_unguarded_log (
    id     BIGINT UNSIGNED NOT NULL PRIMARY KEY COMMENT 'random: the server gives a thread''s number again after a restart',
    thread BIGINT UNSIGNED NOT NULL,
    at     DATETIME(6) NOT NULL,
    role   VARCHAR(400) CHARACTER SET utf8mb4 NOT NULL,
    reason VARCHAR(1000) CHARACTER SET utf8mb4 NOT NULL,
    ended  DATETIME(6) NULL
) ENGINE = InnoDB
  COMMENT = 'The connections that wrote protected tables without tokens, and why: see fencing_unguarded. Old rows may be deleted.'
  PARTITION BY KEY (id) (PARTITION base)//

-- Version 1 had no partitions, and claimers that could be guessed.
BEGIN NOT ATOMIC
    IF NOT EXISTS (SELECT 1 FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'fencing_marks' AND PARTITION_NAME = 'base') THEN
        ALTER TABLE fencing_marks DROP COLUMN claimer,
            ADD COLUMN claimer BINARY(16) NOT NULL COMMENT 'the connection that claimed last, as a hash; zeros for none' AFTER claims
            PARTITION BY KEY (resource) (PARTITION base);
    END IF;
    IF NOT EXISTS (SELECT 1 FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'fencing_unguarded_log' AND PARTITION_NAME = 'base') THEN
        ALTER TABLE fencing_unguarded_log PARTITION BY KEY (id) (PARTITION base);
    END IF;
END//

CREATE TABLE IF NOT EXISTS fencing_records (
    resource VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin PRIMARY KEY,
    value    LONGBLOB NULL COMMENT 'as it was written, to the byte; NULL until the first write',
    version  BIGINT NOT NULL COMMENT 'the number of accepted writes',
    attempts BIGINT NOT NULL COMMENT 'the number of attempts ever made, which numbers their history'
) ENGINE = InnoDB
  COMMENT = 'The service''s guarded records: one row for each resource claimed or written through it.'//

CREATE TABLE IF NOT EXISTS fencing_attempts (
    resource VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    seq      BIGINT NOT NULL,
    token    BIGINT NOT NULL,
    compared BIGINT NOT NULL COMMENT 'the mark that the token was compared with',
    kind     VARCHAR(5) CHARACTER SET utf8mb4 NOT NULL,
    version  BIGINT NOT NULL COMMENT 'the record''s version after the attempt',
    at       DATETIME(6) NOT NULL,
    PRIMARY KEY (resource, seq)
) ENGINE = InnoDB
  COMMENT = 'The newest attempts on each guarded record, accepted (compared <= token) and refused; trimmed as new ones come.'//

-- A sequence keeps its step when the transaction is rolled back.
CREATE SEQUENCE IF NOT EXISTS fencing_refusals NOCACHE ENGINE = InnoDB//

CREATE OR REPLACE FUNCTION fencing_valid(p_resource TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin) RETURNS BOOLEAN
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'true for 1 to 256 bytes without control characters'
    RETURN p_resource IS NOT NULL AND OCTET_LENGTH(p_resource) BETWEEN 1 AND 256 AND p_resource NOT REGEXP '[\\x00-\\x1f\\x7f-\\x9f]'//

CREATE OR REPLACE PROCEDURE fencing_check(p_resource TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin, p_token BIGINT)
    NO SQL SQL SECURITY DEFINER
    COMMENT 'signals LK003 unless both are well formed'
BEGIN
    DECLARE said TEXT CHARACTER SET utf8mb4;
    IF p_token IS NULL OR p_token NOT BETWEEN 1 AND 9007199254740991 THEN
        SET said = CONCAT('malformed fencing token ', IFNULL(p_token, 'NULL'), ': a token is a number from 1 to 9007199254740991');
        SIGNAL SQLSTATE 'LK003' SET MYSQL_ERRNO = 31003, MESSAGE_TEXT = said;
    END IF;
    IF NOT fencing_valid(p_resource) THEN
        SET said = CONCAT('malformed resource ', IFNULL(QUOTE(LEFT(p_resource, 64)), 'NULL'), ': a resource is 1 to 256 bytes without control characters');
        SIGNAL SQLSTATE 'LK003' SET MYSQL_ERRNO = 31003, MESSAGE_TEXT = said;
    END IF;
END//

-- The insert comes first and not a look: a look at a row that is not there locks the gap,
-- and two first claims that have locked one gap wait for each other. For the one statement,
-- innodb_snapshot_isolation makes a lock on a row that is newer than the transaction's
-- snapshot fail (1020). It takes no snapshot, so whoever reads after the claim reads what
-- was committed before it.
CREATE OR REPLACE PROCEDURE fencing_raise(p_resource TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin, p_token BIGINT, p_claimer BINARY(16), OUT p_compared BIGINT)
    MODIFIES SQL DATA SQL SECURITY DEFINER
    COMMENT 'locks the mark for the transaction and raises it to the token; gives the mark that it was compared with: if that is larger than the token, the token is stale and nothing was raised'
BEGIN
    IF p_token IS NULL OR p_token NOT BETWEEN 1 AND 9007199254740991 OR NOT fencing_valid(p_resource) THEN
        CALL fencing_check(p_resource, p_token);
    END IF;
    SET STATEMENT innodb_snapshot_isolation = ON FOR
    INSERT INTO fencing_marks PARTITION (base) (resource, mark, previous, claims, claimer, claimed_at)
    VALUES (p_resource, p_token, 0, 1, p_claimer, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE
        claims = claims + (mark <= p_token),
        previous = IF(mark <= p_token, mark, previous),
        claimer = IF(mark <= p_token, p_claimer, claimer),
        claimed_at = IF(mark <= p_token, UTC_TIMESTAMP(6), claimed_at),
        mark = GREATEST(mark, p_token);
    SELECT IF(mark > p_token, mark, previous) INTO p_compared FROM fencing_marks PARTITION (base) WHERE resource = p_resource FOR UPDATE;
END//

-- DETERMINISTIC is what binary logging asks of a function that writes; it is logged as
-- rows. A claim under autocommit raises the mark and lets nothing write: its transaction
-- is over.
CREATE OR REPLACE FUNCTION fencing_claim(p_resource TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin, p_token BIGINT) RETURNS BIGINT
    DETERMINISTIC MODIFIES SQL DATA SQL SECURITY DEFINER
    COMMENT 'SELECT it first in a transaction (DO hides errors). Takes the mark of the resource (a row lock), raises it to the token, and lets this transaction write the rows of the resource. Returns the previous mark, 0 before the first. LK001: the token is stale. LK003: malformed.'
BEGIN
    DECLARE compared BIGINT;
    DECLARE said TEXT CHARACTER SET utf8mb4;
    DECLARE claimer BINARY(16) DEFAULT '';
    IF @@in_transaction THEN
        SET @fencing_claimer = IFNULL(@fencing_claimer, HEX(RANDOM_BYTES(16))), @fencing_claimed = p_resource,
            claimer = LEFT(UNHEX(SHA2(CONCAT(CONNECTION_ID(), ' ', @fencing_claimer), 256)), 16);
    END IF;
    CALL fencing_raise(p_resource, p_token, claimer, compared);
    IF compared > p_token THEN
        DO NEXTVAL(fencing_refusals);
        SET said = CONCAT('stale fencing token for ''', p_resource, ''': presented ', p_token, ', highest seen ', compared);
        SIGNAL SQLSTATE 'LK001' SET MYSQL_ERRNO = 31001, MESSAGE_TEXT = said;
    END IF;
    RETURN compared;
END//

CREATE OR REPLACE PROCEDURE fencing_refuse(p_resource TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin)
    READS SQL DATA SQL SECURITY DEFINER
    COMMENT 'signals LK002, or LK003 for a row without a resource, unless the connection is unguarded'
BEGIN
    DECLARE said TEXT CHARACTER SET utf8mb4;
    IF @fencing_unguarded IS NULL OR NOT EXISTS (
        SELECT 1 FROM fencing_unguarded_log PARTITION (base) WHERE id = CAST(@fencing_unguarded AS UNSIGNED) AND thread = CONNECTION_ID() AND ended IS NULL)
    THEN
        IF NOT fencing_valid(p_resource) THEN
            CALL fencing_check(p_resource, 1);
        END IF;
        SET said = CONCAT('no fencing token for ''', p_resource, ''': ', CASE
            WHEN NOT @@in_transaction THEN 'autocommit is on: begin a transaction, and in it first SELECT fencing_claim(resource, token)'
            WHEN @fencing_claimer IS NULL OR @fencing_claimed IS NULL THEN 'this transaction has claimed nothing: first SELECT fencing_claim(resource, token)'
            ELSE CONCAT('this connection has last claimed ''', LEFT(@fencing_claimed, 64), '''') END);
        SIGNAL SQLSTATE 'LK002' SET MYSQL_ERRNO = 31002, MESSAGE_TEXT = said;
    END IF;
END//

-- Without a mark there is no holder that could be stale. The mark is made here, so a
-- claim at the same time waits for this transaction.
CREATE OR REPLACE PROCEDURE fencing_first(p_resource TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin, OUT p_made BOOLEAN)
    MODIFIES SQL DATA SQL SECURITY DEFINER
    COMMENT 'the mode inserts: makes the mark of a resource that has none, and says whether it did'
BEGIN
    DECLARE maker BINARY(16) DEFAULT RANDOM_BYTES(16);
    DECLARE found BINARY(16);
    SET p_made = FALSE;
    IF fencing_valid(p_resource) THEN
        IF @@in_transaction THEN
            SET @fencing_claimer = IFNULL(@fencing_claimer, HEX(RANDOM_BYTES(16)));
        END IF;
        INSERT INTO fencing_marks PARTITION (base) (resource, mark, previous, claims, claimer, claimed_at)
        VALUES (p_resource, 1, 0, 0, maker, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE claims = claims;
        SELECT claimer INTO found FROM fencing_marks PARTITION (base) WHERE resource = p_resource FOR UPDATE;
        IF found = maker THEN
            UPDATE fencing_marks PARTITION (base)
               SET claims = 1, claimer = IF(@@in_transaction, LEFT(UNHEX(SHA2(CONCAT(CONNECTION_ID(), ' ', @fencing_claimer), 256)), 16), '')
             WHERE resource = p_resource;
            SET p_made = TRUE;
        END IF;
    END IF;
END//

CREATE OR REPLACE FUNCTION fencing_quote(p_name VARCHAR(64) CHARACTER SET utf8mb4) RETURNS VARCHAR(130) CHARACTER SET utf8mb4
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'a name in backquotes'
    RETURN CONCAT('`', REPLACE(p_name, '`', '``'), '`')//

CREATE OR REPLACE PROCEDURE fencing_run(p_statement LONGTEXT CHARACTER SET utf8mb4)
    MODIFIES SQL DATA SQL SECURITY INVOKER
    COMMENT 'runs a statement that was put together; EXECUTE IMMEDIATE takes no function'
    EXECUTE IMMEDIATE p_statement//

-- What a trigger does with the resource of a row, in the variable p_variable. It looks with
-- a lock: a snapshot may not show that another has claimed since.
CREATE OR REPLACE FUNCTION fencing_admission(p_variable VARCHAR(8), p_id INT, p_mode VARCHAR(16), p_insert BOOLEAN) RETURNS TEXT CHARACTER SET utf8mb4
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'the part of a trigger that lets a row of one resource pass or not'
    RETURN CONCAT('
    SET admitted = NULL;
    IF @@in_transaction THEN
        SELECT claimer = LEFT(UNHEX(SHA2(CONCAT(CONNECTION_ID(), '' '', @fencing_claimer), 256)), 16) INTO admitted FROM fencing_marks PARTITION (base) WHERE resource = ', p_variable, ' FOR UPDATE;
    END IF;',
    IF(p_insert AND p_mode = 'inserts', CONCAT('
    IF admitted IS NOT TRUE THEN
        CALL fencing_first(', p_variable, ', admitted);
    END IF;'), ''), '
    IF admitted IS NOT TRUE THEN
        DO NEXTVAL(fencing_unfenced_', p_id, ');',
        IF(p_mode = 'migrating', '', CONCAT('
        CALL fencing_refuse(', p_variable, ');')), '
    END IF;')//

-- It runs after the row has changed, and so after every other trigger that could have
-- changed it, and after every wait for another transaction.
CREATE OR REPLACE FUNCTION fencing_trigger(p_event VARCHAR(8), p_id INT, p_mode VARCHAR(16), p_new TEXT CHARACTER SET utf8mb4, p_old TEXT CHARACTER SET utf8mb4) RETURNS TEXT CHARACTER SET utf8mb4
    DETERMINISTIC READS SQL DATA SQL SECURITY INVOKER
    COMMENT 'the text of a trigger of a protected table'
    RETURN CONCAT('BEGIN
    DECLARE admitted BOOLEAN;
    DECLARE now_of, was_of VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;',
    IF(p_event = 'DELETE', '', CONCAT('
    SET now_of = ', p_new, ';', fencing_admission('now_of', p_id, p_mode, p_event = 'INSERT'))),
    IF(p_event = 'INSERT', '', CONCAT('
    SET was_of = ', p_old, ';')),
    CASE p_event
        WHEN 'UPDATE' THEN CONCAT('
    IF NOT was_of <=> now_of THEN', fencing_admission('was_of', p_id, p_mode, FALSE), '
    END IF;')
        WHEN 'DELETE' THEN fencing_admission('was_of', p_id, p_mode, FALSE)
        ELSE '' END, '
END')//

-- The expression becomes that of a generated column of a table made for it, which MariaDB
-- takes only if it depends on nothing but the row, and prints back with every column in
-- backquotes.
CREATE OR REPLACE PROCEDURE fencing_compile(p_table VARCHAR(64) CHARACTER SET utf8mb4, p_resource_sql TEXT CHARACTER SET utf8mb4, OUT p_bare TEXT CHARACTER SET utf8mb4)
    MODIFIES SQL DATA SQL SECURITY INVOKER
    COMMENT 'checks a resource expression, and gives it as MariaDB prints it'
BEGIN
    DECLARE type_of VARCHAR(64);
    DECLARE moody, said TEXT CHARACTER SET utf8mb4;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        DROP TABLE IF EXISTS fencing_probe, fencing_probe_type;
        RESIGNAL;
    END;
    CALL fencing_run(CONCAT('CREATE OR REPLACE TABLE fencing_probe ENGINE = InnoDB SELECT * FROM ', fencing_quote(p_table), ' LIMIT 0'));
    CALL fencing_run(CONCAT('ALTER TABLE fencing_probe ADD COLUMN fencing_resource VARCHAR(1024) CHARACTER SET utf8mb4 AS (', p_resource_sql, ') PERSISTENT'));
    SELECT GENERATION_EXPRESSION INTO p_bare FROM information_schema.COLUMNS
     WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'fencing_probe' AND COLUMN_NAME = 'fencing_resource';
    CALL fencing_run(CONCAT('CREATE OR REPLACE TABLE fencing_probe_type ENGINE = InnoDB SELECT ', p_bare, ' AS r FROM fencing_probe'));
    SELECT DATA_TYPE INTO type_of FROM information_schema.COLUMNS
     WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'fencing_probe_type' AND COLUMN_NAME = 'r';
    -- The text of a TIMESTAMP depends on time_zone, that of a quotient on div_precision_increment.
    SET moody = REGEXP_REPLACE(p_bare, '''(?:[^''\\\\]|''''|\\\\.)*''|unix_timestamp\\(`(?:[^`]|``)*`\\)', '');
    SET said = CASE
        WHEN type_of NOT IN ('char', 'varchar', 'tinytext', 'text', 'mediumtext', 'longtext') THEN
            CONCAT('the resource expression is of type ', type_of, ': make it a text, such as CONCAT(''orders/'', id)')
        WHEN EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'fencing_probe'
                        AND DATA_TYPE = 'timestamp' AND INSTR(moody, CONCAT('`', REPLACE(COLUMN_NAME, '`', '``'), '`')) > 0) THEN
            'the resource expression uses a TIMESTAMP, whose text depends on time_zone: use UNIX_TIMESTAMP(column)'
        WHEN INSTR(moody, ' / ') > 0 THEN
            'the resource expression divides, and the text of a quotient depends on div_precision_increment: use DIV'
        END;
    IF said IS NOT NULL THEN
        SIGNAL SQLSTATE '42000' SET MESSAGE_TEXT = said;
    END IF;
    DROP TABLE fencing_probe, fencing_probe_type;
END//

CREATE OR REPLACE FUNCTION fencing_row(p_bare TEXT CHARACTER SET utf8mb4, p_row VARCHAR(3)) RETURNS TEXT CHARACTER SET utf8mb4
    DETERMINISTIC NO SQL SQL SECURITY INVOKER
    COMMENT 'a compiled expression with every column as NEW.column or OLD.column; what is between quotes stays'
    RETURN REGEXP_REPLACE(p_bare, '''(?:[^''\\\\]|''''|\\\\.)*''(*SKIP)(*FAIL)|(`(?:[^`]|``)*`)', CONCAT(p_row, '.\\1'))//

CREATE OR REPLACE FUNCTION fencing_cascade(p_table VARCHAR(64) CHARACTER SET utf8mb4) RETURNS TEXT CHARACTER SET utf8mb4
    READS SQL DATA SQL SECURITY INVOKER
    COMMENT 'foreign keys of a table whose cascades would change its rows without a trigger; NULL for none'
    RETURN (SELECT GROUP_CONCAT(CONSTRAINT_NAME SEPARATOR ', ') FROM information_schema.REFERENTIAL_CONSTRAINTS
             WHERE CONSTRAINT_SCHEMA = DATABASE() AND TABLE_NAME = p_table
               AND (UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION') OR DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION')))//

CREATE OR REPLACE FUNCTION fencing_triggers(p_table VARCHAR(64) CHARACTER SET utf8mb4, p_id INT) RETURNS CHAR(32) CHARACTER SET utf8mb4
    READS SQL DATA SQL SECURITY INVOKER
    COMMENT 'the hash of what the triggers of a protected table are; NULL if there are none'
    RETURN (SELECT MD5(GROUP_CONCAT(CONCAT_WS(' ', TRIGGER_NAME, EVENT_MANIPULATION, ACTION_TIMING, SQL_MODE, ACTION_STATEMENT) ORDER BY TRIGGER_NAME))
              FROM information_schema.TRIGGERS
             WHERE TRIGGER_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = p_table
               AND TRIGGER_NAME IN (CONCAT('fencing_', p_id, '_insert'), CONCAT('fencing_', p_id, '_update'), CONCAT('fencing_', p_id, '_delete')))//

CREATE OR REPLACE PROCEDURE fencing_drop_triggers(p_id INT)
    MODIFIES SQL DATA SQL SECURITY INVOKER
    COMMENT 'takes the triggers off a protected table'
BEGIN
    CALL fencing_run(CONCAT('DROP TRIGGER IF EXISTS fencing_', p_id, '_insert'));
    CALL fencing_run(CONCAT('DROP TRIGGER IF EXISTS fencing_', p_id, '_update'));
    CALL fencing_run(CONCAT('DROP TRIGGER IF EXISTS fencing_', p_id, '_delete'));
END//

CREATE OR REPLACE PROCEDURE fencing_make_triggers(p_table VARCHAR(64) CHARACTER SET utf8mb4, p_id INT, p_mode VARCHAR(16) CHARACTER SET utf8mb4, p_bare TEXT CHARACTER SET utf8mb4)
    MODIFIES SQL DATA SQL SECURITY INVOKER
    COMMENT 'makes the triggers of a protected table, or replaces them'
BEGIN
    FOR made IN (SELECT 'INSERT' AS event UNION ALL SELECT 'UPDATE' UNION ALL SELECT 'DELETE') DO
        CALL fencing_run(CONCAT('CREATE OR REPLACE TRIGGER fencing_', p_id, '_', LOWER(made.event), ' AFTER ', made.event, ' ON ', fencing_quote(p_table),
            ' FOR EACH ROW ', fencing_trigger(made.event, p_id, p_mode, fencing_row(p_bare, 'NEW'), fencing_row(p_bare, 'OLD'))));
    END FOR;
    UPDATE fencing_protected SET triggers = fencing_triggers(p_table, p_id) WHERE id = p_id;
END//

CREATE OR REPLACE PROCEDURE fencing_renew_triggers(p_table VARCHAR(64) CHARACTER SET utf8mb4, p_id INT, p_mode VARCHAR(16) CHARACTER SET utf8mb4, p_bare TEXT CHARACTER SET utf8mb4)
    MODIFIES SQL DATA SQL SECURITY INVOKER
    COMMENT 'fencing_make_triggers for an upgrade, which a table that is gone or has other columns does not stop: its status says that it has to be protected again'
BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION UPDATE fencing_protected SET triggers = '' WHERE id = p_id;
    CALL fencing_make_triggers(p_table, p_id, p_mode, p_bare);
END//

CREATE OR REPLACE PROCEDURE fencing_lock_schema()
    READS SQL DATA SQL SECURITY INVOKER
    COMMENT 'one at a time changes what is protected; ends with RELEASE_LOCK or the connection'
BEGIN
    IF GET_LOCK((SELECT name FROM fencing_turn), 30) IS NOT TRUE THEN
        SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'another connection is changing the guard of this database';
    END IF;
END//

CREATE OR REPLACE PROCEDURE fencing_protect(p_table VARCHAR(64) CHARACTER SET utf8mb4, p_resource_sql TEXT CHARACTER SET utf8mb4, p_mode VARCHAR(16) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA SQL SECURITY INVOKER
    COMMENT 'Makes a table refuse changes of rows whose resource the transaction has not claimed. resource_sql is an expression of a text type over a row, like CONCAT(''orders/'', id). mode: strict; inserts (a row may be inserted without a token while its resource has no mark); migrating (writes without a token pass and are counted). Call it again to change expression or mode.'
BEGIN
    DECLARE number INT;
    DECLARE bare, said TEXT CHARACTER SET utf8mb4;
    DECLARE engine_of VARCHAR(64);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        DO RELEASE_LOCK((SELECT name FROM fencing_turn));
        RESIGNAL;
    END;
    SELECT ENGINE INTO engine_of FROM information_schema.TABLES
     WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = p_table AND TABLE_TYPE = 'BASE TABLE';
    SET said = CASE
        WHEN (p_mode IN ('strict', 'inserts', 'migrating')) IS NOT TRUE THEN 'the mode must be strict, inserts or migrating'
        WHEN engine_of IS NULL THEN CONCAT('there is no table ', p_table, ' in this database')
        WHEN p_table LIKE 'fencing\\_%' THEN CONCAT(p_table, ' cannot be protected: it belongs to the guard')
        WHEN engine_of <> 'InnoDB' THEN CONCAT(p_table, ' cannot be protected: its engine ', engine_of, ' cannot take a refused write back')
        WHEN fencing_cascade(p_table) IS NOT NULL THEN
            CONCAT(p_table, ' cannot be protected: cascades fire no triggers. Make these foreign keys RESTRICT: ', fencing_cascade(p_table)) END;
    IF said IS NOT NULL THEN
        SIGNAL SQLSTATE '42000' SET MESSAGE_TEXT = said;
    END IF;
    CALL fencing_lock_schema();
    CALL fencing_compile(p_table, p_resource_sql, bare);
    INSERT INTO fencing_protected (name, resource_sql, mode, triggers, since) VALUES (p_table, bare, p_mode, '', UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE resource_sql = bare, mode = p_mode, triggers = '';
    SELECT id INTO number FROM fencing_protected WHERE name = p_table;
    CALL fencing_run(CONCAT('CREATE SEQUENCE IF NOT EXISTS fencing_unfenced_', number, ' NOCACHE ENGINE = InnoDB'));
    CALL fencing_make_triggers(p_table, number, p_mode, bare);
    COMMIT;
    DO RELEASE_LOCK((SELECT name FROM fencing_turn));
END//

CREATE OR REPLACE PROCEDURE fencing_unprotect(p_table VARCHAR(64) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA SQL SECURITY INVOKER
    COMMENT 'Takes the protection off a table. Marks stay: a table that is protected again still refuses what was stale.'
BEGIN
    DECLARE number INT DEFAULT (SELECT id FROM fencing_protected WHERE name = p_table);
    IF number IS NOT NULL THEN
        CALL fencing_drop_triggers(number);
        CALL fencing_run(CONCAT('DROP SEQUENCE IF EXISTS fencing_unfenced_', number));
        DELETE FROM fencing_protected WHERE id = number;
        COMMIT;
    END IF;
END//

CREATE OR REPLACE PROCEDURE fencing_unguarded(p_reason VARCHAR(1000) CHARACTER SET utf8mb4)
    MODIFIES SQL DATA SQL SECURITY DEFINER
    COMMENT 'Lets this connection write protected tables without tokens until it calls fencing_guarded, and keeps the reason in fencing_unguarded_log. It waits for no holder: use it while there is none.'
BEGIN
    IF IFNULL(p_reason, '') = '' THEN
        SIGNAL SQLSTATE '42000' SET MESSAGE_TEXT = 'fencing_unguarded needs a reason, which is kept';
    END IF;
    SET @fencing_unguarded = CAST(CONV(HEX(RANDOM_BYTES(8)), 16, 10) AS UNSIGNED);
    INSERT INTO fencing_unguarded_log PARTITION (base) (id, thread, at, role, reason) VALUES (@fencing_unguarded, CONNECTION_ID(), UTC_TIMESTAMP(6), SESSION_USER(), p_reason);
END//

CREATE OR REPLACE PROCEDURE fencing_guarded()
    MODIFIES SQL DATA SQL SECURITY DEFINER
    COMMENT 'Ends what fencing_unguarded began.'
BEGIN
    UPDATE fencing_unguarded_log PARTITION (base) SET ended = UTC_TIMESTAMP(6) WHERE id = CAST(@fencing_unguarded AS UNSIGNED) AND thread = CONNECTION_ID();
    SET @fencing_unguarded = NULL;
END//

CREATE OR REPLACE PROCEDURE fencing_claim_existing(p_table VARCHAR(64) CHARACTER SET utf8mb4, p_condition TEXT CHARACTER SET utf8mb4)
    MODIFIES SQL DATA SQL SECURITY INVOKER
    COMMENT 'Claims the resources of all rows that fulfil the condition for this transaction, each at the mark that it has, or 1: for backfills. It waits for transactions of holders, and they wait for this one.'
BEGIN
    DECLARE bare, said TEXT CHARACTER SET utf8mb4;
    SELECT resource_sql INTO bare FROM fencing_protected WHERE name = p_table LOCK IN SHARE MODE;
    SET said = CASE WHEN bare IS NULL THEN CONCAT(p_table, ' is not a protected table')
                    WHEN NOT @@in_transaction THEN 'fencing_claim_existing claims for a transaction: begin one first' END;
    IF said IS NOT NULL THEN
        SIGNAL SQLSTATE '42000' SET MESSAGE_TEXT = said;
    END IF;
    SET @fencing_claimer = IFNULL(@fencing_claimer, HEX(RANDOM_BYTES(16))), @fencing_claimed = CONCAT('rows of ', p_table);
    CALL fencing_run(CONCAT('SET STATEMENT innodb_snapshot_isolation = ON FOR
        INSERT INTO fencing_marks PARTITION (base) (resource, mark, previous, claims, claimer, claimed_at)
        SELECT found.r, 1, 0, 1, LEFT(UNHEX(SHA2(CONCAT(CONNECTION_ID(), '' '', @fencing_claimer), 256)), 16), UTC_TIMESTAMP(6) FROM (
            SELECT DISTINCT CONVERT(', bare, ' USING utf8mb4) COLLATE utf8mb4_nopad_bin AS r FROM ', fencing_quote(p_table), ' WHERE (', p_condition, '
            )) AS found WHERE fencing_valid(found.r) ORDER BY found.r
        ON DUPLICATE KEY UPDATE claims = fencing_marks.claims + 1, previous = fencing_marks.mark, claimer = VALUES(claimer), claimed_at = UTC_TIMESTAMP(6)'));
END//

-- A transaction of its own, at READ COMMITTED, where trimming the history locks no gap.
CREATE OR REPLACE PROCEDURE fencing_attempt(p_resource TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin, p_token BIGINT, p_kind VARCHAR(5) CHARACTER SET utf8mb4, p_value LONGBLOB, p_keep BIGINT)
    MODIFIES SQL DATA SQL SECURITY DEFINER
    COMMENT 'one claim or write of a guarded record, and its line in the history; a refusal changes nothing else'
BEGIN
    DECLARE compared, number, version_now BIGINT;
    DECLARE value_now LONGBLOB;
    DECLARE writes BOOLEAN;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL fencing_raise(p_resource, p_token, '', compared);
    SET writes = p_kind = 'write' AND compared <= p_token;
    INSERT INTO fencing_records (resource, value, version, attempts) VALUES (p_resource, IF(writes, p_value, NULL), writes, 1)
    ON DUPLICATE KEY UPDATE value = IF(writes, p_value, value), version = version + writes, attempts = attempts + 1;
    SELECT version, attempts, IF(p_kind = 'claim', value, NULL) INTO version_now, number, value_now
      FROM fencing_records WHERE resource = p_resource FOR UPDATE;
    INSERT INTO fencing_attempts (resource, seq, token, compared, kind, version, at)
    VALUES (p_resource, number, p_token, compared, p_kind, version_now, UTC_TIMESTAMP(6));
    DELETE FROM fencing_attempts WHERE resource = p_resource AND seq <= number - p_keep;
    COMMIT;
    SELECT compared, version_now, value_now;
END//

CREATE OR REPLACE FUNCTION fencing_problem(p_table VARCHAR(64) CHARACTER SET utf8mb4, p_id INT, p_triggers CHAR(32) CHARACTER SET utf8mb4) RETURNS TEXT CHARACTER SET utf8mb4
    READS SQL DATA SQL SECURITY INVOKER
    COMMENT 'what is missing from the protection of a table; NULL for nothing'
    RETURN CASE
        WHEN NOT EXISTS (SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = p_table) THEN 'the table is gone, or has another name'
        WHEN NOT fencing_triggers(p_table, p_id) <=> p_triggers THEN 'triggers are missing or were changed: protect the table again'
        WHEN EXISTS (SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = p_table AND ENGINE <> 'InnoDB') THEN 'its engine cannot take a refused write back: make it InnoDB'
        WHEN fencing_cascade(p_table) IS NOT NULL THEN CONCAT('cascades fire no triggers: ', fencing_cascade(p_table))
        WHEN @@GLOBAL.innodb_flush_log_at_trx_commit <> 1 THEN 'a crash can take back marks: innodb_flush_log_at_trx_commit is not 1'
        WHEN @@log_bin AND @@GLOBAL.binlog_format = 'STATEMENT' THEN 'a replica cannot repeat claims: binlog_format is STATEMENT'
        END//

CREATE OR REPLACE PROCEDURE fencing_status()
    READS SQL DATA SQL SECURITY INVOKER
    COMMENT 'A row for each protected table: unfenced are its writes without a token, refused or let through; problem is what is missing from its protection.'
BEGIN
    DECLARE said LONGTEXT CHARACTER SET utf8mb4;
    SELECT GROUP_CONCAT(CONCAT('SELECT name, mode, resource_sql, (SELECT next_not_cached_value - 1 FROM fencing_unfenced_', id,
            ') AS unfenced, fencing_problem(name, id, triggers) AS problem, since FROM fencing_protected WHERE id = ', id) ORDER BY name SEPARATOR ' UNION ALL ')
      INTO said FROM fencing_protected;
    CALL fencing_run(IFNULL(said, 'SELECT name, mode, resource_sql, 0 AS unfenced, NULL AS problem, since FROM fencing_protected'));
END//

-- Triggers of an older version know nothing of what has changed since.
BEGIN NOT ATOMIC
    IF IFNULL((SELECT MAX(version) FROM fencing_version), 0) < 2 THEN
        FOR old IN (SELECT id, name, mode, resource_sql FROM fencing_protected) DO
            CALL fencing_renew_triggers(old.name, old.id, old.mode, old.resource_sql);
        END FOR;
    END IF;
END//

INSERT IGNORE INTO fencing_version (version, installed_at) VALUES (2, UTC_TIMESTAMP(6))//

DELIMITER ;
