-- What a recovery has left to be heeded. An instance of an older release does not ask: it is stopped before a recovery.
CREATE TABLE ledger_recovery (
    one                  boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    token_floor          bigint NOT NULL,    -- no lease of a name that may be used again begins so low
    unknown_signers_wait boolean NOT NULL    -- whether somebody must confirm the next nonce of a signer that has no row
);
INSERT INTO ledger_recovery (token_floor, unknown_signers_wait) VALUES (0, false);
