-- What happened to plans, behind what happened before.
-- ?1 plans, which the events name too, ?2 JSON array of {plan, of, task, document, place}, ?3 the transaction's time
INSERT INTO plan_event (plan, seq, task, document, at)
SELECT w.value ->> 'plan',
       (w.value ->> 'place') + coalesce((SELECT max(e.seq) FROM plan_event e WHERE e.plan = w.value ->> 'plan'), 0),
       w.value ->> 'task', w.value ->> 'document', ?3
FROM json_each(?2) AS w
