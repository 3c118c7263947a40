-- How much of everything a recovery would change.
SELECT (SELECT count(*) FROM lease) AS leases,
       (SELECT count(*) FROM session WHERE closed_at IS NULL) AS sessions,
       (SELECT count(*) FROM plan) AS plans,
       (SELECT count(*) FROM signer) AS signers,
       (SELECT count(*) FROM id_segment) AS segments,
       (SELECT count(*) FROM id_sequence) AS sequences
