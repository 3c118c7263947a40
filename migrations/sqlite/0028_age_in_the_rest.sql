-- For PostgreSQL alone: here all finished jobs are found by their age.
SELECT 1;
