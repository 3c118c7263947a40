-- A live instance is one whose own lease is live and its own. The range is that of all such leases: however PostgreSQL joins them, it
-- reads no others.
SELECT i.instance_id, i.url, i.hostname, i.pid, i.version, i.bus_up, i.bus, i.started_at
FROM instance i
JOIN lease l ON l.resource = 'instance:' || i.instance_id AND l.owner = i.instance_id AND l.expires_at > {now}
WHERE l.resource BETWEEN 'instance:' AND 'instance:~'
ORDER BY i.instance_id
