-- Of these instances those to which jobs can be transferred: they live, and say what their nodes can do. Their leases stay
-- locked as long as the transaction lasts, so that a later owner reads what was transferred; rows that a
-- takeover has locked are passed over. Their own rows say that they are to look. Rows are locked in one order.
-- $1 instances
WITH live AS (
    SELECT l.owner
    FROM lease l
    WHERE l.resource = ANY (SELECT 'instance:' || id FROM unnest($1::text[]) AS id)
      AND l.resource = 'instance:' || l.owner AND l.expires_at > clock_timestamp()
    ORDER BY l.resource
    FOR KEY SHARE OF l SKIP LOCKED
), mine AS (
    SELECT n.instance_id
    FROM instance_nodes n
    WHERE n.instance_id IN (SELECT owner FROM live) AND n.nodes IS NOT NULL
    ORDER BY n.instance_id
    FOR UPDATE OF n
)
UPDATE instance_nodes n
SET given = n.given + 1
FROM mine
WHERE n.instance_id = mine.instance_id
RETURNING n.instance_id
