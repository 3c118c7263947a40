-- For PostgreSQL alone: here no row is looked up by a statement of its own.
SELECT 1;
