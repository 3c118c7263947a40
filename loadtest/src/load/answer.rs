//! What one answer says, read with as little work as can be: the generator shares its cores with what
//! it measures.

use serde::Deserialize;

/// A grant answer, borrowed from the answer's bytes.
#[derive(Debug, Deserialize)]
pub(super) struct Granted<'a> {
    pub fencing_token: i64,
    #[serde(borrow)]
    pub owner: &'a str,
    #[serde(borrow)]
    pub grants: Vec<Grant<'a>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Grant<'a> {
    pub nonce: u64,
    #[serde(borrow)]
    pub hold: &'a str,
    #[serde(borrow)]
    pub status: &'a str,
    pub held_for_ms: u64,
}

/// A refusal.
#[derive(Debug, Deserialize)]
pub(super) struct Problem {
    pub code: String,
    pub owner_url: Option<String>,
}

/// A hold's id as a number; holds are UUIDs in their usual form.
pub(super) fn hold_number(text: &str) -> Option<u128> {
    let dashes = [8, 13, 18, 23];
    if text.len() != 36 {
        return None;
    }
    text.bytes().enumerate().try_fold(0_u128, |number, (at, byte)| {
        if dashes.contains(&at) {
            return (byte == b'-').then_some(number);
        }
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// The other way round.
pub(super) fn hold_text(number: u128) -> String {
    let digits = format!("{number:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_a_number_and_back() {
        let text = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b";
        assert_eq!(hold_text(hold_number(text).unwrap()), text);
        for bad in [
            "",
            "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5",
            "0190A1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
            "0190a1b2xc3d4-7e5f-8a9b-0c1d2e3f4a5b",
        ] {
            assert_eq!(hold_number(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_answer_is_read_where_it_lies() {
        let body = br#"{"signer":"s","fencing_token":3,"owner":"a-1","grants":[{"nonce":7,"hold":"h","status":"HELD","held_until":"2026-01-01T00:00:00Z","held_for_ms":99}]}"#;
        let read: Granted<'_> = serde_json::from_slice(body).unwrap();
        assert_eq!((read.fencing_token, read.owner, read.grants[0].nonce), (3, "a-1", 7));
        assert_eq!(
            (read.grants[0].hold, read.grants[0].status, read.grants[0].held_for_ms),
            ("h", "HELD", 99)
        );
    }
}
