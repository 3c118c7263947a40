-- Nonces below the confirmed one are on the chain: CONSUMED. Those from it on may have been sent by callers that got them after
-- the ledger's last state: QUARANTINED, under a new hold, so that no hold from before the confirmation settles them. What is
-- CONSUMED already is not read: there may be millions of it.
-- $1 signer, $2 next nonce, $3 token, $4 the new hold
UPDATE signer_nonce_allocation
SET status = CASE WHEN nonce < $2 THEN 'CONSUMED' ELSE 'QUARANTINED' END,
    hold = CASE WHEN nonce < $2 THEN hold ELSE $4 END,
    fencing_token = $3, owner = 'recover', updated_at = now()
WHERE signer = $1
  AND nonce IN (
      SELECT nonce FROM signer_nonce_allocation WHERE signer = $1 AND status = 'HELD'
      UNION ALL
      SELECT nonce FROM signer_nonce_allocation WHERE signer = $1 AND status IN ('RELEASED', 'QUARANTINED')
  )
