//! The frames of a WebSocket, as far as their headers tell: how long they are, where they end, and how many of them carry
//! nothing. Everything else is the decoder's.

use std::time::{Duration, Instant};

use crate::limits::{SMALL_FRAGMENT_BYTES, SOCKET_TRIFLES_MAX, SOCKET_TRIFLES_PER_SECOND};

/// Longest payload of a ping, a pong or a close, in bytes (RFC 6455, section 5.5).
const CONTROL_BYTES_MAX: u64 = 125;
/// Longest header of a frame, in bytes: two, a length of eight, and a mask of four.
const HEADER_BYTES_MAX: usize = 14;

/// The headers of the frames of a stream, and where they are.
pub struct Frames {
    bytes_max: u64,
    header: [u8; HEADER_BYTES_MAX],
    /// Bytes of the header that were read.
    read: usize,
    /// Bytes of the frame's payload that are still to come.
    left: u64,
    /// Bytes that the frames of the message have announced.
    message_bytes: u64,
    /// Whether frames of the message are still to come, or the rest of one.
    is_open: bool,
    /// When the first byte of the message arrived, or of the frame, if it is none of a message.
    begun: Option<Instant>,
    trifles: Trifles,
}

/// What is not allowed.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    /// Where in these bytes the header ends that says so.
    pub at: usize,
    /// What is wrong, in words fit for the sender.
    pub why: String,
    /// Whether that is the length of the message.
    pub is_too_long: bool,
}

impl Frames {
    /// Messages may have so many bytes.
    pub const fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            header: [0; HEADER_BYTES_MAX],
            read: 0,
            left: 0,
            message_bytes: 0,
            is_open: false,
            begun: None,
            trifles: Trifles::NONE,
        }
    }

    /// Bytes that the message has which is arriving, as far as its frames have announced them; 0 between messages.
    pub fn arriving(&self) -> usize {
        if self.is_open { usize::try_from(self.message_bytes).unwrap_or(usize::MAX) } else { 0 }
    }

    /// Since when something is arriving that is not complete.
    pub const fn begun(&self) -> Option<Instant> {
        self.begun
    }

    /// Reads the next bytes.
    ///
    /// # Errors
    /// The first header that announces too long a frame, a frame with which its message is too long, or one more frame that
    /// carries nothing than there may be.
    pub fn read(&mut self, bytes: &[u8], now: Instant) -> Result<(), Broken> {
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                let passed = self.left.min((bytes.len() - at) as u64);
                self.left -= passed;
                at += passed as usize;
                if self.left == 0 {
                    self.frame_ends();
                }
                continue;
            }
            self.begun.get_or_insert(now);
            self.header[self.read] = bytes[at];
            self.read += 1;
            at += 1;
            if self.read >= 2 && self.read == self.header_length() {
                self.read = 0;
                self.left = self.length();
                let judged = self.judge(now);
                let is_too_long = self.message_bytes > self.bytes_max;
                judged.map_err(|why| Broken { at, why, is_too_long })?;
                if self.left == 0 {
                    self.frame_ends();
                }
            }
        }
        Ok(())
    }

    fn header_length(&self) -> usize {
        let length = match self.header[1] & 0x7F {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if self.header[1] & 0x80 == 0 { 0 } else { 4 };
        2 + length + mask
    }

    fn length(&self) -> u64 {
        let header = &self.header;
        match header[1] & 0x7F {
            126 => u64::from(u16::from_be_bytes([header[2], header[3]])),
            127 => u64::from_be_bytes(header[2..10].try_into().expect("eight bytes")),
            short => u64::from(short),
        }
    }

    const fn operation(&self) -> u8 {
        self.header[0] & 0x0F
    }

    const fn is_control(&self) -> bool {
        self.operation() >= 8
    }

    /// Whether no further frame of the message follows.
    const fn is_final(&self) -> bool {
        self.header[0] & 0x80 != 0
    }

    fn judge(&mut self, now: Instant) -> Result<(), String> {
        let (length, max) = (self.left, self.bytes_max);
        let is_whole = self.operation() != 0 && self.is_final();
        let is_trifle = self.is_control() || length == 0 || (!is_whole && length < SMALL_FRAGMENT_BYTES);
        if is_trifle && !self.trifles.take(now) {
            return Err(format!(
                "more than {SOCKET_TRIFLES_PER_SECOND} pings, pongs, empty frames and small fragments a second"
            ));
        }
        if self.is_control() {
            let is_fit = length <= CONTROL_BYTES_MAX;
            return is_fit
                .then_some(())
                .ok_or_else(|| format!("a control frame may have {CONTROL_BYTES_MAX} bytes"));
        }
        if self.operation() != 0 {
            self.message_bytes = 0;
        }
        self.is_open = true;
        self.message_bytes = self.message_bytes.saturating_add(length);
        (self.message_bytes <= max).then_some(()).ok_or_else(|| format!("a message may have {max} bytes"))
    }

    const fn frame_ends(&mut self) {
        if !self.is_control() && self.is_final() {
            self.is_open = false;
        }
        if !self.is_open {
            self.begun = None;
        }
    }
}

