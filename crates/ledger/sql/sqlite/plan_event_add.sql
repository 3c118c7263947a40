-- What happened to a plan, behind what happened before.
-- ?1 plan, ?2 JSON array of {task, document, place}, ?3 the transaction's time
INSERT INTO plan_event (plan, seq, task, document, at)
SELECT ?1, (w.value ->> 'place') + coalesce((SELECT max(seq) FROM plan_event WHERE plan = ?1), 0),
       w.value ->> 'task', w.value ->> 'document', ?3
FROM json_each(?2) AS w
