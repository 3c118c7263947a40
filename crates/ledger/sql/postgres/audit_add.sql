-- What operators changed.
-- $1 principals, $2 actions, $3 subjects, $4 before, $5 after, $6 reasons, $7 request ids
INSERT INTO audit (at, principal, action, subject, before, after, reason, request_id)
SELECT now(), w.* FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]) AS w
