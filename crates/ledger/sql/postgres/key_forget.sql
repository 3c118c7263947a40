-- Takes keys back in the transaction that kept them: another key of their batch was taken.
-- $1 scopes, $2 keys
DELETE FROM idempotency_key k
USING (SELECT unnest($1::text[]) AS scope, unnest($2::text[]) AS key) AS w
WHERE k.scope = w.scope AND k.key = w.key
