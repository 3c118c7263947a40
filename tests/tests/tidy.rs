//! The repository itself: who may use whom, what lies where, and that its pages point to things that
//! exist. No process is started but `cargo metadata`.

#![expect(clippy::unwrap_used, reason = "all of this is test code, its helper functions too")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What each crate of ours may use, as `ARCHITECTURE.md` draws it. Arrows point one way.
const MAY_USE: [(&str, &[&str]); 12] = [
    ("domain", &[]),
    ("placement", &[]),
    ("wire", &[]),
    ("ledger", &["domain"]),
    ("bus", &["domain"]),
    ("cluster", &["domain", "placement", "ledger", "bus"]),
    ("nodes", &["domain", "bus", "wire"]),
    ("actors", &["domain", "ledger", "bus", "cluster", "nodes"]),
    ("ids", &["domain", "ledger"]),
    ("client", &["placement", "wire"]),
    ("api", &["domain", "wire", "ledger", "bus", "cluster", "nodes", "actors", "ids", "client"]),
    ("daemon", &["domain", "wire", "ledger", "bus", "cluster", "nodes", "actors", "ids", "api", "client"]),
];

/// Crates from outside that only one room may name.
const ONLY_IN: [(&str, &str); 3] = [("sqlx", "ledger"), ("actix-web", "api"), ("redis", "bus")];

const FILE_LINES_MAX: usize = 800;

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
    // But for the client library, whose users its callers are.
    for (used, _) in &all["loadtest"] {
        assert!(
            used == "client" || !table.contains_key(used.as_str()),
            "the harness knows the daemon from outside only, not {used}"
        );
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
fn no_source_file_is_two_rooms_in_one() {
    for path in files(&root(), &|path| has_extension(path, "rs")) {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines", path.display());
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

#[test]
fn every_relative_link_of_the_pages_leads_somewhere() {
    let mut links = 0;
    for page in files(&root(), &|path| has_extension(path, "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for part in text.split("](").skip(1) {
            let target = part.split([')', ' ', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let file = page.parent().unwrap().join(target);
            assert!(file.exists(), "{} links to {target}, which is not there", page.display());
        }
    }
    assert!(links > 0, "the pages lead to each other");
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
