-- The sequences that have no number left once they are raised past those that were given since. Sent before recover_sequences.
-- $1 so many numbers
SELECT sequence FROM id_sequence
WHERE increment > (9223372036854775807 - next) / ($1 + 1)
ORDER BY sequence
