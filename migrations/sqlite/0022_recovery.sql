-- What a recovery has left to be heeded.
CREATE TABLE ledger_recovery (
    one                  INTEGER NOT NULL PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    token_floor          INTEGER NOT NULL,   -- no lease of a name that may be used again begins so low
    unknown_signers_wait INTEGER NOT NULL    -- whether somebody must confirm the next nonce of a signer that has no row
);
INSERT INTO ledger_recovery (token_floor, unknown_signers_wait) VALUES (0, 0);
