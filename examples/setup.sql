-- A table, and the one statement that makes it refuse stale writers.
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO accounts VALUES (1, 0);
SELECT fencing.protect('accounts', $$'accounts/' || id$$);
