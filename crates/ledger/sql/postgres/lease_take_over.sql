-- Takes a lease from an owner that is dead, without waiting for it to run out: dead is whose own `instance:`
-- lease is not live. Always one token on; sent alone, as lease_acquire is.
-- Where that very lease is taken, the row itself is asked as well: after a wait for its renewal only the row is looked at anew.
-- $1 resource, $2 owner, $3 dead owner, $4 length in ms
UPDATE lease
SET owner         = $2,
    fencing_token = fencing_token + 1,
    acquired_at   = clock_timestamp(),
    renewed_at    = clock_timestamp(),
    expires_at    = clock_timestamp() + $4 * interval '1 millisecond'
WHERE resource = $1
  AND owner = $3
  AND (resource <> 'instance:' || $3 OR expires_at <= clock_timestamp())
  AND NOT EXISTS (
      SELECT FROM lease i
      WHERE i.resource = 'instance:' || $3 AND i.owner = $3 AND i.expires_at > clock_timestamp()
  )
RETURNING fencing_token, expires_at,
          {mark}
