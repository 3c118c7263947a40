-- The audit of signers. Every nonce from the first to the highest granted has one row, so that the
-- CONSUMED need no counting. nonce_holes says why the indexes are named.
-- ?1 from this signer, ?2 to this signer, ?3 limit
SELECT s.signer, s.first_nonce, s.hold_ms, s.on_expiry, s.max_in_flight, s.shared_keys, s.recovering,
       l.owner, l.fencing_token,
       max((l.expires_at - ({now}) + 999) / 1000, 0) AS lease_expires_in_ms,
       (SELECT max(nonce) FROM signer_nonce_allocation WHERE signer = s.signer) AS last_nonce,
       (SELECT count(*) FROM signer_nonce_allocation INDEXED BY signer_nonce_held
        WHERE signer = s.signer AND status = 'HELD') AS held,
       (SELECT max((({now}) - min(updated_at)) / 1000, 0)
        FROM signer_nonce_allocation INDEXED BY signer_nonce_held
        WHERE signer = s.signer AND status = 'HELD') AS oldest_hold_ms,
       (SELECT count(*) FROM signer_nonce_allocation INDEXED BY signer_nonce_hole
        WHERE signer = s.signer AND status IN ('RELEASED', 'QUARANTINED') AND status = 'RELEASED') AS released,
       (SELECT count(*) FROM signer_nonce_allocation INDEXED BY signer_nonce_hole
        WHERE signer = s.signer AND status IN ('RELEASED', 'QUARANTINED') AND status = 'QUARANTINED') AS quarantined
FROM signer s
LEFT JOIN lease l ON l.resource = 'signer:' || s.signer
WHERE s.signer BETWEEN ?1 AND ?2
ORDER BY s.signer
LIMIT ?3
