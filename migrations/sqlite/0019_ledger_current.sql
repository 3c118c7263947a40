-- For PostgreSQL alone: here no session is told how far the ledger is known to have been.
SELECT 1;
