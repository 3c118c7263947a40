-- What operators changed, in the same commit as the change. Kept for 90 days.
CREATE TABLE audit (
    id         bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    principal  text COLLATE "C" NOT NULL,    -- the name of the token; '' without tokens
    action     text COLLATE "C" NOT NULL,
    subject    text COLLATE "C" NOT NULL,    -- kind:name
    before     text,
    after      text,
    reason     text,
    request_id text
);
CREATE INDEX audit_subject ON audit (subject, id);
CREATE INDEX audit_principal ON audit (principal, id);
CREATE INDEX audit_age ON audit (at);
