-- How many live leases each instance has, beside its own. Reads all of the table: not for every request.
SELECT owner, count(*) AS leases
FROM lease
WHERE expires_at > now() AND owner IS NOT NULL AND resource <> 'instance:' || owner
GROUP BY owner
