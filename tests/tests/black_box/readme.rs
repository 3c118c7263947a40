//! Every line of the README's blocks is executed, and answers what the README shows.
//!
//! A block `sh` is typed into one shell, one after the other. A block `sh background` is one command for a terminal of its
//! own, which runs until the end. The block `text` below a block shows all that it printed; where the block has `-w`, which
//! on a terminal draws over what it drew before, the last that it printed. Ids, times and lengths of time differ, and so do
//! the numbers of blanks between columns.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use testkit::instance::binary;
use testkit::ports;

/// Where the README's daemon listens.
const ADDRESS: &str = "localhost:7070";
/// How the README starts the daemon: without a built binary.
const START: &str = "cargo run --release -- serve";
/// Before what each block prints.
const MARK: &str = "@@@ block ";

struct Block {
    /// The line of the README at which it begins.
    line: usize,
    info: String,
    text: String,
    /// What the README shows below it.
    answer: Option<String>,
}

fn blocks(readme: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = readme.lines().enumerate();
    while let Some((line, begin)) = lines.next() {
        let Some(info) = begin.trim_start().strip_prefix("```") else { continue };
        let mut text = String::new();
        for (_, line) in lines.by_ref().take_while(|(_, line)| line.trim() != "```") {
            writeln!(text, "{line}").unwrap();
        }
        if info == "text" {
            let of = blocks.last_mut().expect("an answer has its block above");
            assert!(of.answer.replace(text).is_none(), "line {line}: two answers to one block");
            continue;
        }
        assert!(["sh", "sh background"].contains(&info), "line {line}: nobody executes a block {info:?}");
        blocks.push(Block { line: line + 1, info: info.to_owned(), text, answer: None });
    }
    blocks
}

/// The value of an option in a command.
fn option<'c>(command: &'c str, name: &str) -> Option<&'c str> {
    command.split_whitespace().skip_while(|word| *word != name).nth(1)
}

/// One script of all blocks.
fn script(blocks: &[Block], listen: &str) -> String {
    let mut script = "trap 'kill $(jobs -p); wait' EXIT\nexec 2>&1\n".to_owned();
    for (number, block) in blocks.iter().enumerate() {
        let text = block.text.replace(ADDRESS, listen);
        writeln!(script, "echo '{MARK}{number}'").unwrap();
        if block.info == "sh" {
            script += &text;
            continue;
        }
        let command = text.trim();
        let ready = if command == START {
            "fencepost health".to_owned()
        } else {
            let node = option(command, "--node-id");
            format!("fencepost nodes show {}", node.expect("a node of the README has a name"))
        };
        let serve = format!("env -u FENCEPOST_URL fencepost serve --listen {listen}");
        let command = command.replace(START, &serve);
        writeln!(script, "{command} > background.{number} 2>&1 &").unwrap();
        writeln!(script, "until {ready} > ready 2>&1; do kill -0 $! || {{ cat background.{number}; break; }}; sleep 0.05; done")
            .unwrap();
    }
    script
}

/// The text with its ids, times and lengths made equal.
fn equal(text: &str) -> String {
    let mut equal = String::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let word = rest
            .find(|of: char| !of.is_ascii_alphanumeric() && !['_', '-', '.'].contains(&of))
            .map_or(rest, |end| &rest[..end]);
        if let Some(time) = time(rest) {
            equal += "TIME";
            rest = &rest[time..];
        } else if word.is_empty() {
            if first != ' ' || !equal.ends_with(' ') {
                equal.push(first);
            }
            rest = &rest[first.len_utf8()..];
        } else {
            rest = &rest[word.len()..];
            if is_id(word) {
                equal += "ID";
                // Which of an instance's lanes.
                if let Some(lane) = rest.strip_prefix('#') {
                    rest = lane.trim_start_matches(|of: char| of.is_ascii_digit());
                }
            } else {
                equal += if is_length(word, &equal, rest) { "LENGTH" } else { word };
            }
        }
    }
    // It is a matter of milliseconds whether the acknowledgement of a short attempt is recorded before its end, and whether a
    // task that is retried runs already when that is answered.
    let equal = equal.replace("task ID is RUNNING in run", "task ID is PENDING in run");
    let lines = equal.lines().map(|line| if line == "running TIME" { "running -" } else { line.trim_end() });
    lines.map(|line| line.to_owned() + "\n").collect()
}

/// The length of the time at the beginning, in bytes.
fn time(text: &str) -> Option<usize> {
    let shape = "dddd-dd-ddTdd:dd:dd";
    let bytes = text.as_bytes();
    let fits = |(at, of): (usize, u8)| {
        bytes.get(at).is_some_and(|it| if of == b'd' { it.is_ascii_digit() } else { *it == of })
    };
    let rest = shape.bytes().enumerate().all(fits).then(|| &bytes[shape.len()..])?;
    let end = rest.iter().position(|it| *it != b'.' && !it.is_ascii_digit())?;
    (rest[end] == b'Z').then_some(shape.len() + end + 1)
}

/// Whether it is made anew each time: an id in hexadecimal digits, an instance, or a large number.
fn is_id(word: &str) -> bool {
    let is_hex = |text: &str| text.chars().all(|of| of.is_ascii_hexdigit());
    let is_instance = word.rsplit_once('-').is_some_and(|(_, end)| end.len() == 32 && is_hex(end));
    let is_number = word.len() >= 15 && word.chars().all(|of| of.is_ascii_digit());
    is_number || is_instance || word.len() >= 32 && is_hex(&word.replace('-', ""))
}

