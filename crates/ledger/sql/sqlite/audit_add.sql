-- What operators changed.
-- ?1 JSON array of {principal, action, subject, before, after, reason, request_id}, ?2 the transaction's time
INSERT INTO audit (at, principal, action, subject, before, after, reason, request_id)
SELECT ?2, w.value ->> 'principal', w.value ->> 'action', w.value ->> 'subject', w.value ->> 'before',
       w.value ->> 'after', w.value ->> 'reason', w.value ->> 'request_id'
FROM json_each(?1) AS w
