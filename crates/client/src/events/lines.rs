//! Server-sent events out of bytes, as they come.

/// What was read and is no whole event yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line that is not over.
    line: Vec<u8>,
    kind: String,
    data: Option<String>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) kind: String,
    pub(super) data: String,
}

/// What the bytes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Event(Whole),
    /// A line that is no event.
    Comment(String),
}

impl Lines {
    /// What is whole with these bytes, in its order.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Said> {
        let mut said = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line)).into_owned();
            said.extend(self.take(&line));
        }
        self.line.extend_from_slice(rest);
        said
    }

    /// How much is held back.
    pub(super) fn held(&self) -> usize {
        self.line.len() + self.data.as_ref().map_or(0, String::len)
    }

    fn take(&mut self, line: &str) -> Option<Said> {
        if line.is_empty() {
            let kind = std::mem::take(&mut self.kind);
            return self.data.take().map(|data| Said::Event(Whole { kind, data }));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => return Some(Said::Comment(value.to_owned())),
            "event" => value.clone_into(&mut self.kind),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            // `id` and what is not known.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, data: &str) -> Said {
        Said::Event(Whole { kind: kind.to_owned(), data: data.to_owned() })
    }

    #[test]
    fn events_are_whole_however_their_bytes_come() {
        let text = ": hello\n\nevent: job\nid: 1.RUNNING\ndata: {\"a\":\ndata:  \"ü\"}\n\nevent:x\r\ndata:1\r\n\r\nretry: 5\n\n";
        let whole = [Said::Comment("hello".to_owned()), event("job", "{\"a\":\n \"ü\"}"), event("x", "1")];
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let said: Vec<_> = text.as_bytes().chunks(size).flat_map(|bytes| lines.read(bytes)).collect();
            assert_eq!(said, whole, "in pieces of {size}");
            assert_eq!(lines.held(), 0);
        }
    }

    #[test]
    fn what_is_not_whole_is_held_back() {
        let mut lines = Lines::default();
        assert_eq!(lines.read(b"event: job\ndata: abc\ndata: d"), []);
        assert!(lines.held() >= 7);
        assert_eq!(lines.read(b"\n\n"), [event("job", "abc\nd")]);
    }
}
