-- What lanes write most, as one statement that is a transaction by itself: new jobs, due at once, those with keys where
-- these are new, attempts that begin, and good ends, of those lanes for which the fence holds. Answers these lanes and the
-- jobs that were as said, with the transaction's time.
-- What stands between a mark and its end is there only for a round that has such jobs: PostgreSQL makes each part ready for
-- each round, also what then does nothing.
-- $1 to $3 the lanes' leases, see fence_lock, $4 the lanes, each once; $5 to $9 attempts, see job_dispatch, and $10 the jobs
-- that must end for each of them, or NULL; $11 to $14 the new jobs' keys or NULL, see key_keep; $15 to $19 ended jobs: ids,
-- lanes, attempts, nodes, results; from $20 on new jobs, see job_submit
-- `(... IN ...) IS TRUE` is hashed, and never made a join. As one, each lane reads all new jobs, of which each row is put together
-- of as many lists as it has columns: of 36 lanes with 10 new jobs this took most of the statement's time.
WITH held AS MATERIALIZED (
    SELECT l.resource, w.lane
    FROM lease l
    JOIN (
        SELECT unnest($1::text[]) AS resource, unnest($2::bigint[]) AS fencing_token, unnest($3::text[]) AS owner,
               unnest($4::text[]) AS lane
    ) AS w
      ON l.resource = w.resource AND l.fencing_token = w.fencing_token
    WHERE l.owner = w.owner AND (SELECT is_current FROM ledger_current)
    ORDER BY l.resource
    FOR KEY SHARE OF l SKIP LOCKED
)
--if new
, wanted AS (
    SELECT w.*
    FROM (
        SELECT {given unnested $20}
--if keys
               , unnest($11::text[]) AS scope, unnest($12::text[]) AS key, unnest($13::bytea[]) AS body_hash,
               unnest($14::text[]) AS answer
--end
    ) AS w
    WHERE (w.lane IN (SELECT h.lane FROM held h)) IS TRUE
)
--end
--if keys
, kept AS (
    INSERT INTO idempotency_key (scope, key, body_hash, answer, created_at)
    SELECT w.scope, w.key, w.body_hash, w.answer, now()
    FROM wanted w
    WHERE w.key IS NOT NULL
    ORDER BY w.scope COLLATE "C", w.key COLLATE "C"
    ON CONFLICT DO NOTHING
    RETURNING scope, key
)
--end
--if new
, made AS (
    INSERT INTO job ({given}, created_at, state, attempt, counted, dispatched_at, past_attempts)
    SELECT {given of w}, now(), CASE WHEN w.node IS NULL THEN 'CREATED' ELSE 'DISPATCHED' END,
           CASE WHEN w.node IS NULL THEN 0 ELSE 1 END, 0, CASE WHEN w.node IS NULL THEN NULL ELSE now() END, ''
    FROM wanted w
--if keys
    WHERE w.key IS NULL OR (w.scope, w.key) IN (SELECT k.scope, k.key FROM kept k)
--end
    ORDER BY w.id
    RETURNING id
)
--end
--if ends
, gone AS (
    DELETE FROM job j
    USING (
        SELECT e.*
        FROM (
            SELECT unnest($15::uuid[]) AS which, unnest($16::text[]) AS of_lane, unnest($17::bigint[]) AS of_attempt,
                   unnest($18::text[]) AS of_node, unnest($19::text[]) AS result
        ) AS e
        WHERE (e.of_lane IN (SELECT h.lane FROM held h)) IS TRUE
        ORDER BY e.which
    ) AS w
    -- Written so that the node is compared and never looked up: each row is found by its id.
    WHERE j.id = w.which AND j.lane = w.of_lane AND j.attempt = w.of_attempt AND j.node IS NOT DISTINCT FROM w.of_node
    RETURNING j.*, w.result
)
--end
--if begins
-- By itself, since the rows that a statement writes cannot be asked for again where the job's row turns out to have changed.
, attempts AS MATERIALIZED (
    SELECT w.*
    FROM (
        SELECT unnest($5::uuid[]) AS id, unnest($6::text[]) AS lane, unnest($7::bigint[]) AS attempt,
               unnest($8::text[]) AS node, unnest($9::text[]) AS holder, unnest($10::uuid[]) AS behind
    ) AS w
    WHERE (w.lane IN (SELECT h.lane FROM held h)) IS TRUE
--if ends
      AND (w.behind IS NULL OR (w.behind IN (SELECT g.id FROM gone g)) IS TRUE)
--end
)
, begun AS (
    UPDATE job j
    SET state         = 'DISPATCHED',
        attempt       = w.attempt,
        node          = w.node,
        holder        = w.holder,
        dispatched_at = now(),
        due_at        = NULL
    FROM attempts w
    WHERE j.id = w.id AND j.lane = w.lane AND j.state = 'CREATED' AND j.attempt = w.attempt - 1
      AND NOT j.held
    RETURNING j.id
)
--end
--if ends
, moved AS (
    INSERT INTO job_finished
        ({given}, created_at, attempt, counted, dispatched_at, running_at, past_attempts, outcome, dead, result,
         finished_at, released_at)
    SELECT {given}, created_at, attempt, counted, dispatched_at, running_at, past_attempts, 'succeeded', false, result,
           now(), now()
    FROM gone
    RETURNING id
)
--end
SELECT resource, NULL::bytea AS written, (extract(epoch FROM now()) * 1000000)::bigint AS at,
       {mark}
FROM held
UNION ALL
SELECT NULL, string_agg(uuid_send(id), ''::bytea), (extract(epoch FROM now()) * 1000000)::bigint, NULL
FROM (
    SELECT NULL::uuid AS id WHERE false
--if new
    UNION ALL SELECT id FROM made
--end
--if begins
    UNION ALL SELECT id FROM begun
--end
--if ends
    UNION ALL SELECT id FROM moved
--end
) AS w
