-- Changes plans that are still at the version before.
-- $1 ids, $2 new versions, $3 statuses, $4 whether each needs an owner, $5 whether each is over, $6 documents
UPDATE plan p
SET version = w.version, status = w.status, needs_owner = w.needs_owner,
    finished_at = CASE WHEN w.is_over THEN coalesce(p.finished_at, now()) END, document = w.document
FROM (
    SELECT unnest($1::uuid[]) AS id, unnest($2::bigint[]) AS version, unnest($3::text[]) AS status,
           unnest($4::boolean[]) AS needs_owner, unnest($5::boolean[]) AS is_over, unnest($6::text[]) AS document
) AS w
WHERE p.id = w.id AND p.version = w.version - 1
