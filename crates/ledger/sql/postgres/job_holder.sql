-- Notes which instance holds the node that has these attempts, where their rows name another one. Rows are locked in one
-- order.
-- $1 node, $2 the instance, $3 ids, $4 attempts
WITH moved AS (
    SELECT j.id
    FROM job j
    JOIN (SELECT unnest($3::uuid[]) AS id, unnest($4::bigint[]) AS attempt) AS w USING (id, attempt)
    WHERE j.node = $1 AND j.holder <> $2
    ORDER BY j.id
    FOR UPDATE OF j
)
UPDATE job j
SET holder = $2
FROM moved
WHERE j.id = moved.id
