//! `fencepost migrate` and `fencepost check-config`, wrong usage, and answers that cannot be written.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use testkit::PATIENCE;
use testkit::instance::{Ended, Setup, fencepost};
use testkit::ports;
use testkit::servers::Database;

async fn run(setup: Setup) -> Ended {
    setup.run_to_end(PATIENCE).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_makes_the_tables_and_can_be_repeated() {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    for _ in 0..2 {
        let ended = run(Setup::command("migrate").database(database.url())).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    let rows = database.query("select count(*) from lease").unwrap();
    assert_eq!(rows, [["0"]]);

    let dir = tempfile::tempdir().unwrap();
    let ended = run(Setup::command("migrate").dir(dir.path())).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(dir.path().join("fencepost-data/ledger.db").is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_on_a_server_that_is_not_there_ends_with_69() {
    let nobody = format!("postgres://127.0.0.1:{}/x", ports::free().unwrap());
    let setup = Setup::command("migrate").database(&nobody);
    let ended = run(setup.env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "300")).await;
    assert_eq!(ended.code, Some(69), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_config_takes_the_commented_example_and_refuses_nonsense() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/fencepost.toml");
    let ended = run(Setup::command("check-config").arg("--config").arg(example.to_str().unwrap())).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);

    let ended = run(Setup::command("check-config").env("FENCEPOST__LEASE__SIGNER_MS", "1")).await;
    assert_eq!(ended.code, Some(78), "{}", ended.stderr);
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert!(said.contains("lease.signer_ms") && said.contains("1000 to 300000"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_config_takes_the_file_of_the_page_for_one_machine() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/one-machine.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, text) = page.split_once("```toml\n").unwrap();
    let (text, _) = text.split_once("```").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fencepost.toml");
    std::fs::write(&file, text).unwrap();
    let ended = run(Setup::command("check-config").arg("--config").arg(file.to_str().unwrap())).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Wherever a command is started, it means the same files.
    for key in ["url = \"sqlite:/", "witness_file = \"/", "file = \"/"] {
        assert!(ended.stdout.lines().any(|line| line.starts_with(key)), "{key}: {}", ended.stdout);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_config_and_serve_give_one_answer_about_a_witness_file_that_cannot_be_read() {
    for command in ["check-config", "serve"] {
        let setup = Setup::command(command).env("FENCEPOST__LEDGER__WITNESS_FILE", "/");
        let ended = run(setup.env("FENCEPOST_LISTEN", "127.0.0.1:0")).await;
        assert_eq!(ended.code, Some(78), "{command}: {}", ended.stderr);
        assert!(ended.stderr.contains("ledger.witness_file / cannot be used"), "{command}: {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_ends_with_2() {
    for setup in [
        Setup::command("serve").arg("--no-such-option"),
        Setup::command("no-such-command"),
        Setup::command("nonce").arg("grant"),
    ] {
        let ended = run(setup).await;
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(!ended.stderr.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn help_before_a_command_is_its_help() {
    for words in [&[][..], &["nonce"], &["nonce", "grant"]] {
        let asked = words.iter().fold(Setup::command("help"), |setup, word| setup.arg(word));
        let mut shown = vec!["--help"];
        shown.splice(..0, words.iter().copied());
        let shown = shown[1..].iter().fold(Setup::command(shown[0]), |setup, word| setup.arg(word));
        let (asked, shown) = (run(asked).await, run(shown).await);
        assert_eq!((asked.code, &asked.stdout), (Some(0), &shown.stdout), "{words:?}");
        assert!(asked.stdout.contains("Usage: "), "{}", asked.stdout);
    }
    let (asked, shown) = (Setup::command("job").arg("help"), Setup::command("job").arg("--help"));
    let (asked, shown) = (run(asked).await, run(shown).await);
    assert_eq!((asked.code, asked.stdout), (Some(0), shown.stdout));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_variable_that_is_set_and_empty_counts_as_not_set() {
    let instance = Setup::basic().unwrap().start().await.unwrap();
    let empty = |with_url: bool| {
        let names =
            ["FENCEPOST_TOKEN", "FENCEPOST_CA", "FENCEPOST_CERT", "FENCEPOST_CERT_KEY", "FENCEPOST_URL"];
        let setup = names.iter().fold(Setup::command("health"), |setup, name| setup.env(name, ""));
        if with_url { setup.arg("--url").arg(instance.url()) } else { setup }
    };
    let ended = run(empty(true)).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Nobody knows what is at the usual address.
    let ended = run(empty(false)).await;
    assert!(ended.code != Some(2), "{}", ended.stderr);
}

#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let command = |words: &[&str], out: Stdio| {
        fencepost().unwrap().args(words).current_dir(dir.path()).stdout(out).output().unwrap()
    };
    let completions = &["completions", "bash"][..];
    assert_eq!(command(completions, Stdio::piped()).status.code(), Some(0));
    // The first of the others makes the ledger that the next ones need.
    for words in [completions, &["migrate"], &["backup", "copy.db"], &["recover", "--dry-run"]] {
        let full = command(words, File::create("/dev/full").unwrap().into());
        let said = String::from_utf8(full.stderr).unwrap();
        assert_eq!(
            (full.status.code(), said.contains("the answer could not be written")),
            (Some(74), true),
            "{words:?}: {said}"
        );
    }
    // A reader that goes has read enough.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(command(completions, writer.into()).status.code(), Some(0));
}
