//! What a line of the shell is read as, and that the help names what the commands take.

use std::path::Path;

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::*;

fn parse(line: &str) -> Result<Command, ErrorKind> {
    Cli::try_parse_from(line.split(' ')).map(|cli| cli.command).map_err(|error| error.kind())
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

/// Each command and each option says what it is for.
#[test]
fn every_command_and_option_has_its_help() {
    fn look(command: &mut clap::Command, path: &str) {
        assert!(command.get_about().is_some(), "{path}");
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some(), "{path}: {}", arg.get_id());
        }
        assert!(!command.render_long_help().to_string().is_empty(), "{path}");
        for sub in command.get_subcommands_mut() {
            let path = format!("{path} {}", sub.get_name());
            look(sub, &path);
        }
    }
    let mut command = Cli::command();
    command.build();
    look(&mut command, "fencepost");
}

#[test]
fn serve_takes_the_contracts_options() {
    let line = "fencepost serve --config f.toml --listen 127.0.0.1:0 --advertise http://a --database-url sqlite:x \
                --redis-url redis://r --mode worker-queue --node-name n";
    let Ok(Command::Serve(serve)) = parse(line) else { panic!("{line}") };
    let sources = serve.configured.sources();
    assert_eq!(sources.file, Some("f.toml".into()));
    assert_eq!(sources.options.mode.as_deref(), Some("worker-queue"));
    assert!(parse("fencepost serve").is_ok());
    assert!(parse("fencepost migrate --database-url sqlite:x --config f").is_ok());
    assert!(parse("fencepost check-config --config f --json").is_ok());
}

#[test]
fn nonce_commands_read_their_arguments() {
    let Ok(Command::Nonce(Nonce::Grant { signer, count, hold_ms, key, remote })) =
        parse("fencepost nonce grant s --count 3 --hold-ms 10 --key k --url http://a --url http://b --json")
    else {
        panic!("grant")
    };
    assert_eq!((signer.as_str(), count, hold_ms, key.as_deref()), ("s", Some(3), Some(10), Some("k")));
    assert_eq!((remote.url.len(), remote.json), (2, true));
    let Ok(Command::Nonce(Nonce::Settle { outcome, nonce, .. })) =
        parse("fencepost nonce settle s 7 --hold h --outcome never_sent")
    else {
        panic!("settle")
    };
    assert_eq!((outcome, nonce), (Outcome::NeverSent, 7));
    let Ok(Command::Nonce(Nonce::List { status, .. })) = parse("fencepost nonce list s --status held") else {
        panic!("list")
    };
    assert_eq!(status, Some(Status::Held));
    let Ok(Command::Nonce(Nonce::Policy { max_in_flight, first_nonce, shared_keys, .. })) =
        parse("fencepost nonce policy s --max-in-flight none --shared-keys false")
    else {
        panic!("policy")
    };
    assert_eq!((max_in_flight, first_nonce, shared_keys), (Some(Window(None)), None, Some(false)));
    for line in [
        "nonce show s",
        "nonce show s 3",
        "nonce list",
        "nonce resolve s 3 --outcome consumed --tx-hash 0x",
        "nonce resolve s 3 --outcome never_sent -y",
        "nonce confirm s 3 -y",
        "nonce confirm -f signers.txt --json",
        "nonce confirm --file - -y",
        "lease list --kind signer --owner a --limit 5",
        "lease show signer:s",
        "cluster show",
        "stats --json",
        "health --ready",
        "id snowflake --count 10000 --json",
        "id segment order --count 2 --scrambled",
        "id sequence invoice",
        "id uuid --version 4",
        "id decode 9223372036854775807",
        "id segments --limit 5",
        "id sequences --name invoice --limit 5 -w",
        "id set-segment order --step 10 --start 5 --description text",
        "id set-sequence invoice --start 0 --increment 2",
        "node --exec cat",
        "node --url http://a --capacity 4 --label gpu --asr zh --exec cat -",
        "node --url http://a http://b --exec cat",
        "node --token-file f --drain-after-failures 10 --exec cat",
        "submit --priority -3 --route zh:en --require gpu --wait -",
        "submit --wait --at-most 90s x",
        "submit -f jobs.jsonl --tenant t --key k",
        "node -q --exec cat",
        "job list --state created --dead --tenant t --limit 5 -w",
        "job show j -w --json",
        "job wait j --at-most 500ms",
        "job cancel a b --dry-run --yes",
        "job retry a b --key k",
        "job retry a b --dry-run",
        "job retry --dead --tenant t --dry-run",
        "job retry --outcome succeeded --yes",
        "job events j --json",
        "job dismiss a b --dry-run",
        "job delete a b --dry-run --yes",
        "job bulk retry --dead --kind k --rate 10 --dry-run",
        "job bulk cancel --state created --before 2026-11-24T08:00:00Z --no-wait --yes",
        "job bulk delete --outcome failed --tenant t --key k",
        "job bulk dismiss --json",
        "job bulk list --limit 5 -w",
        "job bulk show b -w",
        "job bulk stop b",
        "session open --ordering results --idle-ms 1000 --pool p",
        "session list --open --limit 5 -w",
        "session list --closed --tenant acme",
        "session show s -w",
        "session close a b --dry-run -y",
        "nodes list -w",
        "nodes show n",
        "nodes drain a b --dry-run --yes",
        "nodes undrain a",
        "nodes undrain a b --dry-run",
        "nodes explain --require gpu --route zh:en --pool p",
        "pool show",
        "pool set -f pools.json --yes",
        "pool pause p --reason repair --for 10m --yes",
        "pool resume p",
        "top --url h:7070",
        "completions bash",
        "migrate --check",
        "recover --confirm --ids 2000000 --lead-ms 11000 --reason repair",
        "recover --unknown-signers-are-new --reason repair",
    ] {
        assert!(parse(&format!("fencepost {line}")).is_ok(), "{line}");
    }
}

