//! The repository itself: which crate may use which, what lies where, and that its pages point to things that
//! exist. No process is started but `cargo metadata`.

#![expect(clippy::unwrap_used, reason = "all of this is test code, its helper functions too")]

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/scripts.rs"]
mod scripts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What each crate of ours may use, as `ARCHITECTURE.md` draws it. Arrows point one way.
const MAY_USE: [(&str, &[&str]); 14] = [
    ("domain", &[]),
    ("placement", &[]),
    ("panic_guard", &[]),
    ("wire", &[]),
    ("ledger", &["domain", "panic_guard"]),
    ("bus", &["domain", "panic_guard"]),
    ("cluster", &["domain", "placement", "panic_guard", "ledger", "bus"]),
    ("nodes", &["domain", "panic_guard", "bus", "wire"]),
    ("actors", &["domain", "panic_guard", "ledger", "bus", "cluster", "nodes"]),
    ("ids", &["domain", "panic_guard", "ledger"]),
    ("client", &["placement", "wire"]),
    (
        "api",
        &["domain", "wire", "panic_guard", "ledger", "bus", "cluster", "nodes", "actors", "ids", "client"],
    ),
    ("testkit", &[]),
    (
        "daemon",
        &[
            "domain",
            "wire",
            "panic_guard",
            "ledger",
            "bus",
            "cluster",
            "nodes",
            "actors",
            "ids",
            "api",
            "client",
        ],
    ),
];

/// Crates from outside that only one room may name.
const ONLY_IN: [(&str, &str); 3] = [("sqlx", "ledger"), ("actix-web", "api"), ("redis", "bus")];

const FILE_LINES_MAX: usize = 800;
const COMMENT_COLUMNS_MAX: usize = 130;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Package name to its dependencies, as (name, kind): kind is empty, "dev" or "build".
fn dependencies() -> BTreeMap<String, Vec<(String, String)>> {
    let said = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let metadata: Value = serde_json::from_slice(&said.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let package = |package: &Value| {
        let list = package["dependencies"].as_array().unwrap();
        (text(&package["name"]), list.iter().map(|one| (text(&one["name"]), text(&one["kind"]))).collect())
    };
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

/// All files below `dir` for which `wanted` is true, without what is built or fetched.
fn files(dir: &Path, wanted: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | "node_modules" | ".git" | "fencepost-data") {
                found.extend(files(&path, wanted));
            }
        } else if wanted(&path) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|it| it == extension)
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn arrows_between_the_crates_point_one_way() {
    let table: BTreeMap<&str, &[&str]> = MAY_USE.into_iter().collect();
    let all = dependencies();
    for name in names_in(&root().join("crates")) {
        let allowed = table.get(name.as_str()).unwrap_or_else(|| panic!("crates/{name} is not in the table"));
        for (used, kind) in &all[&name] {
            let ours =
                table.contains_key(used.as_str()) || ["loadtest", "model", "tests"].contains(&used.as_str());
            assert!(!ours || kind == "dev" || allowed.contains(&used.as_str()), "{name} must not use {used}");
        }
    }
    // The harness knows the daemon from outside only, and its callers are users of the client library.
    for (used, _) in &all["loadtest"] {
        assert!(
            ["client", "testkit"].contains(&used.as_str()) || !table.contains_key(used.as_str()),
            "the harness must not use {used}"
        );
    }
    for (name, list) in &all {
        let named = list.iter().any(|(used, _)| used == "loadtest");
        assert!(!named || name == "tests", "{name} uses the load harness; its tests stand on testkit");
    }
}

#[test]
fn no_circle_among_the_files_of_a_crate() {
    let crates = names_in(&root().join("crates")).into_iter().map(|name| format!("crates/{name}"));
    for member in crates.chain(["loadtest", "model"].map(str::to_owned)) {
        let found: Vec<_> =
            circles::circles(&root().join(&member).join("src")).iter().map(|c| circles::shown(c)).collect();
        assert!(found.is_empty(), "{member}: files in a circle: {found:#?}");
    }
}

