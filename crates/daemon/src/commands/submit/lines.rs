//! The jobs of a file, one on each line, in batches that one request takes.

use std::io::{self, BufRead, Read as _};

use client::wire::Object;
use client::wire::jobs::JobRequest;
use client::wire::limits::{BATCH_JOBS_MAX, PAYLOAD_BYTES_MAX};

use crate::cli::jobs::JobOptions;
use crate::commands::json_file::without_mark;

/// The longest line, in bytes: a payload, and room for the other fields.
const LINE_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + (64 << 10);
/// A batch of more than one job is not longer than this, in bytes of its lines. It leaves half of the smallest body that a
/// daemon is usually configured to take for what the options add.
const BATCH_BYTES_MAX: usize = 512 << 10;

/// One job, and where it stands.
#[derive(Debug)]
pub struct Line {
    /// The line's number, counted from 1.
    pub number: u64,
    /// The job.
    pub job: JobRequest,
}

/// Jobs for one request. Either each has a name in its session, which is its idempotency key, or none has.
#[derive(Debug, Default)]
pub struct Batch {
    /// The jobs, in the order of their lines.
    pub lines: Vec<Line>,
    /// The bytes that were read up to here, blank lines included.
    pub read: u64,
}

impl Batch {
    /// Whether each of its jobs has a name that is its idempotency key.
    pub fn is_named(&self) -> bool {
        self.lines.first().is_some_and(|line| line.job.is_named())
    }

    /// Whether this job, whose line has so many bytes, can be part of it beside jobs of so many bytes.
    fn has_room_for(&self, line: &Line, length: usize, bytes: usize) -> bool {
        self.lines.is_empty() || bytes + length <= BATCH_BYTES_MAX && line.job.is_named() == self.is_named()
    }
}

/// Reads jobs.
pub struct Batches<'a, R> {
    from: R,
    options: &'a JobOptions,
    number: u64,
    read: u64,
    /// The first job of the next batch, and the length of its line.
    next: Option<(Line, usize)>,
}

impl<'a, R: BufRead> Batches<'a, R> {
    /// The jobs in this, each with what the options give.
    pub fn new(from: R, options: &'a JobOptions) -> Self {
        Self { from, options, number: 0, read: 0, next: None }
    }

    /// The next jobs; none at the end.
    ///
    /// # Errors
    /// What is wrong with a line, with its number. The jobs of the lines before it that no batch has yet are lost.
    pub fn next(&mut self) -> Result<Batch, String> {
        let mut batch = Batch::default();
        let mut bytes = 0;
        while batch.lines.len() < BATCH_JOBS_MAX {
            let line = match self.next.take() {
                Some(line) => Some(line),
                None => self.line()?,
            };
            let Some((line, length)) = line else { break };
            if !batch.has_room_for(&line, length, bytes) {
                self.next = Some((line, length));
                break;
            }
            bytes += length;
            batch.lines.push(line);
        }
        batch.read = self.read;
        Ok(batch)
    }

    /// Whether another job follows, or a line that is none. What is not read yet is read up to there.
    pub fn has_more(&mut self) -> bool {
        if self.next.is_none() {
            self.next = match self.line() {
                Ok(line) => line,
                Err(_) => return true,
            };
        }
        self.next.is_some()
    }

    /// The next line that is not blank, and its length.
    fn line(&mut self) -> Result<Option<(Line, usize)>, String> {
        loop {
            let mut bytes = Vec::new();
            let read = self.from.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes);
            let length = read.map_err(|error: io::Error| error.to_string())?;
            if length == 0 {
                return Ok(None);
            }
            self.number += 1;
            self.read += length as u64;
            let number = self.number;
            if length > LINE_BYTES_MAX {
                return Err(format!("line {number} has more than {LINE_BYTES_MAX} bytes"));
            }
            let line = if number == 1 { without_mark(&bytes) } else { bytes.as_slice() };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Object(mut job): Object<JobRequest> = serde_json::from_slice(line).map_err(|error| {
                // The parser's own line is always the first.
                let text = error.to_string();
                let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
                let how = if error.is_syntax() || error.is_eof() { "it is not JSON: " } else { "" };
                format!("line {number}, column {}: {how}{what}", error.column())
            })?;
            self.options.complete(&mut job);
            return Ok(Some((Line { number, job }, length)));
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        job: JobOptions,
        #[arg(long)]
        file: Option<String>,
    }