/// How many frames that carry nothing may still come: [`SOCKET_TRIFLES_MAX`] at once, and
/// [`SOCKET_TRIFLES_PER_SECOND`] more with every second.
struct Trifles {
    left: u32,
    /// Up to when those that came with time are counted; `None` before the first.
    counted: Option<Instant>,
}

impl Trifles {
    const NONE: Self = Self { left: SOCKET_TRIFLES_MAX, counted: None };
    /// The time that brings one more.
    const EACH: Duration = Duration::from_millis(1_000 / SOCKET_TRIFLES_PER_SECOND as u64);

    fn take(&mut self, now: Instant) -> bool {
        let counted = self.counted.get_or_insert(now);
        let more = now.duration_since(*counted).as_millis() / Self::EACH.as_millis();
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        if more >= SOCKET_TRIFLES_MAX - self.left {
            (self.left, *counted) = (SOCKET_TRIFLES_MAX, now);
        } else {
            self.left += more;
            *counted += Self::EACH * more;
        }
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }
}

const _: () =
    assert!(1_000 % SOCKET_TRIFLES_PER_SECOND == 0, "one more comes every so many whole milliseconds");

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame's header as a client sends it.
    fn header(first: u8, length: u64) -> Vec<u8> {
        let mut header = vec![first];
        match length {
            0..=125 => header.push(0x80 | length as u8),
            126..=0xFFFF => {
                header.push(0x80 | 126);
                header.extend((length as u16).to_be_bytes());
            }
            _ => {
                header.push(0x80 | 127);
                header.extend(length.to_be_bytes());
            }
        }
        header.extend([1, 2, 3, 4]);
        header
    }

    fn frame(first: u8, length: u64) -> Vec<u8> {
        let mut frame = header(first, length);
        frame.resize(frame.len() + length as usize, 0xFF);
        frame
    }

    const MAX: u64 = 70_000;
    const TEXT: u8 = 0x81;
    const PART: u8 = 0x01;
    const MORE: u8 = 0x00;
    const LAST: u8 = 0x80;
    const PING: u8 = 0x89;

    #[test]
    fn a_frame_that_announces_too_much_is_found_by_its_header_however_it_is_cut() {
        let cases: [(Vec<Vec<u8>>, Option<&str>); 12] = [
            (vec![frame(TEXT, 0), frame(TEXT, 125), frame(TEXT, 126), frame(TEXT, MAX)], None),
            (vec![frame(TEXT, 3), header(TEXT, MAX + 1)], Some("a message")),
            (vec![header(TEXT, 1 << 30)], Some("a message")),
            (vec![header(TEXT, u64::MAX)], Some("a message")),
            (vec![frame(PART, MAX), frame(LAST, 0), frame(TEXT, MAX)], None),
            (vec![frame(PART, MAX), header(LAST, 1)], Some("a message")),
            (vec![frame(PART, MAX), frame(PING, 125), frame(MORE, 0), header(MORE, 1)], Some("a message")),
            (vec![frame(PART, 1), header(LAST, u64::MAX)], Some("a message")),
            (vec![frame(PART, MAX - 1), frame(MORE, 1), frame(LAST, 0), frame(PART, MAX)], None),
            (vec![frame(PING, 125), frame(PING, 0)], None),
            (vec![header(PING, 126)], Some("a control frame")),
            (vec![header(0x88, 1 << 40)], Some("a control frame")),
        ];
        for (frames, expected) in cases {
            let bytes = frames.concat();
            for size in [1, 2, 3, 7, 64, 4_096, bytes.len()] {
                let mut guard = Frames::new(MAX);
                let mut passed = 0;
                let broken = bytes.chunks(size).find_map(|chunk| {
                    let broken = guard.read(chunk, Instant::now()).err();
                    passed += broken.as_ref().map_or(chunk.len(), |broken| broken.at);
                    broken
                });
                match expected {
                    None => assert_eq!(broken, None),
                    Some(words) => {
                        let Broken { why, is_too_long, .. } = broken.expect("it is found");
                        assert!(why.starts_with(words), "{why}");
                        assert_eq!(is_too_long, words == "a message");
                    }
                }
                // A header that is too long is the last thing here.
                assert_eq!(passed, bytes.len());
            }
        }
    }

    fn read(frames: &mut Frames, bytes: &[u8], now: Instant) -> Option<String> {
        frames.read(bytes, now).err().map(|broken| broken.why)
    }

    #[test]
    fn a_flood_of_frames_that_carry_nothing_is_found_and_a_slow_stream_of_them_is_not() {
        let trifles = [
            ("pings", frame(PING, 0)),
            ("pongs", frame(0x8A, 4)),
            ("empty messages", frame(TEXT, 0)),
            ("empty fragments", frame(MORE, 0)),
            ("small fragments", frame(MORE, SMALL_FRAGMENT_BYTES - 1)),
        ];
        for (what, trifle) in trifles {
            let (mut frames, mut now) = (Frames::new(u64::MAX), Instant::now());
            for _ in 0..SOCKET_TRIFLES_MAX {
                assert_eq!(read(&mut frames, &trifle, now), None, "{what}");
            }
            let why = read(&mut frames, &trifle, now).expect(what);
            assert!(why.starts_with("more than 50 pings"), "{what}: {why}");
            for _ in 0..2 * SOCKET_TRIFLES_MAX {
                now += Duration::from_millis(20);
                assert_eq!(Frames::read(&mut frames, &[], now), Ok(()));
                assert!(frames.trifles.take(now), "{what}: one comes every 20 ms");
            }
            assert!(!frames.trifles.take(now));
            now += Duration::from_secs(3_600);
            assert_eq!((0..2 * SOCKET_TRIFLES_MAX).filter(|_| frames.trifles.take(now)).count(), 500);
        }
    }

    #[test]
    fn messages_and_large_fragments_are_no_trifles() {
        let (mut frames, now) = (Frames::new(u64::MAX), Instant::now());
        for _ in 0..3 * SOCKET_TRIFLES_MAX {
            assert_eq!(read(&mut frames, &frame(TEXT, 1), now), None);
        }
        for _ in 0..3 * SOCKET_TRIFLES_MAX {
            assert_eq!(read(&mut frames, &frame(MORE, SMALL_FRAGMENT_BYTES), now), None);
        }
    }

    #[test]
    fn what_arrives_counts_from_its_first_byte_to_the_end_of_its_message() {
        let (mut frames, now) = (Frames::new(MAX), Instant::now());
        let at = |frames: &Frames| (frames.arriving(), frames.begun().is_some());
        assert_eq!(at(&frames), (0, false));
        frames.read(&[TEXT], now).unwrap();
        assert_eq!(at(&frames), (0, true), "half a header");
        frames.read(&header(TEXT, 9)[1..], now).unwrap();
        assert_eq!(at(&frames), (9, true));
        frames.read(&[0; 8], now).unwrap();
        assert_eq!(at(&frames), (9, true));
        frames.read(&[0], now).unwrap();
        assert_eq!(at(&frames), (0, false));
        frames.read(&frame(PART, 300), now).unwrap();
        assert_eq!(at(&frames), (300, true));
        frames.read(&frame(PING, 3), now + Duration::from_secs(1)).unwrap();
        assert_eq!((at(&frames), frames.begun()), ((300, true), Some(now)), "a ping is none of its frames");
        frames.read(&frame(MORE, 300), now).unwrap();
        assert_eq!(at(&frames), (600, true));
        frames.read(&frame(LAST, 0), now).unwrap();
        assert_eq!(at(&frames), (0, false));
        frames.read(&frame(PING, 3), now).unwrap();
        assert_eq!(at(&frames), (0, false));
    }
}
