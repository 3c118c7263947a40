//! The place of a piece of work in a distributed trace, as the W3C's header `traceparent` writes it.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

/// The flags that have a meaning: sampled, and a random trace id.
const KNOWN_FLAGS: u8 = 0b11;

/// The span that others continue: which trace it belongs to, and whether the trace is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    /// The trace.
    pub trace_id: NonZeroU128,
    /// The span within the trace.
    pub span_id: NonZeroU64,
    /// The lowest bit says that the trace is recorded, the next one that its id is random.
    flags: u8,
}

impl TraceParent {
    /// A span, and the flags of its trace. Flags without a meaning are left out.
    #[must_use]
    pub const fn new(trace_id: NonZeroU128, span_id: NonZeroU64, flags: u8) -> Self {
        Self { trace_id, span_id, flags: flags & KNOWN_FLAGS }
    }

    /// Reads the header. `None` for anything that the W3C says to ignore. Of a version after `00` the fields of `00` count.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_written_so = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte) || byte == b'-')
        };
        // A later version may go on after a hyphen with other characters.
        let (known, rest) = text.split_at_checked("00-".len() + 32 + 1 + 16 + "-00".len())?;
        let mut fields = known.split('-');
        let mut field = |digits: usize| fields.next().filter(|field| field.len() == digits);
        let (version, trace_id, span_id, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let is_of_version = match version {
            "ff" => false,
            "00" => rest.is_empty(),
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        if !is_of_version || !is_written_so(known) {
            return None;
        }
        let trace_id = u128::from_str_radix(trace_id, 16).ok().and_then(NonZeroU128::new)?;
        let span_id = u64::from_str_radix(span_id, 16).ok().and_then(NonZeroU64::new)?;
        Some(Self::new(trace_id, span_id, u8::from_str_radix(flags, 16).ok()?))
    }

    /// The flags: see [`Self::new`].
    #[must_use]
    pub const fn flags(self) -> u8 {
        self.flags
    }
}

/// As the header, in version `00`: 55 characters.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_header_reads_back_what_it_prints() {
        for (flags, shown, known) in [("00", "00", 0), ("01", "01", 1), ("03", "03", 3), ("fd", "01", 1)] {
            let read = TraceParent::parse(&format!("00-{TRACE}-{SPAN}-{flags}")).unwrap();
            assert_eq!(read.to_string(), format!("00-{TRACE}-{SPAN}-{shown}"));
            assert_eq!((read.flags(), TraceParent::parse(&read.to_string())), (known, Some(read)));
        }
    }

    #[test]
    fn a_later_version_counts_as_far_as_it_is_known() {
        let known = format!("{TRACE}-{SPAN}-01");
        let expected = TraceParent::parse(&format!("00-{known}"));
        assert!(expected.is_some());
        for later in
            [format!("cc-{known}"), format!("cc-{known}-What the future brings"), format!("01-{known}-")]
        {
            assert_eq!(TraceParent::parse(&later), expected, "{later}");
        }
    }

    #[test]
    fn what_the_standard_says_to_ignore_is_ignored() {
        let (no_trace, no_span) = ("0".repeat(32), "0".repeat(16));
        for bad in [
            String::new(),
            "00".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("cc-{TRACE}-{SPAN}-01more"),
            format!("cc-{TRACE}-{SPAN}-01.more"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0A"),
            format!("00-{no_trace}-{SPAN}-01"),
            format!("00-{TRACE}-{no_span}-01"),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}_{SPAN}-01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-ü"),
            format!("00-{TRACE}-{}é-01", &SPAN[2..]),
            "-".repeat(55),
        ] {
            assert_eq!(TraceParent::parse(&bad), None, "{bad:?}");
        }
    }
}
