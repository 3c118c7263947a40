//! The scrambled form of an id: without the key it shows neither how many ids there are nor which one comes next. One
//! number cannot be both increasing and unguessable, so this is a second number.
//!
//! A keyed permutation of the numbers of 63 bits: FF1 of NIST SP 800-38G with AES-256, under which two ids never
//! have the same form, and each form leads back. Each tag has a permutation of its own.

use std::fmt;

use aes::Aes256;
use domain::limits::ID_NUMBER_MAX;
use domain::{Invalid, SegmentTag};
use fpe::ff1::{BinaryNumeralString, FF1};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Turns ids into their scrambled forms and back.
pub struct Scramble {
    cipher: FF1<Aes256>,
}

impl Scramble {
    /// Under this key, which every instance and every reader must share.
    #[must_use]
    pub fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self { cipher: FF1::new(key, 2).expect("two is a radix") }
    }

    /// Under a key of 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`Invalid`] for any other text, which is not repeated in it.
    pub fn from_hex(text: &str) -> Result<Self, Invalid> {
        let mut key = [0; KEY_BYTES];
        if text.len() != 2 * KEY_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Invalid { what: "key", expected: format!("{} hexadecimal digits", 2 * KEY_BYTES) });
        }
        for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).expect("they are ASCII");
            *byte = u8::from_str_radix(digits, 16).expect("they are hexadecimal");
        }
        Ok(Self::new(&key))
    }

    /// The scrambled form of an id of this tag.
    ///
    /// # Panics
    /// For a number of 64 bits, which no id has.
    #[must_use]
    pub fn hide(&self, tag: &SegmentTag, id: u64) -> u64 {
        walk(id, |number| self.cipher.encrypt(tag.as_str().as_bytes(), number))
    }

    /// The id whose scrambled form this is. Every number of 63 bits is one.
    ///
    /// # Panics
    /// For a number of 64 bits, which no form has.
    #[must_use]
    pub fn reveal(&self, tag: &SegmentTag, form: u64) -> u64 {
        walk(form, |number| self.cipher.decrypt(tag.as_str().as_bytes(), number))
    }
}

// By hand, so that no `{:?}` can show the key.
impl fmt::Debug for Scramble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scramble").finish_non_exhaustive()
    }
}

/// Walks the permutation of 64 bits from a number of 63 until it meets the next one: a permutation of those. Two
/// steps on average.
fn walk<E: fmt::Debug>(
    from: u64,
    step: impl Fn(&BinaryNumeralString) -> Result<BinaryNumeralString, E>,
) -> u64 {
    assert!(from <= ID_NUMBER_MAX, "ids have 63 bits");
    let mut number = from;
    loop {
        let bits = BinaryNumeralString::from_bytes_le(&number.to_le_bytes());
        let bytes = step(&bits).expect("eight bytes are a numeral string of radix two").to_bytes_le();
        number = u64::from_le_bytes(bytes.try_into().expect("it keeps its length"));
        if number <= ID_NUMBER_MAX {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn scramble(byte: u8) -> Scramble {
        Scramble::new(&[byte; KEY_BYTES])
    }

    fn tag(name: &str) -> SegmentTag {
        SegmentTag::parse(name).unwrap()
    }

    #[test]
    fn neighbours_are_scattered_and_none_meet() {
        let (scramble, tag) = (scramble(7), tag("order"));
        let forms: Vec<_> = (1..=20_000).map(|id| scramble.hide(&tag, id)).collect();
        assert_eq!(forms.iter().collect::<HashSet<_>>().len(), forms.len());
        let rising = forms.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((9_000..11_000).contains(&rising), "as often up as down: {rising}");
        let upper_half = forms.iter().filter(|form| **form > ID_NUMBER_MAX / 2).count();
        assert!((9_000..11_000).contains(&upper_half), "all of the range: {upper_half}");
    }

    #[test]
    fn another_key_or_tag_is_another_permutation() {
        let forms =
            [(7, "order"), (8, "order"), (7, "invoice")].map(|(key, name)| scramble(key).hide(&tag(name), 1));
        assert_eq!(HashSet::from(forms).len(), 3);
    }

    #[test]
    fn keys_are_read_from_hexadecimal_digits_and_nothing_else() {
        let read = Scramble::from_hex(&"07".repeat(KEY_BYTES)).unwrap();
        assert_eq!(read.hide(&tag("t"), 9), scramble(7).hide(&tag("t"), 9));
        for bad in ["", "07", &"0x".repeat(KEY_BYTES), &"ä".repeat(KEY_BYTES), &"+7".repeat(KEY_BYTES)] {
            let refusal = Scramble::from_hex(bad).unwrap_err().to_string();
            assert!(refusal.contains("64 hexadecimal digits"), "{refusal}");
        }
        assert_eq!(format!("{read:?}"), "Scramble { .. }", "no key is shown");
    }

    proptest! {
        #[test]
        fn every_form_leads_back_and_every_number_is_a_form(
            key: [u8; KEY_BYTES],
            id in prop_oneof![0..=ID_NUMBER_MAX, 0..1_000_u64, ID_NUMBER_MAX - 1_000..=ID_NUMBER_MAX],
        ) {
            let (scramble, tag) = (Scramble::new(&key), tag("order"));
            prop_assert_eq!(scramble.reveal(&tag, scramble.hide(&tag, id)), id);
            prop_assert_eq!(scramble.hide(&tag, scramble.reveal(&tag, id)), id);
        }
    }
}
