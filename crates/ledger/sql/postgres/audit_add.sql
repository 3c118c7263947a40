-- What operators changed.
-- $1 principals, $2 actions, $3 subjects, $4 before, $5 after, $6 reasons, $7 request ids
INSERT INTO audit (at, principal, action, subject, before, after, reason, request_id)
SELECT now(), unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]),
       unnest($6::text[]), unnest($7::text[])
