-- Takes a lease from an owner that is dead, without waiting for it to run out: dead is whose own `instance:`
-- lease is not live. Always one token on.
-- ?1 resource, ?2 owner, ?3 dead owner, ?4 length in ms
UPDATE lease
SET owner         = ?2,
    fencing_token = fencing_token + 1,
    acquired_at   = {now},
    renewed_at    = {now},
    expires_at    = {now} + ?4 * 1000
WHERE resource = ?1
  AND owner = ?3
  AND NOT EXISTS (
      SELECT 1 FROM lease i
      WHERE i.resource = 'instance:' || ?3 AND i.owner = ?3 AND i.expires_at > {now}
  )
RETURNING fencing_token, expires_at
