//! The restore that docs/recovery.md describes: of a dump that was cut, of a ledger in a schema of its own, and of one with two
//! roles.

use super::*;

/// A database with a ledger.
async fn with_ledger() -> Database {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    migrate(database.url()).await;
    database
}

async fn migrate(database_url: &str) {
    let migrated = Setup::command("migrate").database(database_url).run_to_end(testkit::PATIENCE).await;
    let migrated = migrated.unwrap();
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_was_cut_is_not_restored_and_what_was_there_is_kept() {
    let database = with_ledger().await;
    let folder = tempfile::tempdir().unwrap();
    let (folder, file) = (folder.path(), folder.path().join("fencepost.sql"));
    let clusters = |schema: &str| database.query(&format!("SELECT cluster FROM {schema}.ledger_identity"));
    let before = clusters("public").unwrap();
    run_as_documented("schema=", folder, database.url());
    let whole = std::fs::read(&file).unwrap();
    // Behind the rows of the last table, where `psql` sees nothing amiss.
    let end_of_rows = whole.windows(3).rposition(|bytes| bytes == b"\\.\n").unwrap();
    std::fs::write(&file, &whole[..end_of_rows]).unwrap();
    let refused = documented("tail ", folder, database.url()).output().unwrap();
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(clusters("public").unwrap(), before);
    assert!(clusters("before").is_err(), "nothing was moved");
    std::fs::write(&file, &whole).unwrap();
    run_as_documented("tail ", folder, database.url());
    for schema in ["public", "before"] {
        assert_eq!(clusters(schema).unwrap(), before, "{schema}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_in_a_schema_of_its_own_is_restored_beside_other_tables_and_where_there_is_none() {
    let fresh = || tokio::task::block_in_place(|| Database::fresh().unwrap());
    let (database, other) = (fresh(), fresh());
    let at = |database: &Database| format!("{}?options=-csearch_path%3D%22Ledger%22", database.url());
    let clusters = |database: &Database, schema: &str| {
        database.query(&format!("SELECT cluster FROM \"{schema}\".ledger_identity"))
    };
    database
        .query("CREATE SCHEMA \"Ledger\"; CREATE TABLE job (id integer); INSERT INTO job VALUES (7)")
        .unwrap();
    migrate(&at(&database)).await;
    let before = clusters(&database, "Ledger").unwrap();
    let folder = tempfile::tempdir().unwrap();
    run_as_documented("schema=", folder.path(), &at(&database));
    run_as_documented("tail ", folder.path(), &at(&database));
    for schema in ["Ledger", "before"] {
        assert_eq!(clusters(&database, schema).unwrap(), before, "{schema}");
    }
    assert_eq!(database.query("SELECT id FROM public.job").unwrap(), [["7"]]);
    run_as_documented("tail ", folder.path(), other.url());
    assert_eq!(clusters(&other, "Ledger").unwrap(), before);
    let check = Setup::command("migrate").arg("--check").database(&at(&other));
    let checked = check.run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    // A part that lies elsewhere is not left out.
    other.query("ALTER TABLE \"Ledger\".job_finished_rest SET SCHEMA public").unwrap();
    let refused = documented("schema=", folder.path(), &at(&other)).output().unwrap();
    assert!(!refused.status.success(), "{refused:?}");
}

/// The SQL of the page about operations that begins so, about these roles.
fn sql_of_roles(beginning: &str, [owner, app]: [&str; 2]) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let found: Vec<_> = blocks.filter(|block| block.starts_with(beginning)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].replace("owner", owner).replace("app", app)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_of_a_ledger_with_two_roles_is_restored_by_the_one_that_owns_the_tables() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (head, name) = database.url().rsplit_once('/').unwrap();
    let (scheme, rest) = head.split_once("://").unwrap();
    let host = rest.rsplit('@').next().unwrap();
    let [owner, app] = ["migrates", "serves"].map(|role| format!("{role}_{}", std::process::id()));
    let [of_owner, of_app] = [&owner, &app].map(|role| format!("{scheme}://{role}@{host}/{name}"));
    for role in [&owner, &app] {
        database.query(&format!("CREATE ROLE {role} LOGIN")).unwrap();
    }
    database.query(&format!("ALTER DATABASE \"{name}\" OWNER TO {owner}")).unwrap();
    migrate(&of_owner).await;
    let grants = "GRANT USAGE ON SCHEMA public TO app;";
    database.query(&sql_of_roles(grants, [&owner, &app])).unwrap();
    let before = database.query("SELECT cluster FROM ledger_identity").unwrap();
    let of_other = documented("schema=", folder.path(), &of_app).output().unwrap();
    let said = String::from_utf8_lossy(&of_other.stderr);
    assert!(!of_other.status.success() && said.contains("sequence audit_id_seq"), "as the page says: {said}");
    let restore = |url: &str| {
        run_as_documented("schema=", folder.path(), url);
        run_as_documented("tail ", folder.path(), url);
        database.query("DROP SCHEMA before CASCADE").unwrap();
        assert_eq!(database.query("SELECT cluster FROM ledger_identity").unwrap(), before, "{url}");
    };
    restore(&of_owner);
    // Before the rights are given again: the restored ledger is not taken for none, beside which another one is to be made.
    for command in [
        Setup::command("recover").arg("--dry-run"),
        Setup::command("migrate"),
        Setup::basic().unwrap(),
        Setup::basic().unwrap().arg("--migrate").arg("check"),
    ] {
        let refused = command.database(&of_app).run_to_end(testkit::PATIENCE).await.unwrap();
        assert_eq!(refused.code, Some(78), "{refused:?}");
        let grant = format!("GRANT USAGE ON SCHEMA \"public\" TO \"{app}\";");
        assert!(refused.stderr.contains(&grant) && !refused.stderr.contains("CREATE SCHEMA"), "{refused:?}");
    }
    database.query(&sql_of_roles(grants, [&owner, &app])).unwrap();
    let instance = Setup::basic().unwrap().database(&of_app).arg("--migrate").arg("check");
    drop(instance.start().await.unwrap());
    let moves = "GRANT USAGE, CREATE ON SCHEMA public TO app;\nREASSIGN";
    database.query(&sql_of_roles(moves, [&owner, &app])).unwrap();
    restore(&of_app);
    drop(Setup::basic().unwrap().database(&of_app).start().await.unwrap());
    for role in [&owner, &app] {
        database.query(&format!("REASSIGN OWNED BY {role} TO CURRENT_USER")).unwrap();
        database.query(&format!("DROP OWNED BY {role}")).unwrap();
    }
    database.query(&format!("DROP ROLE {owner}, {app}")).unwrap();
}
