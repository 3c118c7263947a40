-- Which ledger this is, and how far it has got: instances raise the position a few times a second and remember it. One that
-- finds a lower position, or another cluster, knows that the ledger went back in time.
CREATE TABLE ledger_identity (
    one      INTEGER NOT NULL PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    cluster  TEXT NOT NULL,
    position INTEGER NOT NULL            -- begins at, and is set by `recover` to, the time in ms since 1970, times 2^20
);
INSERT INTO ledger_identity (cluster, position)
SELECT lower(hex(randomblob(16))), CAST(round(unixepoch('subsec') * 1000) AS INTEGER) << 20;

-- Whether somebody must confirm the signer's next nonce before any is granted.
ALTER TABLE signer ADD COLUMN recovering INTEGER NOT NULL DEFAULT 0;
