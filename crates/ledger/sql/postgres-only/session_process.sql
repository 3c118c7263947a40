-- The server's process that serves this session.
SELECT pg_backend_pid() AS process
