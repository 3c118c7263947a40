-- Which ledger this is, and how far it has got: instances raise the position a few times a second and remember it. One that
-- finds a lower position, or another cluster, knows that the ledger went back in time.
CREATE TABLE ledger_identity (
    one      boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    cluster  text COLLATE "C" NOT NULL,
    position bigint NOT NULL             -- begins at, and is set by `recover` to, the time in ms since 1970, times 2^20
) WITH (fillfactor = 10);                -- room for the position to stay on its page
INSERT INTO ledger_identity (cluster, position)
SELECT replace(gen_random_uuid()::text, '-', ''), (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20;

-- Whether the ledger is as far as the session's process knows it to have been: `fencepost.position`. What grants anything
-- asks for it.
CREATE FUNCTION ledger_is_current() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT position >= coalesce(nullif(current_setting('fencepost.position', true), ''), '0')::bigint
    FROM ledger_identity
$$;

-- Whether somebody must confirm the signer's next nonce before any is granted.
ALTER TABLE signer ADD COLUMN recovering boolean NOT NULL DEFAULT false;
