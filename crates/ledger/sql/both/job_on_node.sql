-- The attempts that a node has, each with the instance that holds the node as far as the attempt knows.
-- $1 node
SELECT id, attempt, holder FROM job WHERE node = $1 ORDER BY id