/// Whether the number is a length of time, by what is around it.
fn is_length(word: &str, before: &str, behind: &str) -> bool {
    let is_unit = [" ms", " s", " min", " µs"].iter().any(|unit| {
        behind.strip_prefix(unit).is_some_and(|rest| !rest.starts_with(|of: char| of.is_alphanumeric()))
    });
    word.parse::<f64>().is_ok() && (is_unit || before.ends_with("_ms\":") || before.ends_with("_ms="))
}

#[test]
fn what_differs_from_run_to_run_is_made_equal_and_nothing_else() {
    let text = "job 0199b0c4-ffff-7abc-8def-000000000000 at 2026-11-25T02:19:00.123456Z  took 12.5 ms, 3 s";
    assert_eq!(equal(text), "job ID at TIME took LENGTH ms, LENGTH s\n");
    let text = "{\"owner\":\"desk-01a210818d9e77e39df81706fbd2b844\",\"lane\":\"instance:desk-01a210818d9e77e39df81706fbd2b844#1\",\"held_for_ms\":60000,\"ids\":[\"1541815603606036480\"]}";
    assert_eq!(
        equal(text),
        "{\"owner\":\"ID\",\"lane\":\"instance:ID\",\"held_for_ms\":LENGTH,\"ids\":[\"ID\"]}\n"
    );
    for kept in ["1 of 3 slots\n", "2026-11-25T02:19 local\n", "eip155:1:0xab 1.5 x\n"] {
        assert_eq!(equal(kept), kept);
    }
}

#[test]
fn the_index_of_the_documents_has_every_page() {
    let docs = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"));
    let index = std::fs::read_to_string(docs.join("README.md")).unwrap();
    for folder in ["", "design/"] {
        for entry in std::fs::read_dir(docs.join(folder)).unwrap() {
            let name = format!("{folder}{}", entry.unwrap().file_name().into_string().unwrap());
            let is_page = name.ends_with(".md") && name != "README.md";
            assert!(
                !is_page || index.contains(&format!("| [{name}]({name}) |")),
                "docs/README.md does not name {name}"
            );
        }
    }
}

fn readme() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap()
}

/// What a script of blocks prints, in a directory of its own.
fn typed(blocks: &[Block]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let binary = binary().unwrap();
    let listen = format!("127.0.0.1:{}", ports::free().unwrap());
    // It ends all of its processes, which share a process group, if they last too long.
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "120", "bash", "-c", &script(blocks, &listen)]);
    for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("FENCEPOST")) {
        command.env_remove(key);
    }
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", binary.parent().unwrap().display()));
    command.env("FENCEPOST_URL", format!("http://{listen}"));
    let output = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_of_the_readme_answers_what_the_readme_shows() {
    let readme = readme();
    let blocks = blocks(&readme);
    assert!(blocks.len() > 10 && blocks.iter().any(|block| block.text.trim() == START));
    let said = typed(&blocks);
    let mut answers = said.split(MARK).skip(1);
    let mut wrong = String::new();
    for block in &blocks {
        let answer =
            answers.next().and_then(|answer| answer.split_once('\n')).map_or("", |(_, answer)| answer);
        let (shown, got) = (equal(block.answer.as_deref().unwrap_or_default()), equal(answer));
        let is_right = match block.text.contains(" -w") {
            true => !shown.is_empty() && got.ends_with(&shown),
            false => got == shown,
        };
        if !is_right {
            writeln!(
                wrong,
                "README.md, line {}: {}--- answers\n{answer}--- compared\n{got}--- with\n{shown}",
                block.line, block.text
            )
            .unwrap();
        }
    }
    assert!(wrong.is_empty() && answers.next().is_none(), "{wrong}");
}

#[test]
fn the_nonce_of_a_sender_that_follows_the_readme_and_crashes_before_it_settles_is_granted_to_nobody() {
    const SIGNER: &str = "eip155:1:0xab";
    let mut blocks = blocks(&readme());
    blocks.retain(|block| block.text.trim() == START || block.text.contains("nonce settle"));
    let [_, recipe] = &mut blocks[..] else { panic!("the README has one daemon and one recipe") };
    // It has sent the transaction when it crashes.
    let before: Vec<_> = recipe.text.lines().take_while(|line| !line.starts_with("hold=")).collect();
    let before = before.join("\n").replace("nonce grant", "nonce grant --hold-ms 1");
    assert!(before.contains(&format!("--hold-ms 1 {SIGNER}")), "{before}");
    recipe.text = format!(
        "{before}\nwhile fencepost nonce show {SIGNER} 0 | grep -q HELD; do sleep 0.05; done\n\
         fencepost nonce show {SIGNER} 0\nfencepost nonce grant {SIGNER} --key another-order --json\n"
    );
    let said = typed(&blocks);
    // The transaction is mined for good before the hold that the policy gives expires.
    let lasts = said.lines().any(|line| line.split_whitespace().eq(["hold", "60", "min"]));
    assert!(lasts, "{said}");
    let granted = said.lines().next_back().unwrap_or_default();
    let granted: serde_json::Value =
        serde_json::from_str(granted).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(granted["grants"][0]["nonce"], 1, "{said}");
}
