-- The last line of an unfinished job's past attempts, of which a list shows the reason; nothing where it has none. It is found by
-- how it begins, which no other line does, and no text within a line: a quote in a text stands behind a backslash.
substr(past_attempts, instr(past_attempts, '{"attempt":' || (attempt - (node IS NOT NULL)) || ',')) AS past_attempts
