\set id random(1, 10000)
BEGIN;
SELECT balance FROM plain WHERE id = :id;
UPDATE plain SET balance = balance + 1 WHERE id = :id;
COMMIT;
