-- Tells each plan's status once more, under a number past those that its events were given since: who follows a plan reads on
-- behind the last number that it has seen. A plan that is over may go on as well, by a retry.
-- $1 so many numbers
INSERT INTO plan_event (plan, seq, document, at)
SELECT p.id, coalesce((SELECT max(e.seq) FROM plan_event e WHERE e.plan = p.id), 0) + $1,
       '{"kind":"status","before":"' || p.status || '","after":"' || p.status
           || '","reason":"the ledger was recovered from an older state"}',
       {now}
FROM plan p
