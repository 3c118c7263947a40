-- What happened to plans, behind what happened before. Each plan's last number is looked up once.
-- $1 plans, each once; of the events: $2 their plans, $3 the places of these in $1, from 1, $4 tasks or NULL, $5 documents,
-- $6 their places among the events of their plans in this list, from 1
INSERT INTO plan_event (plan, seq, task, document, at)
SELECT w.plan, w.place + (ARRAY(SELECT coalesce((SELECT max(e.seq) FROM plan_event e WHERE e.plan = p.id), 0)
                                FROM unnest($1::uuid[]) WITH ORDINALITY AS p (id, place)
                                ORDER BY p.place))[w.of],
       w.task, w.document, now()
FROM (
    SELECT unnest($2::uuid[]) AS plan, unnest($3::bigint[]) AS of, unnest($4::uuid[]) AS task,
           unnest($5::text[]) AS document, unnest($6::bigint[]) AS place
) AS w
