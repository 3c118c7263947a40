-- Changes plans that are still at the version before.
-- $1 ids, $2 new versions, $3 statuses, $4 whether each needs an owner, $5 whether each is over, $6 documents
UPDATE plan p
SET version = w.version, status = w.status, needs_owner = w.needs_owner,
    finished_at = CASE WHEN w.is_over THEN coalesce(p.finished_at, now()) END, document = w.document
FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::boolean[], $5::boolean[], $6::text[])
     AS w (id, version, status, needs_owner, is_over, document)
WHERE p.id = w.id AND p.version = w.version - 1
