-- Which tables there are: those of the migrations, and that of the settings.
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations') AS has_first,
       EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'schema_migration') AS has_later,
       EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'setting') AS has_settings
