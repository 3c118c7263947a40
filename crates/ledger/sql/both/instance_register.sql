-- $1 id, $2 url, $3 hostname, $4 pid, $5 version
INSERT INTO instance (instance_id, url, hostname, pid, version, started_at)
VALUES ($1, $2, $3, $4, $5, {now})
ON CONFLICT DO NOTHING
