//! Which tables a binary runs on, and what a migration may do.

use std::borrow::Cow;

use super::*;

/// What takes something away that an older binary may use, or asks for something that it does not write.
const NOT_ADDITIVE: [&str; 10] = [
    "DROP TABLE",
    "DROP COLUMN",
    "DROP CONSTRAINT",
    "RENAME",
    "ALTER COLUMN",
    "ADD CONSTRAINT",
    "CREATE UNIQUE INDEX",
    "CREATE TRIGGER",
    "TRUNCATE",
    "DELETE FROM",
];

/// What older binaries do not notice though it is among these.
const EXCEPTIONS: [&str; 1] = [
    // With a plan its triggers delete what its constraints deleted before.
    "0020_plans_without_checks",
];

/// Why a migration is not additive.
fn objection(text: &str) -> Option<String> {
    let code: Vec<_> = text.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
    let code = code.join("\n").to_uppercase();
    if code.contains(&READABLE_FROM.to_uppercase()) {
        return None;
    }
    let statements = code.split(';').map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    for statement in statements {
        if let Some(words) = NOT_ADDITIVE.iter().find(|words| statement.contains(**words)) {
            return Some(format!("{words}: {statement}"));
        }
        let is_asked_for = statement.contains("NOT NULL") && !statement.contains("DEFAULT");
        if statement.contains("ADD COLUMN") && is_asked_for {
            return Some(format!("a column that older binaries do not write: {statement}"));
        }
    }
    None
}

#[test]
fn every_migration_since_the_first_release_only_adds_or_says_from_when_on_binaries_can_run_on_it() {
    for (name, text) in POSTGRES_FILES.iter().chain(SQLITE_FILES) {
        let version: i64 = name.split('_').next().unwrap().parse().unwrap();
        if version > FIRST_RELEASE && !EXCEPTIONS.contains(name) {
            assert_eq!(objection(text), None, "{name}");
        }
    }
}

#[test]
fn a_migration_that_adds_a_column_ends_the_connections_whose_statements_read_all_columns() {
    for (name, text) in POSTGRES_FILES {
        let version: i64 = name.split('_').next().unwrap().parse().unwrap();
        let adds = text.to_uppercase().contains("ADD COLUMN");
        if version > FIRST_RELEASE && adds {
            assert!(text.contains("pg_terminate_backend"), "{name}");
        }
    }
}

#[test]
fn a_migration_that_does_more_than_add_is_found() {
    for bad in [
        "ALTER TABLE job DROP COLUMN metadata;",
        "ALTER TABLE job\n    RENAME COLUMN a TO b;",
        "ALTER TABLE job ADD COLUMN a bigint NOT NULL;",
        "CREATE TABLE a (b bigint); DROP TABLE job",
        "CREATE UNIQUE INDEX a ON job (b);",
    ] {
        assert!(objection(bad).is_some(), "{bad}");
    }
    for good in [
        "ALTER TABLE job ADD COLUMN a bigint NOT NULL DEFAULT 0;",
        "ALTER TABLE job ADD COLUMN a bigint; CREATE INDEX b ON job (a);",
        "-- Nobody has to DROP TABLE job.\nCREATE TABLE a (b bigint NOT NULL);",
        "DROP TABLE a; INSERT INTO setting VALUES ('schema.readable_from', 1, '15', now());",
    ] {
        assert_eq!(objection(good), None, "{good}");
    }
}

#[test]
fn both_databases_have_the_same_migrations() {
    let names = |files: &[(&'static str, &str)]| files.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    assert_eq!(names(POSTGRES_FILES), names(SQLITE_FILES));
    assert_eq!(POSTGRES.versions().len(), POSTGRES_FILES.len(), "no version is there twice");
    assert!(POSTGRES.first.iter().count() as i64 == FIRST_RELEASE);
}

/// A binary that knows the migrations 1 to 13 and so many later ones.
fn binary(later: &[i64]) -> History {
    let names: Vec<String> = (1..=FIRST_RELEASE)
        .chain(later.iter().copied())
        .map(|version| format!("{version:04}_some_migration"))
        .collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), "SELECT 1")).collect();
    History::of(&files)
}

fn applied(versions: impl IntoIterator<Item = i64>) -> Vec<AppliedMigration> {
    let checksum = || binary(&[]).first.iter().next().unwrap().checksum.clone();
    versions.into_iter().map(|version| AppliedMigration { version, checksum: checksum() }).collect()
}

fn found(later: &[i64], readable_from: Option<i64>) -> Found {
    let later = applied(later.iter().copied());
    Found { first: applied(1..=FIRST_RELEASE), later, readable_from }
}

fn refusal(failure: MigrateFailure) -> String {
    match failure {
        MigrateFailure::Final(Error::Migration(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_that_lack_a_migration_are_older() {
    let difference = binary(&[14, 15]).compare(&found(&[14], None)).unwrap();
    assert_eq!(difference, Difference { missing: vec![15], newer: None });
    let empty = binary(&[14]).compare(&Found::default()).unwrap();
    assert_eq!(empty.missing, (1..=14).collect::<Vec<_>>());
}

#[test]
fn a_binary_runs_on_newer_tables_unless_they_say_that_it_cannot() {
    let difference = binary(&[14]).compare(&found(&[14, 15, 16], None)).unwrap();
    assert_eq!(difference, Difference { missing: vec![], newer: Some(16) });
    for (readable_from, runs) in [(13, true), (14, true), (15, false), (16, false)] {
        let compared = binary(&[14]).compare(&found(&[14, 15, 16], Some(readable_from)));
        assert_eq!(compared.is_ok(), runs, "readable from {readable_from}");
        if let Err(failure) = compared {
            let why = refusal(failure);
            assert!(why.contains("newer") && why.contains("16"), "{why}");
        }
    }
}

#[test]
fn a_migration_among_those_of_the_first_release_is_for_all_binaries_that_do_not_know_it() {
    let mut newer = found(&[14], None);
    newer.first.extend(applied([9_999]));
    assert!(refusal(binary(&[14]).compare(&newer).unwrap_err()).contains("9999"));
    // The setting says more.
    newer.readable_from = Some(14);
    assert_eq!(binary(&[14]).compare(&newer).unwrap().newer, Some(9_999));
    newer.readable_from = Some(15);
    assert!(refusal(binary(&[14]).compare(&newer).unwrap_err()).contains("9999"));
}

#[test]
fn a_migration_in_another_form_is_refused() {
    let mut changed = found(&[14], None);
    changed.later[0].checksum = Cow::Borrowed(b"another");
    let why = refusal(binary(&[14]).compare(&changed).unwrap_err());
    assert!(why.contains("14") && why.contains("another hand"), "{why}");
}
