-- How many unfinished jobs of a session are in which state, the highest place given, and the node used last. Of its finished
-- jobs, of which there may be millions, it reads no more than those at the last places: a node that was used before these is
-- not found.
-- $1 session, $2 how many places of finished jobs are looked at for the node
SELECT live.created, live.dispatched, live.running,
       greatest(live.last_seq, done.last_seq,
                coalesce((SELECT purged_seq FROM session WHERE session = $1), 0)) AS last_seq,
       (SELECT node
        FROM (
            SELECT * FROM (SELECT node, seq FROM job
                           WHERE session = $1 AND node IS NOT NULL ORDER BY seq DESC LIMIT 1) AS live_one
            UNION ALL
            SELECT * FROM (SELECT node, seq FROM job_finished
                           WHERE session = $1 AND seq > done.last_seq - $2 AND node IS NOT NULL
                           ORDER BY seq DESC LIMIT 1) AS done_one
        ) AS used
        ORDER BY seq DESC
        LIMIT 1) AS last_node
FROM (
    SELECT count(*) FILTER (WHERE state = 'CREATED') AS created,
           count(*) FILTER (WHERE state = 'DISPATCHED') AS dispatched,
           count(*) FILTER (WHERE state = 'RUNNING') AS running,
           coalesce(max(seq), 0) AS last_seq
    FROM job
    WHERE session = $1
) AS live
CROSS JOIN (
    SELECT coalesce((SELECT seq FROM job_finished WHERE session = $1 ORDER BY seq DESC LIMIT 1), 0) AS last_seq
) AS done
