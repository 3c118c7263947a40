-- Whether a tenure is still the newest, without a lock: told of a row that fence_lock passed over.
-- $1 resource, $2 token, $3 owner
SELECT EXISTS (SELECT FROM lease WHERE resource = $1 AND fencing_token = $2 AND owner = $3) AS holds
