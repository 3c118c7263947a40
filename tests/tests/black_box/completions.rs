//! The scripts of `fencepost completions`, in the shells that they are for: each shell loads its script without a word, and
//! completes commands and options with it.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use testkit::instance::fencepost;

/// An interactive zsh on a terminal of its own, which completes what is typed and runs it. `fencepost` is a function in it that
/// prints its words.
const ZSH: &str = r#"
zmodload zsh/zpty || exit 3
zpty inner zsh -f -i
await() {
    local chunk all=
    while zpty -r inner chunk; do
        all+=$chunk
        [[ $all == *"$1"* ]] && return
    done
    print -r -- "no $1 in: $all"
    exit 4
}
typed() {
    zpty -w -n inner "$1"$'\n'
    await "RAN <$2>"
}
zpty -w inner "PROMPT='>'; autoload -U compinit; compinit -u -D; source $SCRIPT && print LOA''DED"
await LOADED
zpty -w inner "(( \$+functions[_fencepost] )) && print DEF''INED AS \$_comps[fencepost]"
await 'DEFINED AS _fencepost'
zpty -w inner 'fencepost() { print -r -- "RAN <$*>"; }; print RE''ADY'
await READY
typed $'fencepost jo\t' 'job'
typed $'fencepost job wa\t--at\t' 'job wait --at-most'
typed $'fencepost submit --kin\tk --metad\t' 'submit --kind=k --metadata'
typed $'fencepost completions zs\t' 'completions zsh'
typed $'fencepost node --exe\tcat' 'node --exec cat'
zpty -d inner
print ALL DONE
"#;

/// Writes the script of a shell into a file of this directory.
fn script(dir: &TempDir, shell: &str) -> String {
    let output = fencepost().unwrap().args(["completions", shell]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let path = dir.path().join(shell);
    std::fs::write(&path, output.stdout).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs a program of the shell, at most as long as any test waits; it must succeed and complain about nothing.
fn run(shell: &str, options: &[&str], program: &str, script: &str) -> String {
    let limit = testkit::PATIENCE.as_secs().to_string();
    let mut command = Command::new("timeout");
    command.arg(limit).arg(shell).args(options).args(["-c", program]).env("SCRIPT", script);
    // Of the directory of the script, where nothing else is: no file completes anything.
    command.env("HOME", Path::new(script).parent().unwrap()).current_dir(Path::new(script).parent().unwrap());
    let Output { status, stdout, stderr } = command.env("TERM", "xterm").output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && stderr.is_empty(), "{shell}: {status}: {stdout}{stderr}");
    stdout.into_owned()
}

#[test]
fn bash_completes_commands_and_options() {
    let dir = TempDir::with_prefix("fencepost-bash-").unwrap();
    let script = script(&dir, "bash");
    let complete = |words: &str| {
        // What bash does on a tab: it calls the function that is registered for the command.
        let program = format!(
            r#"source "$SCRIPT"
            [[ $(complete -p fencepost) =~ -F\ ([^ ]+) ]] || exit 3
            COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE="${{COMP_WORDS[*]}}"
            COMP_POINT=${{#COMP_LINE}}
            "${{BASH_REMATCH[1]}}" fencepost "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
            printf '%s\n' "${{COMPREPLY[@]}}""#
        );
        let text = run("bash", &["--norc", "--noprofile"], &program, &script);
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("fencepost jo"), ["job"]);
    assert_eq!(complete("fencepost job wa"), ["wait"]);
    assert_eq!(complete("fencepost job wait --at"), ["--at-most"]);
    assert_eq!(complete("fencepost completions zs"), ["zsh"]);
    let offered = complete("fencepost submit --");
    for option in ["--url", "--wait", "--kind", "--json"] {
        assert!(offered.iter().any(|offered| offered == option), "{option}: {offered:?}");
    }
    let commands = complete("fencepost ''");
    assert!(commands.len() > 20 && commands.iter().any(|offered| offered == "serve"), "{commands:?}");
}

#[test]
fn zsh_completes_commands_and_options() {
    let dir = TempDir::with_prefix("fencepost-zsh-").unwrap();
    let script = script(&dir, "zsh");
    assert_eq!(run("zsh", &["-f"], ZSH, &script), "ALL DONE\n");
}

#[test]
fn fish_completes_commands_and_options() {
    let dir = TempDir::with_prefix("fencepost-fish-").unwrap();
    let script = script(&dir, "fish");
    let complete = |line: &str| {
        let text = run("fish", &["--no-config"], &format!("source $SCRIPT; complete -C '{line}'"), &script);
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(complete("fencepost jo"), ["job"]);
    assert_eq!(complete("fencepost job wait --at"), ["--at-most"]);
    assert!(complete("fencepost submit --").iter().any(|offered| offered == "--kind"));
}

#[test]
fn a_shell_that_nobody_has_is_refused() {
    let wrong = fencepost().unwrap().args(["completions", "cmd"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("possible values"), "{wrong:?}");
}
