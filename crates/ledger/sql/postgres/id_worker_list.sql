-- The worker numbers that were ever acquired, who holds them, and whether the holder lives.
SELECT l.resource, l.fencing_token,
       CASE WHEN l.expires_at > clock_timestamp() THEN l.owner END AS holder,
       ceil(greatest(extract(epoch FROM l.expires_at - clock_timestamp()) * 1000, 0))::bigint AS expires_in_ms,
       coalesce(i.owner = l.owner AND i.expires_at > clock_timestamp(), false) AS holder_lives,
       w.node, coalesce(w.mark_ms, 0) AS mark_ms
FROM lease l
LEFT JOIN lease i ON i.resource = 'instance:' || l.owner
LEFT JOIN id_worker w ON w.worker = CAST(substr(l.resource, 11) AS integer)
WHERE l.resource > 'id-worker:' AND l.resource < 'id-worker;'
