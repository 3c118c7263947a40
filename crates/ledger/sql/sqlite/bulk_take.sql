-- A bulk operation gets a new owner, if its owner is still the one that was seen and has no live lease. The token rises: what
-- the earlier owner writes from now on finds no row.
-- ?1 id, ?2 the token that was seen, ?3 the new owner
UPDATE bulk
SET owner = ?3, token = token + 1
WHERE id = ?1 AND token = ?2 AND finished_at IS NULL
  AND NOT EXISTS (
      SELECT 1 FROM lease l
      WHERE l.resource = 'instance:' || bulk.owner AND l.owner = bulk.owner
        AND l.expires_at > {now}
        AND bulk.owner <> ?3
  )
RETURNING {bulk}
