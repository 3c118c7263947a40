//! Lengths of time on the command line.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A length of time: a number and its unit.
pub fn length(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err("a number and ms, s, m or h, such as 90s".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "a whole number before the unit, such as 90s".to_owned())?;
    number.checked_mul(unit).map(Duration::from_millis).ok_or_else(|| "a shorter time".to_owned())
}

/// Milliseconds within these bounds: a number, or a length with its unit.
pub fn milliseconds(allowed: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let ms = text.parse().ok().or_else(|| u64::try_from(length(text).ok()?.as_millis()).ok());
        ms.filter(|ms| allowed.contains(ms)).ok_or_else(|| {
            let (least, most) = (allowed.start(), allowed.end());
            format!("{least} to {most} milliseconds, or a number and ms, s, m or h, such as 90s")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_a_number_and_a_unit() {
        let read = |text| length(text).map(|length| length.as_millis());
        assert_eq!(
            ["500ms", "90s", "5m", "2min", "1h"].map(read),
            [500, 90_000, 300_000, 120_000, 3_600_000].map(Ok)
        );
        for wrong in ["", "90", "s", "-1s", "1.5s", "1d", "99999999999999999999s", "9999999999999999h"] {
            assert!(length(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn milliseconds_may_have_a_unit() {
        let read = milliseconds(5..=60_000);
        for (text, ms) in [("5", 5), ("60000", 60_000), ("1m", 60_000), ("7ms", 7), ("60s", 60_000)] {
            assert_eq!(read(text), Ok(ms), "{text}");
        }
        for wrong in ["", "4", "60001", "61s", "1h", "-1", "1.5s", "s", "9999999999999999h"] {
            let says = "5 to 60000 milliseconds, or a number and ms, s, m or h, such as 90s";
            assert_eq!(read(wrong).unwrap_err(), says, "{wrong}");
        }
    }
}
