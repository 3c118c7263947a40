-- Notes what the nodes of an instance can do, or that nothing is transferred to it; answers how many transfers there were.
-- $1 instance, $2 JSON or NULL
INSERT INTO instance_nodes (instance_id, nodes)
SELECT instance_id, $2 FROM instance WHERE instance_id = $1
ON CONFLICT (instance_id) DO UPDATE SET nodes = excluded.nodes
RETURNING given
