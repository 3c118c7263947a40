-- Unfinished jobs, newest first, without their payloads: a page has as many as it says, however large they are. A line with a
-- mark is there only if the filter asks for it. Those that nodes have are all read, and sorted as texts, whose order is that of
-- the ids: in the order of the ids themselves the server would look for them among all that wait. Jobs of some
-- sessions are read and sorted in the same way. Only of the jobs of the page, and when it is sorted, past attempts are read.
-- $1 before this id, $2 limit, $3 session, $4 tenant, $5 pool, $6 kind, $7 state,
-- $8 after this id, $9 sessions
SELECT {listed_job}, state, held,
       {last_attempt}
FROM (
    SELECT *
    FROM job
    WHERE id < $1
      AND node IS NOT NULL --? on_nodes
      AND session = $3 --? session
      AND tenant = $4 --? tenant
      AND pool = $5 --? pool
      AND kind = $6 --? kind
      AND state = $7 --? state
      AND stage IS NULL --? no_stage
      AND id > $8 --? after
      AND session IS NOT NULL AND session = ANY ($9::text[]) --? sessions
    ORDER BY id DESC --? anywhere
    ORDER BY id::text COLLATE "C" DESC --? sorted
    LIMIT $2
) AS page
ORDER BY id DESC
