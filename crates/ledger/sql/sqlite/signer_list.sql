-- The audit of signers. Every nonce from the first to the highest granted has one row, so that the
-- CONSUMED need no counting.
-- ?1 after this signer ('' for the start), ?2 only this signer or NULL, ?3 limit
SELECT s.signer, s.first_nonce, s.hold_ms, s.on_expiry, s.max_in_flight,
       l.owner, l.fencing_token,
       max((l.expires_at - (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) + 999) / 1000, 0) AS lease_expires_in_ms,
       (SELECT max(nonce) FROM signer_nonce_allocation WHERE signer = s.signer) AS last_nonce,
       (SELECT count(*) FROM signer_nonce_allocation
        WHERE signer = s.signer AND status <> 'CONSUMED' AND status = 'HELD') AS held,
       (SELECT count(*) FROM signer_nonce_allocation
        WHERE signer = s.signer AND status <> 'CONSUMED' AND status = 'RELEASED') AS released,
       (SELECT count(*) FROM signer_nonce_allocation
        WHERE signer = s.signer AND status <> 'CONSUMED' AND status = 'QUARANTINED') AS quarantined,
       (SELECT max(((CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000) - min(updated_at)) / 1000, 0) FROM signer_nonce_allocation
        WHERE signer = s.signer AND status <> 'CONSUMED' AND status = 'HELD') AS oldest_hold_ms
FROM signer s
LEFT JOIN lease l ON l.resource = 'signer:' || s.signer
WHERE s.signer > ?1 AND (?2 IS NULL OR s.signer = ?2)
ORDER BY s.signer
LIMIT ?3