/// The files of a made crate, each a path and a text.
type Files<'t> = &'t [(&'t str, &'t str)];

/// The circles of a crate with these files.
fn circles_of(files: Files) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    circles::circles(dir.path()).iter().map(|circle| circles::shown(circle)).collect()
}

#[test]
fn a_made_circle_is_found_however_it_is_written() {
    let root = ("lib.rs", "mod a; mod b; mod c; pub use b::B;");
    let cases: [(&str, Files, &str); 9] = [
        ("use", &[("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;"), ("c.rs", "")], "a -> b -> a"),
        (
            "super",
            &[("a.rs", "use super::b;"), ("b.rs", "use super::{a::{A, X as Y}, c};"), ("c.rs", "")],
            "a -> b -> a",
        ),
        (
            "a path within an expression and one within a type",
            &[
                ("a.rs", "fn f() { crate::b::f() }"),
                ("b.rs", "pub struct B(crate::c::C<u8>);"),
                ("c.rs", "use crate::a;"),
            ],
            "a -> b -> c -> a",
        ),
        (
            "a re-export",
            &[("a.rs", "use crate::B;"), ("b.rs", "use crate::a::A; pub struct B;"), ("c.rs", "")],
            "a -> b -> a",
        ),
        (
            "a glob",
            &[("a.rs", "use crate::b::*;"), ("b.rs", "use crate::a::*;"), ("c.rs", "")],
            "a -> b -> a",
        ),
        (
            "siblings",
            &[
                ("a.rs", "mod x; mod y;"),
                ("a/x.rs", "use super::y::Y;"),
                ("a/y.rs", "fn f() { super::x::f() }"),
                ("b.rs", ""),
                ("c.rs", ""),
            ],
            "a::x -> a::y -> a::x",
        ),
        (
            "a child by way of another module",
            &[
                ("a.rs", "mod x; use x::X; pub struct A;"),
                ("a/x.rs", "use crate::b::B; pub struct X;"),
                ("b.rs", "use crate::a::A; pub struct B;"),
                ("c.rs", ""),
            ],
            "a -> a::x -> b -> a",
        ),
        (
            "a module within a file",
            &[("a.rs", "mod inner { use super::super::b::B; }"), ("b.rs", "use crate::a::A;"), ("c.rs", "")],
            "a -> b -> a",
        ),
        (
            "after text that looks like the end of something",
            &[
                (
                    "a.rs",
                    "const X: &str = r#\"}\"\"#; // }\n/* } /* */ } */ const Y: char = '}'; fn f<'a>(x: &'a u8) { crate::b::f(x) }",
                ),
                ("b.rs", "const Q: char = '\\''; use crate::a;"),
                ("c.rs", ""),
            ],
            "a -> b -> a",
        ),
    ];
    for (what, files, expected) in cases {
        let files = [&[root], files].concat();
        assert_eq!(circles_of(&files), [expected], "{what}");
    }
}

