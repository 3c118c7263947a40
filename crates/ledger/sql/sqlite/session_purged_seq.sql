-- Jobs of sessions are forgotten: their places are not given again, and the sessions count as used now.
-- ?1 JSON array of {session, seq}, each session once, with the highest place in it
UPDATE session
SET purged_seq = max(purged_seq, w.value ->> 'seq'), forgotten_at = {now}
FROM json_each(?1) AS w
WHERE session.session = w.value ->> 'session'
