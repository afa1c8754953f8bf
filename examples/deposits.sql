-- Accounts that only one process at a time may change, and what was deposited into them.
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
INSERT INTO accounts SELECT generate_series(1, 100);
CREATE TABLE deposits (id text PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL);
SELECT fencing.protect('accounts', $$'accounts/' || id$$);
