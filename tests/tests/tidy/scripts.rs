//! What the scripts promise whose work a release depends on.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;

use super::root;

/// Runs the check of advisories with a cargo-deny that ends so.
fn advisories(fetch: u8, check: u8, is_required: bool) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let deny = folder.path().join("cargo-deny");
    let script =
        format!("#!/bin/sh\ncase $1 in fetch) exit {fetch} ;; check) exit {check} ;; *) exit 99 ;; esac\n");
    std::fs::write(&deny, script).unwrap();
    std::fs::set_permissions(&deny, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(root().join("tests/advisories"));
    command.env("CARGO_DENY", &deny).env_remove("FENCEPOST_REQUIRE_ADVISORIES");
    if is_required {
        command.env("FENCEPOST_REQUIRE_ADVISORIES", "1");
    }
    command.output().unwrap()
}

#[test]
fn an_advisory_that_matches_fails_and_a_database_that_is_away_is_never_taken_for_good() {
    for is_required in [false, true] {
        assert_eq!(advisories(0, 0, is_required).status.code(), Some(0), "checked and good");
        assert_eq!(advisories(0, 1, is_required).status.code(), Some(1), "checked and bad");
    }
    for (is_required, code) in [(false, 75), (true, 1)] {
        let away = advisories(1, 0, is_required);
        assert_eq!(away.status.code(), Some(code), "required: {is_required}");
        assert!(String::from_utf8_lossy(&away.stderr).contains("NOT CHECKED"));
    }
}

#[test]
fn the_bill_of_materials_names_each_crate_of_the_binary_once_with_what_it_needs() {
    let said = Command::new(root().join("deploy/sbom")).env("CARGO_NET_OFFLINE", "true").output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let bill: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let components = bill["components"].as_array().unwrap();
    let all = || components.iter().chain([&bill["metadata"]["component"]]);
    let refs: BTreeSet<_> = all().map(|one| text(&one["bom-ref"])).collect();
    assert_eq!(refs.len(), components.len() + 1, "no reference stands for two");
    for one in all() {
        assert!(
            !text(&one["version"]).is_empty() && !text(&one["licenses"][0]["expression"]).is_empty(),
            "{one}"
        );
        let hash = one["hashes"][0]["content"].as_str().unwrap_or_default();
        // Our own crates are in this repository, and have none.
        assert_eq!(one["purl"].is_string(), hash.len() == 64, "{one}");
    }
    let of_others: BTreeSet<_> =
        all().filter(|one| one["purl"].is_string()).map(|one| text(&one["name"])).collect();
    for name in ["tokio", "sqlx-postgres", "libsqlite3-sys", "rustls"] {
        assert!(of_others.contains(name), "{name} is compiled in");
    }
    for name in ["proptest", "stateright", "tempfile"] {
        assert!(!of_others.contains(name), "{name} is for tests");
    }
    let edges = bill["dependencies"].as_array().unwrap();
    let from: BTreeSet<_> = edges.iter().map(|edge| text(&edge["ref"])).collect();
    assert_eq!(from, refs);
    let to: BTreeSet<_> =
        edges.iter().flat_map(|edge| edge["dependsOn"].as_array().unwrap()).map(text).collect();
    assert!(to.is_subset(&refs));
    let root_alone: Vec<_> = refs.difference(&to).collect();
    assert_eq!(root_alone.len(), 1, "something needs each crate but the daemon: {root_alone:?}");
}

#[test]
fn a_nodes_container_has_no_health_check_and_time_to_end() {
    for page in ["Dockerfile", "docs/operations.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let runs = text.split("docker run ").skip(1);
        let of_nodes: Vec<_> =
            runs.filter(|run| run.lines().take(3).any(|line| line.contains(" fencepost node "))).collect();
        assert_eq!(of_nodes.len(), 1, "{page}: {of_nodes:?}");
        assert!(of_nodes[0].starts_with("--no-healthcheck "), "{page}: {of_nodes:?}");
        let (_, options) = of_nodes[0].split_once("--stop-timeout ").unwrap_or_default();
        assert!(options.starts_with("50 "), "{page}: {of_nodes:?}");
        // Its URL is `https://`, and the daemon's certificate is of a private authority.
        let (_, ca) = of_nodes[0].split_once(" -e FENCEPOST_CA=").unwrap_or_default();
        let ca = ca.split_whitespace().next().unwrap_or_default();
        assert!(!ca.is_empty() && of_nodes[0].contains(&format!(":{ca}:ro ")), "{page}: {of_nodes:?}");
    }
}

