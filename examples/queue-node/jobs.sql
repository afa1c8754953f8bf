-- Deposits that wait to be made, in the order of their ids for each account.
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
INSERT INTO accounts SELECT generate_series(1, 3);
CREATE TABLE jobs (id bigserial PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL, done_under bigint);
CREATE INDEX ON jobs (account, id) WHERE done_under IS NULL;
SELECT fencing.protect('accounts', $$'accounts/' || id$$);
