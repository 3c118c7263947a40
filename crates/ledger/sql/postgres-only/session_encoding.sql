-- How the database keeps texts.
SELECT current_setting('server_encoding') AS encoding
