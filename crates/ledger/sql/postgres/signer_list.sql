-- The audit of signers. Every nonce from the first to the highest granted has one row, so that the
-- CONSUMED need no counting. The last one is read as in `signer_load`, however many were granted since the plan was made.
-- $1 from this signer, $2 to this signer, $3 limit
SELECT s.signer, s.first_nonce, s.hold_ms, s.on_expiry, s.max_in_flight, s.shared_keys, s.recovering,
       l.owner, l.fencing_token,
       ceil(greatest(extract(epoch FROM l.expires_at - clock_timestamp()) * 1000, 0))::bigint AS lease_expires_in_ms,
       (SELECT nonce FROM signer_nonce_allocation WHERE signer = s.signer ORDER BY nonce DESC LIMIT 1) AS last_nonce,
       held.held, held.oldest_hold_ms, rest.released, rest.quarantined
FROM signer s
LEFT JOIN lease l ON l.resource = 'signer:' || s.signer
CROSS JOIN LATERAL (
    SELECT count(*) AS held,
           -- Never negative, whatever was done to the server's clock; NULL where nothing is held.
           CASE WHEN count(*) > 0 THEN
               greatest(extract(epoch FROM clock_timestamp() - min(updated_at)) * 1000, 0)::bigint
           END AS oldest_hold_ms
    FROM signer_nonce_allocation
    WHERE signer = s.signer AND status = 'HELD'
) AS held
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE status = 'RELEASED') AS released,
           count(*) FILTER (WHERE status = 'QUARANTINED') AS quarantined
    FROM signer_nonce_allocation
    WHERE signer = s.signer AND status IN ('RELEASED', 'QUARANTINED')
) AS rest
WHERE s.signer BETWEEN $1 AND $2
ORDER BY s.signer
LIMIT $3
