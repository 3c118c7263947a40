-- Whether there is the table or the view that a refusal names in quotes; true where it names none so, as in another language.
-- $1 the words of the refusal
SELECT named IS NULL OR to_regclass(quote_ident(named)) IS NOT NULL AS is_there
FROM (SELECT substring($1::text FROM '"([^"]+)"') AS named) AS words
