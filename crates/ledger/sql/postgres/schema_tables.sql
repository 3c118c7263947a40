-- Which tables there are: those of the migrations, and that of the settings.
SELECT to_regclass('_sqlx_migrations') IS NOT NULL AS has_first,
       to_regclass('schema_migration') IS NOT NULL AS has_later,
       to_regclass('setting') IS NOT NULL AS has_settings
