-- $1 instance
SELECT given FROM instance_nodes WHERE instance_id = $1
