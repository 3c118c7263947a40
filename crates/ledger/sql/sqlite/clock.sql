-- The database's time, in microseconds.
SELECT {now}
