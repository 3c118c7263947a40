//! A JSON value that is passed on unparsed: a job's payload, a node's output.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// Any JSON value, kept as the text that it came as: numbers keep their digits, objects the order of their
/// keys. Cheap to clone.
///
/// The text is known to be JSON, but its reader may still refuse it: it may be nested too deeply, or repeat a
/// key.
#[derive(Clone, ToSchema)]
#[schema(value_type = serde_json::Value)]
pub struct Json(Arc<RawValue>);

impl Json {
    /// Checks that a text is JSON. Blanks around the value are dropped.
    ///
    /// # Errors
    /// The reader's own, with the place.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// Writes a value down.
    ///
    /// # Errors
    /// The writer's own, for values that JSON has no form for, such as maps with keys that are no texts.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Self> {
        serde_json::value::to_raw_value(value).map(|raw| Self(raw.into()))
    }

    /// `null`.
    #[must_use]
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned().into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Reads the value.
    ///
    /// # Errors
    /// The reader's own, when it is not of that shape.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_str(self.0.get())
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The same text, so the same value. Two texts may still mean the same.
impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Json {}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(from).map(|raw| Self(raw.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_as_it_was_written() {
        let text = r#"{ "b":1.0,"a":123456789012345678901234567890, "b":[null] }"#;
        let json = Json::parse(&format!(" {text}\n")).unwrap();
        assert_eq!(json.as_str(), text);
        assert_eq!(serde_json::to_string(&json).unwrap(), text);
        assert_eq!(Json::of(&[1, 2]).unwrap().as_str(), "[1,2]");
        assert_eq!(Json::null().as_str(), "null");
        assert_eq!(json.clone(), json);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for bad in ["", "{", "nul", "1 2", "{'a':1}", "\"\u{1}\"", "[1,]"] {
            assert!(Json::parse(bad).is_err(), "{bad:?}");
        }
    }
}
