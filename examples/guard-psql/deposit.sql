-- psql "$DATABASE_URL" -v token=34 -v amount=10 -f deposit.sql
\set ON_ERROR_STOP on
BEGIN;
SELECT fencing.claim('accounts/1', :token);                                    -- before the first read
SELECT balance + :amount AS balance FROM accounts WHERE id = 1 \gset
UPDATE accounts SET balance = :balance WHERE id = 1;
COMMIT;
\echo balance is :balance
