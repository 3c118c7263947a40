-- What owners of signers write most, as one statement that is a transaction by itself: idempotency keys, nonces granted for
-- the first time, and settlements. It writes everything or nothing. Where not every lease holds, it answers no row, or fails
-- as below. Where a key or a nonce is there already, it fails with unique_violation; where a nonce to be settled is not as
-- said, with division_by_zero.
-- What stands between a mark and its end is there only for a round that has such rows.
-- $1 to $3 the signers' leases, each once, see fence_lock; $4 to $7 keys, see key_keep; $8 to $13 new nonces, see
-- nonce_grant_new; $14 to $21 settlements, see nonce_move
WITH held AS MATERIALIZED (
    SELECT l.resource
    FROM lease l
    JOIN unnest($1::text[], $2::bigint[], $3::text[]) AS w (resource, fencing_token, owner)
      ON l.resource = w.resource AND l.fencing_token = w.fencing_token
    WHERE l.owner = w.owner AND (SELECT is_current FROM ledger_current)
    ORDER BY l.resource
    FOR KEY SHARE OF l SKIP LOCKED
),
-- Read by each of the writes below, so that all leases are locked before any of them begins.
fence AS MATERIALIZED (
    SELECT count(*) = cardinality($1) AS holds FROM held
)
--if keys
, kept AS (
    INSERT INTO idempotency_key (scope, key, body_hash, answer, created_at)
    SELECT w.scope, w.key, w.body_hash, w.answer, now()
    FROM unnest($4::text[], $5::text[], $6::bytea[], $7::text[]) AS w (scope, key, body_hash, answer)
    WHERE (SELECT holds FROM fence)
    ORDER BY w.scope COLLATE "C", w.key COLLATE "C"
)
--end
--if new
, granted AS (
    INSERT INTO signer_nonce_allocation
        (signer, nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at)
    SELECT w.signer, w.nonce, 'HELD', w.hold, now() + w.hold_ms * interval '1 millisecond', NULL,
           w.fencing_token, w.owner, now(), now()
    FROM unnest($8::text[], $9::bigint[], $10::uuid[], $11::bigint[], $12::bigint[], $13::text[])
         AS w (signer, nonce, hold, hold_ms, fencing_token, owner)
    WHERE (SELECT holds FROM fence)
    ORDER BY w.signer COLLATE "C", w.nonce
)
--end
--if moves
, moved AS (
    UPDATE signer_nonce_allocation a
    SET status        = w.to_status,
        tx_hash       = w.tx_hash,
        fencing_token = w.fencing_token,
        owner         = w.owner,
        updated_at    = now()
    FROM unnest($14::text[], $15::bigint[], $16::uuid[], $17::text[], $18::text[], $19::text[], $20::bigint[], $21::text[])
         AS w (signer, nonce, hold, from_status, to_status, tx_hash, fencing_token, owner)
    WHERE (SELECT holds FROM fence)
      AND a.signer = w.signer AND a.nonce = w.nonce AND a.status = w.from_status AND a.hold = w.hold
    RETURNING a.nonce
)
--end
SELECT (extract(epoch FROM now()) * 1000000)::bigint AS at
--if moves
     , 1 / ((SELECT count(*) FROM moved) = cardinality($14))::int AS all_moved
--end
FROM fence
WHERE holds
