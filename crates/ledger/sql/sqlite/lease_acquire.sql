-- Takes a lease that is free, ran out, or is the asker's own; always one token on. An `instance:` lease that a survivor
-- took stays taken when it has run out: its instance was found dead, and the others are done with it. Nor does an instance take
-- its own once it is free: a survivor has given it back, or the instance has left.
-- ?1 resource, ?2 owner, ?3 length in ms
UPDATE lease
SET owner         = ?2,
    fencing_token = fencing_token + 1,
    acquired_at   = {now},
    renewed_at    = {now},
    expires_at    = {now} + ?3 * 1000
WHERE resource = ?1
  AND (owner = ?2 OR (owner IS NULL AND resource <> 'instance:' || ?2)
       OR (expires_at <= {now} AND resource NOT LIKE 'instance:%'))
RETURNING fencing_token, expires_at
