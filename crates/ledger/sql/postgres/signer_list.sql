-- The audit of signers. Every nonce from the first to the highest granted has one row, so that the
-- CONSUMED need no counting.
-- $1 after this signer ('' for the start), $2 only this signer or NULL, $3 limit
SELECT s.signer, s.first_nonce, s.hold_ms, s.on_expiry, s.max_in_flight,
       l.owner, l.fencing_token,
       ceil(greatest(extract(epoch FROM l.expires_at - clock_timestamp()) * 1000, 0))::bigint AS lease_expires_in_ms,
       (SELECT max(nonce) FROM signer_nonce_allocation WHERE signer = s.signer) AS last_nonce,
       open.held, open.released, open.quarantined, open.oldest_hold_ms
FROM signer s
LEFT JOIN lease l ON l.resource = 'signer:' || s.signer
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE status = 'HELD') AS held,
           count(*) FILTER (WHERE status = 'RELEASED') AS released,
           count(*) FILTER (WHERE status = 'QUARANTINED') AS quarantined,
           (extract(epoch FROM clock_timestamp() - min(updated_at) FILTER (WHERE status = 'HELD')) * 1000)::bigint
               AS oldest_hold_ms
    FROM signer_nonce_allocation
    WHERE signer = s.signer AND status <> 'CONSUMED'
) AS open
WHERE s.signer > $1 COLLATE "C" AND ($2::text IS NULL OR s.signer = $2)
ORDER BY s.signer
LIMIT $3