#[test]
fn what_is_no_circle_is_not_found() {
    let root = ("lib.rs", "mod a; mod b; #[cfg(test)] mod c; pub use b::B;");
    let cases: [(&str, Files); 6] = [
        ("one way", &[("a.rs", "use crate::b::B; use std::fmt;"), ("b.rs", "use std::fmt; pub struct B;")]),
        (
            "a parent with its own children",
            &[
                ("a.rs", "mod x; use x::X; pub struct A;"),
                ("a/x.rs", "mod deep; use super::A; pub struct X;"),
                ("a/x/deep.rs", "use crate::a::A;"),
                ("b.rs", ""),
            ],
        ),
        (
            "tests",
            &[
                ("a.rs", "use crate::b::B;"),
                (
                    "b.rs",
                    "#[cfg(test)] use crate::a; #[cfg(test)] mod tests { use crate::a::A; fn f() { crate::a::f(); } }",
                ),
                ("c.rs", "use crate::a::A;"),
            ],
        ),
        (
            "comments and texts",
            &[
                ("a.rs", "use crate::b::B;"),
                (
                    "b.rs",
                    "//! See crate::a.\n/* crate::a */ const X: &str = \"crate::a::A\"; const Y: &str = r#\"crate::a \" crate::a\"#;",
                ),
            ],
        ),
        (
            "a crate of the same name",
            &[("a.rs", "use crate::b::B;"), ("b.rs", "use ::a::A; fn f() { ::a::f() }")],
        ),
        (
            "the root's own items",
            &[("a.rs", "use crate::Root; use crate::b::B;"), ("b.rs", "use crate::Root;")],
        ),
    ];
    for (what, files) in cases {
        let files = [&[root, ("c.rs", "")], files].concat();
        assert_eq!(circles_of(&files), [""; 0], "{what}");
    }
}

#[test]
fn each_engine_is_named_in_one_room_only() {
    for (name, list) in dependencies() {
        for (engine, room) in ONLY_IN {
            let named = list.iter().any(|(used, kind)| used == engine && (kind != "dev" || engine == "sqlx"));
            assert!(!named || name == room, "{name} names {engine}, which belongs to {room}");
        }
    }
}

#[test]
fn both_dialects_have_the_same_files() {
    for parent in ["migrations", "crates/ledger/sql"] {
        let (postgres, sqlite) =
            (names_in(&root().join(parent).join("postgres")), names_in(&root().join(parent).join("sqlite")));
        assert!(!postgres.is_empty(), "{parent}/postgres is empty");
        assert_eq!(postgres, sqlite, "{parent}");
    }
}

#[test]
fn a_statement_has_one_file_for_both_databases_or_one_for_each_or_one_for_one() {
    let sql = root().join("crates/ledger/sql");
    let folders = ["both", "postgres", "postgres-only", "sqlite-only"];
    let all: BTreeSet<_> =
        folders.iter().chain(&["parts", "sqlite"]).map(|name| (*name).to_owned()).collect();
    assert_eq!(names_in(&sql), all);
    let mut seen = BTreeMap::new();
    for folder in folders {
        for name in names_in(&sql.join(folder)) {
            let before = seen.insert(name.clone(), folder);
            assert_eq!(before, None, "{name} is in {folder} too");
        }
    }
    for name in names_in(&sql.join("postgres")) {
        let of = |folder: &str| std::fs::read_to_string(sql.join(folder).join(&name)).unwrap();
        // SQLite numbers its arguments with `?`, and takes `$` as well.
        let renumbered = of("sqlite").replace('?', "$");
        assert_ne!(of("postgres"), renumbered, "{name} is the same for both databases: it belongs in both/");
    }
}

/// A server reads all of a statement, its comments too, by the encoding of the database.
#[test]
fn statements_and_migrations_are_plain_ascii() {
    for path in files(&root(), &|path| has_extension(path, "sql")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let odd = text.lines().position(|line| !line.is_ascii());
        assert_eq!(odd, None, "{}: the line has a character that is not ASCII", path.display());
    }
}

/// `signer_load.sql` says why.
#[test]
fn no_statement_of_postgres_looks_for_the_last_nonce_by_max() {
    let sql = root().join("crates/ledger/sql");
    for folder in ["both", "parts", "postgres", "postgres-only"] {
        for path in files(&sql.join(folder), &|path| has_extension(path, "sql")) {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("max(nonce)"), "{}: ORDER BY nonce DESC LIMIT 1", path.display());
        }
    }
}

#[test]
fn no_source_file_is_two_rooms_in_one() {
    for path in files(&root(), &|path| has_extension(path, "rs")) {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines", path.display());
    }
}

