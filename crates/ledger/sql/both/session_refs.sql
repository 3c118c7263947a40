-- What the clients of a session call its jobs behind a place, in the order of their places. Jobs without a name are left out.
-- $1 session, $2 behind this place, $3 limit
SELECT seq, client_ref
FROM (
    SELECT seq, client_ref FROM job WHERE session = $1 AND seq > $2
    UNION ALL
    SELECT seq, client_ref FROM job_finished WHERE session = $1 AND seq > $2
) AS j
WHERE client_ref IS NOT NULL
ORDER BY seq
LIMIT $3
