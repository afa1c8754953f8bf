-- Orders that are charged by one process at a time, whichever it is.
CREATE TABLE orders (id int PRIMARY KEY, charges int NOT NULL DEFAULT 0);
INSERT INTO orders SELECT generate_series(1, 100);
SELECT fencing.protect('orders', $$'orders/' || id$$);
