-- The attempts that a node has, each with its lane, its state, and the instance that holds the node as far as the attempt knows.
-- $1 node
SELECT id, lane, attempt, state, holder FROM job WHERE node = $1 ORDER BY id
