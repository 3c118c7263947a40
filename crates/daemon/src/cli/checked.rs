//! Values that the daemon would refuse, checked on the command line by its rules.

use domain::{IdempotencyKey, Label};

/// A time, as it was written.
pub fn time(text: &str) -> Result<String, String> {
    api::time_in(text).map(|_| text.to_owned()).ok_or_else(|| api::TIME.to_owned())
}

/// A label of a node.
pub fn label(text: &str) -> Result<String, String> {
    Label::parse(text).map(|_| text.to_owned()).map_err(|invalid| invalid.expected)
}

/// An idempotency key.
pub fn key(text: &str) -> Result<String, String> {
    IdempotencyKey::parse(text).map(|_| text.to_owned()).map_err(|invalid| invalid.expected)
}

#[cfg(test)]
mod tests {
    use domain::limits::{IDEMPOTENCY_KEY_CHARS_MAX, LABEL_CHARS_MAX};

    use super::*;

    #[test]
    fn a_time_is_one_that_a_request_may_have() {
        for right in ["1970-01-01T00:00:00Z", "2026-11-24T09:00:00.5+01:00", "2255-06-05T23:47:34.740991Z"] {
            assert_eq!(time(right).as_deref(), Ok(right));
        }
        for wrong in
            ["", "zh", "tomorrow", "2026-11-24", "1969-12-31T23:59:59Z", "2255-06-05T23:47:34.740992Z"]
        {
            assert!(time(wrong).unwrap_err().starts_with("a time as in 20"), "{wrong}");
        }
    }

    #[test]
    fn labels_and_keys_are_as_the_daemon_takes_them() {
        type Reader = fn(&str) -> Result<String, String>;
        for (read, most) in [(label as Reader, LABEL_CHARS_MAX), (key, IDEMPOTENCY_KEY_CHARS_MAX)] {
            let long = "x".repeat(most);
            assert_eq!(read(&long).as_ref(), Ok(&long));
            for wrong in [String::new(), long + "x", "é".to_owned(), "a b".to_owned()] {
                let expected = format!("1 to {most} ");
                assert!(read(&wrong).unwrap_err().starts_with(&expected), "{wrong}");
            }
        }
    }
}