#[test]
fn of_a_token_and_a_file_of_one_the_last_counts() {
    for (line, token, file) in [
        ("fencepost top --token t", Some("t"), None),
        ("fencepost top --token-file f", None, Some("f")),
        ("fencepost top --token t --token-file f", None, Some("f")),
        ("fencepost top --token-file f --token t", Some("t"), None),
    ] {
        let Ok(Command::Top(Top { remote: Remote { bearer, .. } })) = parse(line) else { panic!("{line}") };
        let expected = (token, file.map(Path::new));
        assert_eq!((bearer.token.as_deref(), bearer.token_file.as_deref()), expected, "{line}");
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    for line in [
        "serve --lisen x",
        "nonce grant",
        "nonce grant s --count 0",
        "nonce grant s --count 1001",
        "nonce settle s 7 --hold h",
        "nonce settle s 7 --hold h --outcome lost",
        "nonce settle s -1 --hold h --outcome unknown",
        "nonce list --status HELD",
        "nonce policy s",
        "nonce policy s --max-in-flight 0",
        "nonce policy s --shared-keys",
        "nonce policy s --shared-keys 1",
        "nonce resolve s 1 --outcome unknown",
        "nonce confirm",
        "nonce confirm s",
        "nonce confirm s -f signers.txt",
        "nonce confirm s 3 -f signers.txt",
        "lease show",
        "id snowflake --count 0",
        "id snowflake --count 10001",
        "id segment",
        "id uuid --version 1",
        "id decode 9223372036854775808",
        "id decode x",
        "id set-segment order --step 0",
        "id set-sequence invoice --increment 0",
        "node --url http://a",
        "node",
        "node --drain-after-failures 0 --exec cat",
        "stats all",
        "submit {} {}",
        "submit --route zh",
        "submit --priority 11",
        "submit --at-most 90s x",
        "submit --wait --at-most 90 x",
        "submit -f f x",
        "submit -f f --wait",
        "job",
        "job show",
        "job retry",
        "job retry a --dead",
        "job retry --dry-run",
        "job list --state gone",
        "session open --ordering any",
        "session close",
        "session list --open --closed",
        "job dismiss",
        "job delete",
        "job bulk",
        "job bulk delete --before tomorrow",
        "job bulk delete --kind k --key é",
        "audit list --since zh",
        "submit --run-at 8:00",
        "submit --require é",
        "session open --require a,b",
        "job bulk retry --rate 0",
        "job bulk retry --rate 10001",
        "job bulk retry --dry-run --no-wait",
        "job bulk show",
        "pool pause p",
        "pool pause p --reason r --for 10",
        "pool pause --reason r",
        "nodes drain",
        "pool set",
        "lease list --kind lane",
        "completions",
        "completions cmd.exe",
        "token new",
        "token new ",
        "token new a\tb",
        "recover --unknown-signers-are-new --ids 2000000",
        "recover --unknown-signers-are-new --lead-ms 11000",
        "recover --confirm --reason ",
        "recover --dry-run --reason repair",
        "submit --route zh:en:fr",
        "frobnicate",
    ] {
        let words = format!("fencepost {line}");
        let error = Cli::try_parse_from(words.split(' ')).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn a_recovery_without_an_option_names_those_of_which_it_needs_one() {
    let error = Cli::try_parse_from(["fencepost", "recover"]).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    assert!(text.contains("<--dry-run|--confirm|--unknown-signers-are-new>"), "{text}");
    for two in ["--confirm --dry-run", "--dry-run --unknown-signers-are-new"] {
        assert_eq!(
            parse(&format!("fencepost recover {two}")).unwrap_err(),
            ErrorKind::ArgumentConflict,
            "{two}"
        );
    }
}

#[test]
fn who_takes_an_outcome_for_a_state_is_told_of_the_option() {
    let error = Cli::try_parse_from("fencepost job list --state failed".split(' ')).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    assert!(text.contains("it is how a job ended; `--outcome failed` lists those"), "{text}");
    let error = Cli::try_parse_from("fencepost job list --state gone".split(' ')).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("CREATED") && !text.contains("dismissed"), "{text}");
}