/// The daemon's 30 s to drain, and 20 s in which it leaves the cluster.
#[test]
fn a_daemons_container_has_time_to_stop_in_order() {
    for page in ["Dockerfile", "docs/operations.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let runs = text.split("docker run ").skip(1);
        let of_daemons: Vec<_> = runs.filter(|run| run.starts_with("-p 7070:7070 ")).collect();
        assert_eq!(of_daemons.len(), 1, "{page}: {of_daemons:?}");
        let (_, options) = of_daemons[0].split_once("--stop-timeout ").unwrap_or_default();
        assert!(options.starts_with("50 "), "{page}: {of_daemons:?}");
    }
}

/// By default nginx leaves an instance out for 10 s once nobody has listened there, and so all of them where they are replaced
/// soon after each other.
#[test]
fn nginx_as_it_is_documented_leaves_no_instance_out() {
    let page = std::fs::read_to_string(root().join("docs/access.md")).unwrap();
    let between = |text: &str, begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin).unwrap();
        rest.split_once(end).unwrap().0.to_owned()
    };
    let block = between(&page, "```nginx\n", "```");
    let upstream = between(&block, "upstream fencepost {", "}");
    let servers: Vec<_> = upstream.lines().filter(|line| line.trim().starts_with("server ")).collect();
    assert_eq!(servers.len(), 2, "{block}");
    assert!(servers.iter().all(|server| server.ends_with(" max_fails=0;")), "{servers:?}");
    assert!(block.contains(" proxy_connect_timeout 2s;"), "a silent host is not waited for: {block}");
}

#[test]
fn the_unit_of_systemd_starts_at_boot_is_tried_again_and_has_time_to_stop() {
    let text = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let units: Vec<_> = text.split("```ini\n").skip(1).filter_map(|rest| rest.split_once("\n```")).collect();
    assert_eq!(units.len(), 1, "{units:?}");
    let unit: Vec<_> = units[0].0.lines().collect();
    for line in [
        "StartLimitIntervalSec=0",
        "Restart=always",
        "RestartPreventExitStatus=78",
        "TimeoutStopSec=50",
        "WantedBy=multi-user.target",
    ] {
        assert!(unit.contains(&line), "{line}: {unit:?}");
    }
}

#[test]
fn the_page_for_one_machine_gives_the_ledger_a_volume_and_daemon_and_nodes_their_time() {
    let page = std::fs::read_to_string(root().join("docs/one-machine.md")).unwrap();
    let (_, compose) = page.split_once("```yaml\n").unwrap();
    let (compose, _) = compose.split_once("```").unwrap();
    assert!(compose.contains("volumes: [\"ledger:/var/lib/fencepost\"]"), "{compose}");
    assert!(compose.contains("\nvolumes:\n  ledger: "), "the volume has a name: {compose}");
    assert_eq!(compose.matches("stop_grace_period: 50s").count(), 2, "{compose}");
    assert_eq!(compose.matches("healthcheck: {disable: true}").count(), 1, "the node's: {compose}");
    let (_, unit) = page.split_once("```ini\n").unwrap();
    let (unit, _) = unit.split_once("```").unwrap();
    for line in ["After=fencepost.service", "KillMode=mixed", "TimeoutStopSec=50"] {
        assert!(unit.lines().any(|found| found == line), "{line}: {unit}");
    }
}

#[test]
fn the_folders_that_the_image_makes_are_its_users_alone() {
    let text = std::fs::read_to_string(root().join("Dockerfile")).unwrap();
    let made: Vec<_> = text.lines().filter(|line| line.contains("install -d ")).collect();
    assert_eq!(made.len(), 1, "{made:?}");
    assert!(made[0].contains(" -m 0700 "), "{made:?}");
}

#[test]
fn the_image_overrides_no_file_that_names_a_ledger_or_an_address() {
    let text = std::fs::read_to_string(root().join("Dockerfile")).unwrap();
    let steps: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for variable in ["FENCEPOST_DATABASE_URL", "FENCEPOST_LISTEN", "FENCEPOST__"] {
        assert!(!steps.iter().any(|step| step.contains(variable)), "{variable} beats a mounted file");
    }
    let copied = steps.iter().find_map(|step| step.strip_prefix("COPY deploy/container.toml "));
    let named = steps.iter().find_map(|step| step.strip_prefix("ENV FENCEPOST_CONFIG="));
    assert!(copied.is_some() && copied == named, "{copied:?} {named:?}");
}
