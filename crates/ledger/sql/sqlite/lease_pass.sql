-- Passes a lease on to a live instance, which acquires it when it finds the key's work; always one token on.
-- ?1 resource, ?2 owner, ?3 token, ?4 the next owner, ?5 length in ms
UPDATE lease
SET owner         = ?4,
    fencing_token = fencing_token + 1,
    acquired_at   = {now},
    renewed_at    = {now},
    expires_at    = {now} + ?5 * 1000
WHERE resource = ?1 AND owner = ?2 AND fencing_token = ?3
  AND EXISTS (
      SELECT 1 FROM lease i
      WHERE i.resource = 'instance:' || ?4 AND i.owner = ?4
        AND i.expires_at > {now}
  )
RETURNING resource