    fn batches(text: &str) -> Result<Vec<Vec<u64>>, String> {
        let options = Options::parse_from(["x", "--tenant", "t"]);
        assert_eq!(options.file, None);
        let mut batches = Batches::new(text.as_bytes(), &options.job);
        let mut numbers = Vec::new();
        loop {
            let batch = batches.next()?;
            if batch.lines.is_empty() {
                assert_eq!(batch.read, text.len() as u64);
                return Ok(numbers);
            }
            assert!(batch.lines.iter().all(|line| line.job.tenant.as_deref() == Some("t")));
            numbers.push(batch.lines.iter().map(|line| line.number).collect());
        }
    }

    #[test]
    fn blank_lines_are_passed_over_and_lines_keep_their_numbers() {
        assert_eq!(batches("").unwrap(), Vec::<Vec<u64>>::new());
        assert_eq!(batches("\n{\"payload\":1}\n  \r\n{\"payload\":2}").unwrap(), [[2, 4]]);
    }

    #[test]
    fn a_byte_order_mark_at_the_beginning_does_not_count() {
        assert_eq!(batches("\u{feff}{\"payload\":1}\n{\"payload\":2}").unwrap(), [[1, 2]]);
        assert_eq!(batches("\u{feff}\n{\"payload\":1}").unwrap(), [[2]]);
        let wrong = batches("{\"payload\":1}\n\u{feff}{\"payload\":2}").unwrap_err();
        assert!(wrong.starts_with("line 2, column 1: it is not JSON"), "{wrong}");
    }

    #[test]
    fn a_batch_is_bounded_in_jobs_and_in_bytes() {
        let many = "{\"payload\":1}\n".repeat(2_001);
        let sizes: Vec<_> = batches(&many).unwrap().iter().map(Vec::len).collect();
        assert_eq!(sizes, [1_000, 1_000, 1]);
        let half = format!("{{\"payload\":\"{}\"}}\n", "x".repeat(BATCH_BYTES_MAX / 2));
        let large = format!("{{\"payload\":\"{}\"}}\n", "x".repeat(PAYLOAD_BYTES_MAX - 2));
        assert_eq!(batches(&format!("{half}{half}{large}")).unwrap(), [[1], [2], [3]]);
    }

    #[test]
    fn whether_more_follows_is_known_without_taking_it() {
        let options = Options::parse_from(["x"]).job;
        let text = "{\"payload\":1}\n".repeat(BATCH_JOBS_MAX + 1);
        let mut batches = Batches::new(text.as_bytes(), &options);
        assert_eq!(batches.next().unwrap().lines.len(), BATCH_JOBS_MAX);
        assert!(batches.has_more() && batches.has_more());
        assert_eq!(batches.next().unwrap().lines[0].number, BATCH_JOBS_MAX as u64 + 1);
        assert!(!batches.has_more());
        let mut batches = Batches::new(&b"\nnope"[..], &options);
        assert!(batches.has_more(), "what is wrong follows, too");
    }

    #[test]
    fn jobs_that_have_a_name_of_their_own_share_a_batch_with_no_others() {
        let job = |fields: &str| format!("{{\"payload\":1{fields}}}\n");
        let (named, plain) = (job(",\"session\":\"s\",\"ref\":\"r\""), job(",\"session\":\"s\""));
        assert_eq!(
            batches(&format!("{plain}{named}{named}{plain}")).unwrap(),
            [vec![1], vec![2, 3], vec![4]]
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_the_line() {
        for (text, says) in [
            ("{\"payload\":1}\n{\"payload\":}\n", "line 2, column 12: it is not JSON: expected value"),
            ("{\"payload\":1,\"tenent\":\"a\"}\n", "line 1, column 21: unknown field `tenent`"),
            ("\n{}\n", "line 2, column 2: missing field `payload`"),
            ("\nhello\n", "line 2, column 1: it is not JSON: expected value"),
            ("nope\n", "line 1, column 2: it is not JSON: expected ident"),
            (" [{\"payload\":1}]\n", "line 1, column 1: invalid type: sequence, expected an object"),
            ("{\"payload\":1} {\"payload\":2}\n", "line 1, column 15: it is not JSON: trailing characters"),
        ] {
            let wrong = batches(text).unwrap_err();
            assert!(wrong.starts_with(says), "{wrong}");
        }
        let long = format!("{{\"payload\":\"{}\"}}", "x".repeat(LINE_BYTES_MAX));
        assert!(batches(&long).unwrap_err().starts_with("line 1 has more than"));
    }
}
