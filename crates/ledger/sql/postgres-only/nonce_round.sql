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
    JOIN (SELECT unnest($1::text[]) AS resource, unnest($2::bigint[]) AS fencing_token, unnest($3::text[]) AS owner) AS w
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
    FROM (
        SELECT unnest($4::text[]) AS scope, unnest($5::text[]) AS key, unnest($6::bytea[]) AS body_hash,
               unnest($7::text[]) AS answer
    ) AS w
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
    FROM (
        SELECT unnest($8::text[]) AS signer, unnest($9::bigint[]) AS nonce, unnest($10::uuid[]) AS hold,
               unnest($11::bigint[]) AS hold_ms, unnest($12::bigint[]) AS fencing_token, unnest($13::text[]) AS owner
    ) AS w
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
    FROM (
        SELECT unnest($14::text[]) AS signer, unnest($15::bigint[]) AS nonce, unnest($16::uuid[]) AS hold,
               unnest($17::text[]) AS from_status, unnest($18::text[]) AS to_status, unnest($19::text[]) AS tx_hash,
               unnest($20::bigint[]) AS fencing_token, unnest($21::text[]) AS owner
    ) AS w
    WHERE (SELECT holds FROM fence)
      AND a.signer = w.signer AND a.nonce = w.nonce AND a.status = w.from_status AND a.hold = w.hold
    RETURNING a.nonce
)
--end
SELECT (extract(epoch FROM now()) * 1000000)::bigint AS at,
       {mark}
--if moves
     , 1 / ((SELECT count(*) FROM moved) = cardinality($14))::int AS all_moved
--end
FROM fence
WHERE holds
