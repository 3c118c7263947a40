-- Whether a tenure is still the newest.
-- ?1 resource, ?2 token, ?3 owner
SELECT EXISTS (SELECT 1 FROM lease WHERE resource = ?1 AND fencing_token = ?2 AND owner = ?3) AS holds
