-- Unfinished jobs, newest first, without their payloads: a page has as many as it says, however large they are. A line with a
-- mark is there only if the filter asks for it. Those that nodes have are all read, and sorted: in the order of the ids they
-- would be looked for among all that wait.
-- ?1 before this id, ?2 limit, ?3 session, ?4 tenant, ?5 pool, ?6 kind, ?7 state,
-- ?8 after this id, ?9 JSON array of sessions
SELECT {listed_job}, state, held,
       {last_attempt}
FROM job
     INDEXED BY job_in_flight --? on_nodes
WHERE id < ?1
  AND node IS NOT NULL --? on_nodes
  AND session = ?3 --? session
  AND tenant = ?4 --? tenant
  AND pool = ?5 --? pool
  AND kind = ?6 --? kind
  AND state = ?7 --? state
  AND stage IS NULL --? no_stage
  AND id > ?8 --? after
  AND session IS NOT NULL AND session IN (SELECT value FROM json_each(?9)) --? sessions
ORDER BY id DESC
LIMIT ?2
