\set id random(1, 10000)
BEGIN;
SELECT fencing.claim('accounts/' || :id, 34);
SELECT balance FROM guarded WHERE id = :id;
UPDATE guarded SET balance = balance + 1 WHERE id = :id;
COMMIT;
