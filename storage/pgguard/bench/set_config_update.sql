\set id random(1, 10000)
UPDATE guarded SET balance = balance + 1 WHERE id = :id AND set_config('fencing.token', concat(pg_current_xact_id(), ' 34 accounts/', :id::int), true) IS NOT NULL;
