//! Files, most of them of JSON, that a command reads whole, or standard input in their place.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::exit::{Exit, Failure};

/// The largest file that is read, in bytes. The daemon takes less in one request, but a file may have blanks.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The mark of the order of bytes, with which some editors begin a file. No JSON begins with it.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads a file, or standard input for `-`. A byte order mark at its beginning does not count.
///
/// # Errors
/// Wrong usage: the file cannot be read, is too long, or is not JSON of this shape, with the field, the line and the column.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let bytes = bytes(path)?;
    let mut reader = serde_json::Deserializer::from_slice(without_mark(&bytes));
    let value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| wrong(path, &told(&error.path().to_string(), error.inner())))?;
    reader.end().map_err(|error| wrong(path, &told(".", &error)))?;
    Ok(value)
}

/// All bytes of a file, or of standard input for `-`.
///
/// # Errors
/// Wrong usage: the file cannot be read, or is too long.
pub fn bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes =
        if is_standard_input(path) { whole(io::stdin().lock()) } else { File::open(path).and_then(whole) };
    let bytes = bytes.map_err(|error| wrong(path, &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(path, &format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// The wrong usage of a file, for this reason.
pub fn wrong(path: &Path, why: &dyn fmt::Display) -> Failure {
    let name: &dyn fmt::Display = if is_standard_input(path) { &"standard input" } else { &path.display() };
    Failure::new(Exit::Usage, format!("{name}: {why}"))
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// The bytes of a file without a byte order mark at their beginning.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(MARK).unwrap_or(bytes)
}

/// What is wrong at this path, which is `.` for the whole.
fn told(path: &str, error: &serde_json::Error) -> String {
    if error.is_syntax() || error.is_eof() {
        format!("it is not JSON: {error}")
    } else if path == "." {
        error.to_string()
    } else {
        format!("{path}: {error}")
    }
}

/// All bytes, or one more than [`FILE_BYTES_MAX`].
fn whole(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use client::wire::Object;
    use client::wire::plans::{PlanRequest, StageRequest};

    use super::*;

    fn refusal<T: DeserializeOwned + fmt::Debug>(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        std::fs::write(&path, text).unwrap();
        let failure = read::<T>(&path).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        let prefix = format!("{}: ", path.display());
        failure.message.strip_prefix(&prefix).expect("the file is named").to_owned()
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_line_and_column() {
        for (text, says) in [
            ("nope", "it is not JSON: expected ident at line 1 column 2"),
            ("{\n  \"tasks\": [,]\n}", "it is not JSON: expected value at line 2 column 13"),
            ("{\n  \"task\": []\n}", "line 2 column 8"),
            ("{\"max_concurrency\": 0,\n \"tasks\": []}", "line 1 column 21"),
            (
                "{\"tasks\": [\n  {\"tenant\": \"a\",\n   \"stages\": [{\"name\": \"s\", \"payload\": 1, \"pol\": 2}]}]}",
                "line 3 column 47",
            ),
            ("{\"tasks\": [{\"tenant\": \"\u{1}\"}]}", "line 1 column"),
            ("", "line 1 column 0"),
        ] {
            let message = refusal::<PlanRequest>(text);
            assert!(message.contains(says), "{text}: {message}");
        }
        let stage = r#"{"name": "s", "payload": 1, "timeout_ms": "1s"}"#;
        let message =
            refusal::<PlanRequest>(&format!(r#"{{"tasks": [{{"tenant": "a", "stages": [{stage}]}}]}}"#));
        assert!(message.starts_with("tasks[0].stages[0].timeout_ms: invalid "), "{message}");
        let message = refusal::<Vec<StageRequest>>(&format!("[{stage}]"));
        assert!(message.starts_with("[0].timeout_ms: invalid "), "{message}");
        let message = refusal::<Vec<StageRequest>>("[{\"name\": \"s\", \"payload\": 1}] 1");
        assert!(message.starts_with("it is not JSON: trailing characters at line 1 column "), "{message}");
        let array = "[\"a\", []]";
        assert!(
            refusal::<Object<PlanRequest>>(array)
                .starts_with("invalid type: sequence, expected an object at line 1")
        );
        assert!(refusal::<Vec<StageRequest>>("[\n{\"name\": 1}]").contains("line 2 column 10"));
    }

    #[test]
    fn a_byte_order_mark_at_the_beginning_does_not_count_and_elsewhere_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.json");
        std::fs::write(&path, "\u{feff}[1]").unwrap();
        assert_eq!(read::<Vec<u8>>(&path).unwrap(), [1]);
        for text in ["\u{feff}\u{feff}[1]", "[\u{feff}1]"] {
            assert!(refusal::<Vec<u8>>(text).starts_with("it is not JSON: "), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_wrong_usage() {
        let failure = read::<PlanRequest>(Path::new("/no/such/plan.json")).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.starts_with("/no/such/plan.json: "), "{}", failure.message);
    }
}
