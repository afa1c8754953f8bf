\set id random(1, 10000)
UPDATE guarded SET balance = balance + 1 WHERE id = :id AND (SELECT fencing.claim('accounts/' || :id, 34)) IS NOT NULL;
