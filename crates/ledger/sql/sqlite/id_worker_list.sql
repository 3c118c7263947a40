-- The worker numbers that were ever acquired, and whose they are, also where the lease has run out. A holder is gone whose own
-- `instance:` lease is its own no more: it was found dead, or has left. And those that were never acquired and have a mark ahead of
-- the clock all the same: a recovery leaves one.
SELECT l.resource, l.fencing_token,
       l.owner AS holder,
       max((l.expires_at - ({now}) + 999) / 1000, 0) AS expires_in_ms,
       coalesce(i.owner = l.owner AND i.expires_at > {now}, 0) AS holder_lives,
       coalesce(i.owner <> l.owner, 1) AS holder_is_gone,
       w.node, coalesce(w.mark_ms, 0) AS mark_ms
FROM lease l
LEFT JOIN lease i ON i.resource = 'instance:' || l.owner
LEFT JOIN id_worker w ON w.worker = CAST(substr(l.resource, 11) AS integer)
WHERE l.resource > 'id-worker:' AND l.resource < 'id-worker;'
UNION ALL
SELECT 'id-worker:' || w.worker, 0, NULL, 0, 0, 0, w.node, w.mark_ms
FROM id_worker w
WHERE w.mark_ms > {now_ms} AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.resource = 'id-worker:' || w.worker)