#[test]
fn no_comment_is_wider_than_a_line_may_be() {
    for path in files(&root(), &|path| has_extension(path, "rs")) {
        let text = std::fs::read_to_string(&path).unwrap();
        for (at, line) in text.lines().enumerate() {
            let comment = line
                .trim_start()
                .strip_prefix("//")
                .map(|comment| comment.trim_start_matches(['/', '!', ' ']));
            // A table has a row on each line.
            let is_prose = comment.is_some_and(|comment| !comment.starts_with('|'));
            let columns = line.chars().count();
            assert!(!is_prose || columns <= COMMENT_COLUMNS_MAX, "{}:{}: {columns}", path.display(), at + 1);
        }
    }
}

/// Pauses of an equal length each time, and why they may be so: their file and their constant, or a folder and none.
const EQUAL_PAUSES: [(&str, &str); 15] = [
    // A person waits for one command.
    ("crates/daemon/src/commands/", ""),
    // Each begins when its caller asks.
    ("crates/client/src/jobs.rs", "WAIT_PAUSE"),
    ("crates/api/src/forwarder/others.rs", "SHOWN_PAUSE"),
    ("crates/api/src/extract.rs", "DRAINED_BODY_MAX"),
    // What others shall have time for.
    ("crates/actors/src/jobs/node_gateway.rs", "SLOTS_LEFT_FOR"),
    ("crates/actors/src/jobs/state_reads.rs", "READ_EVERY"),
    ("crates/cluster/src/membership.rs", "NOTICES_GATHERED"),
    ("crates/nodes/src/follower.rs", "NODE_UPDATES_GATHERED_MS"),
    // Between two makings of an index in memory.
    ("crates/nodes/src/follower.rs", "INDEX_PAUSE_MS"),
    // Only what this process has itself is looked at after it.
    ("crates/daemon/src/serve/recorder.rs", "UPKEEP_EVERY"),
    ("crates/daemon/src/serve/signals.rs", "ECHO"),
    ("crates/api/src/auth.rs", "TOKEN_LOOK_EVERY"),
    ("crates/ids/src/snowflake/keeper/by_file.rs", "LOOK_EVERY"),
    ("crates/ids/src/snowflake/keeper/ahead.rs", "REMOVE_AGAIN"),
    ("crates/ids/src/snowflake/take.rs", "NEXT_MS"),
];

/// The constant that a pause lasts, of what stands behind `sleep(`: the constant itself, with or without a path, or so many of
/// a unit of time.
fn constant_slept(slept: &str) -> Option<&str> {
    let slept = slept.trim_start();
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let is_unit = |(unit, _): &(&str, &str)| unit.contains("Duration::from_") && unit.chars().all(is_of_path);
    let of_unit = slept.split_once('(').filter(is_unit);
    let (said, end) = of_unit.map_or((slept, ")"), |(_, number)| (number.trim_start(), "))"));
    let (path, behind) = said.split_at(said.find(|c: char| !is_of_path(c))?);
    let behind = behind.chars().filter(|c| *c != ',' && !c.is_whitespace());
    let name = path.rsplit(':').next().unwrap_or(path);
    let is_constant = name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| matches!(c, 'A'..='Z' | '0'..='9' | '_'));
    (is_constant && behind.take(end.len()).eq(end.chars())).then_some(name)
}

#[test]
fn a_pause_that_a_constant_says_is_found_in_every_form() {
    for slept in [
        "PAUSE_MS).await;",
        "limits::PAUSE_MS).await;",
        "Self::PAUSE_MS) => {",
        "Duration::from_millis(PAUSE_MS)).await;",
        "std::time::Duration::from_secs(crate::limits::PAUSE_MS)).await;",
        "\n                Duration::from_millis(PAUSE_MS),\n            )",
    ] {
        assert_eq!(constant_slept(slept), Some("PAUSE_MS"), "{slept}");
    }
    for slept in [
        "pause).await;",
        "self.pause).await;",
        "jittered(PAUSE_MS)).await;",
        "jittered(Duration::from_millis(PAUSE_MS))).await;",
        "PAUSE_MS.mul_f64(jitter)).await;",
        "Duration::from_millis(PAUSE_MS).mul_f64(jitter)).await;",
        "Duration::from_millis(PAUSE_MS) + jitter).await;",
        "PAUSE_MS - begun.elapsed()).await;",
        "Duration::from_millis(pause_ms)).await;",
        "Duration::from_millis(20)).await;",
    ] {
        assert_eq!(constant_slept(slept), None, "{slept}");
    }
}

