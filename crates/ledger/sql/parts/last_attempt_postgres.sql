-- The last line of an unfinished job's past attempts, of which a list shows the reason; nothing where it has none.
split_part(past_attempts, E'\n', -2) AS past_attempts
