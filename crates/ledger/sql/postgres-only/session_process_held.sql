-- The same, in a transaction that stays open: until its end the process serves nobody else.
BEGIN;
SELECT pg_backend_pid() AS process