/// Instances that wait for the same ledger or the same bus would come back to it in step.
#[test]
fn no_retry_waits_equally_long_on_all_instances() {
    let root = root();
    for path in files(&root.join("crates"), &|path| has_extension(path, "rs")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(&root).unwrap().display().to_string();
        if path.contains("/tests/") || path.ends_with("/tests.rs") {
            continue;
        }
        for slept in text.split("sleep(").skip(1) {
            let Some(name) = constant_slept(slept) else { continue };
            let may =
                |(at, pause): &(&str, &str)| path.starts_with(at) && (pause.is_empty() || *pause == name);
            assert!(EQUAL_PAUSES.iter().any(may), "{path}: sleep(jittered({name}))");
        }
    }
}

#[test]
fn nothing_is_left_undone_or_left_out() {
    let words = ["#[ignore", "todo!", "unimplemented!"];
    let itself = Path::new(file!()).file_name().unwrap();
    for path in files(&root(), &|path| has_extension(path, "rs") && path.file_name() != Some(itself)) {
        let text = std::fs::read_to_string(&path).unwrap();
        for word in words {
            assert!(!text.contains(word), "{} has {word}", path.display());
        }
    }
}

#[test]
fn every_source_file_says_first_what_lives_there() {
    for path in files(&root(), &|path| has_extension(path, "rs")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("//! ") && first.len() > 12, "{}: {first:?}", path.display());
    }
}

/// What a link's fragment names: headings in small letters, without what is neither a letter nor a digit, `-` for spaces.
fn fragments(page: &str) -> BTreeSet<String> {
    let outside_blocks = page.split("\n```").step_by(2).flat_map(str::lines);
    let headings = outside_blocks
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    let is_kept = |letter: char| letter.is_alphanumeric() || " -_".contains(letter);
    headings
        .map(|heading| heading.to_lowercase().replace(|letter| !is_kept(letter), "").replace(' ', "-"))
        .collect()
}

#[test]
fn every_relative_link_of_the_pages_leads_to_a_file_and_its_heading() {
    let (mut links, mut headings) = (0, 0);
    for page in files(&root(), &|path| has_extension(path, "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for part in text.split("](").skip(1) {
            let target = part.split([')', ' ']).next().unwrap_or_default();
            let (target, fragment) = target.split_once('#').unwrap_or((target, ""));
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let file = if target.is_empty() { page.clone() } else { page.parent().unwrap().join(target) };
            assert!(file.exists(), "{} links to {target}, which is not there", page.display());
            if fragment.is_empty() || !has_extension(&file, "md") {
                continue;
            }
            headings += 1;
            let has = fragments(&std::fs::read_to_string(&file).unwrap());
            assert!(has.contains(fragment), "{} links to {target}#{fragment}: {has:?}", page.display());
        }
    }
    assert!(links > 0 && headings > 0, "the pages lead to each other");
}

#[test]
fn the_architecture_page_names_every_crate() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rooms = names_in(&root().join("crates"));
    for name in rooms.iter().map(String::as_str).chain(["loadtest", "model", "tests"]) {
        assert!(page.contains(&format!("`{name}`")), "ARCHITECTURE.md does not name `{name}`");
    }
}

#[test]
fn the_page_of_changes_and_the_licences_are_there() {
    for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", ".ci/run", "test"] {
        assert!(root().join(name).is_file(), "{name} is missing");
    }
}
