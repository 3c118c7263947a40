-- What happened to a plan, behind what happened before.
-- $1 plan, $2 tasks or NULL, $3 documents, $4 their places in this list, from 1
INSERT INTO plan_event (plan, seq, task, document, at)
SELECT $1, w.place + coalesce((SELECT max(seq) FROM plan_event WHERE plan = $1), 0), w.task, w.document, now()
FROM unnest($2::uuid[], $3::text[], $4::bigint[]) AS w (task, document, place)
