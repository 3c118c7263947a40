-- Those that ran out, and the next that will. nonce_holes says why the index is named.
-- ?1 signer, ?2 limit, ?3 how far ahead of the time to look, in ms, ?4 the first time, in microseconds
SELECT * FROM (
    SELECT nonce, hold, updated_at AS granted_at, held_until,
           {now} AS read_at
    FROM signer_nonce_allocation INDEXED BY signer_nonce_held
    WHERE signer = ?1 AND status = 'HELD'
      AND held_until <= {now} + ?3 * 1000
      AND held_until >= ?4
    ORDER BY held_until
    LIMIT ?2
)
UNION ALL
SELECT * FROM (
    SELECT nonce, hold, updated_at AS granted_at, held_until,
           {now} AS read_at
    FROM signer_nonce_allocation INDEXED BY signer_nonce_held
    WHERE signer = ?1 AND status = 'HELD'
      AND held_until > {now} + ?3 * 1000
    ORDER BY held_until
    LIMIT 1
)
