-- Jobs of sessions are forgotten: their places are not given again.
-- ?1 JSON array of {session, seq}, each session once, with the highest place in it
UPDATE session
SET purged_seq = w.value ->> 'seq'
FROM json_each(?1) AS w
WHERE session.session = w.value ->> 'session' AND session.purged_seq < w.value ->> 'seq'
