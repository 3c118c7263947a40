-- As job_list, but only jobs that are among the newest ones that are not finished: where nodes have many of these, a page of
-- jobs that nodes have needs no others. A line with a mark is there only if the filter asks for it. Whether a job is of one of
-- the sessions is looked up, as IS TRUE has it: = ANY would compare each job with all of them.
-- $1 before this id, $2 limit, $3 session, $4 tenant, $5 pool, $6 kind, $7 state,
-- $8 after this id, $9 sessions
SELECT {listed_job}, state, held,
       {last_attempt}
FROM (SELECT * FROM job WHERE id < $1 ORDER BY id DESC LIMIT 10000) AS newest
WHERE state = $7
  AND tenant = $4 --? tenant
  AND pool = $5 --? pool
  AND kind = $6 --? kind
  AND stage IS NULL --? no_stage
  AND id > $8 --? after
  AND (session IN (SELECT unnest($9::text[]))) IS TRUE --? sessions
ORDER BY id DESC
LIMIT $2
