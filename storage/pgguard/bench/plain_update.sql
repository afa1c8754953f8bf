\set id random(1, 10000)
UPDATE plain SET balance = balance + 1 WHERE id = :id;
