-- Takes keys back in the transaction that kept them: another key of their batch was taken.
-- $1 scopes, $2 keys
DELETE FROM idempotency_key k
USING unnest($1::text[], $2::text[]) AS w (scope, key)
WHERE k.scope = w.scope AND k.key = w.key
