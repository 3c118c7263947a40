-- How many plans are kept, by their statuses.
SELECT status, count(*) AS plans FROM plan GROUP BY status
