//! Frames of the sockets: objects with a field `type`, which may stand anywhere in them.

use std::collections::VecDeque;

use serde::de::{Deserialize, DeserializeSeed, Error, IntoDeserializer, MapAccess};
use serde_json::value::RawValue;

/// Frames of one direction: an enum that travels as an object with a field `type`. It is written first, and read fastest
/// there: what stands before it is kept until it is found. (serde's own reader of such enums could not carry raw JSON.)
macro_rules! frames {
    ($(#[$meta:meta])* pub enum $name:ident as $kinds:ident { $($(#[$doc:meta])* $variant:ident($body:ty) = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        #[serde(tag = "type")]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant($body),)+
        }

        #[derive(Clone, Copy)]
        enum $kinds { $($variant,)+ }

        impl $kinds {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant),)+];
        }

        impl<'de> serde::Deserialize<'de> for $kinds {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str($crate::strict::Word(Self::WORDS))
            }
        }

        impl $name {
            /// The word that `type` says.
            #[must_use]
            pub const fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $word,)+ }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                struct Frame;

                impl<'de> serde::de::Visitor<'de> for Frame {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a frame: an object with a field \"type\"")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let (kind, before) = $crate::frames::kind(&mut map)?;
                        if before.is_empty() {
                            let rest = serde::de::value::MapAccessDeserializer::new(map);
                            return match kind {
                                $($kinds::$variant => <$body as serde::Deserialize>::deserialize(rest).map($name::$variant),)+
                            };
                        }
                        let fields = $crate::frames::Fields::of(before, map)?;
                        let rest = serde::de::value::MapAccessDeserializer::new(fields);
                        match kind {
                            $($kinds::$variant => <$body as serde::Deserialize>::deserialize(rest).map($name::$variant),)+
                        }
                        .map_err(serde::de::Error::custom)
                    }
                }

                from.deserialize_map(Frame)
            }
        }
    };
}

pub(crate) use frames;

/// What `type` says, and the fields that stand before it.
pub(crate) fn kind<'de, K: Deserialize<'de>, A: MapAccess<'de>>(
    map: &mut A,
) -> Result<(K, Before), A::Error> {
    let mut before = Before::new();
    while let Some(name) = map.next_key::<String>()? {
        if name == "type" {
            return Ok((map.next_value()?, before));
        }
        keep(&mut before, (name, map.next_value()?))?;
    }
    Err(A::Error::custom("a frame has a field \"type\""))
}

/// Fields that were read before it was known what they are of.
pub(crate) type Before = VecDeque<(String, Box<RawValue>)>;

/// More fields than any frame has. Each takes many times the memory of its text, which may be as long as a message.
const FIELDS_MAX: usize = 64;

fn keep<E: Error>(fields: &mut Before, field: (String, Box<RawValue>)) -> Result<(), E> {
    if fields.len() >= FIELDS_MAX {
        return Err(E::custom(format_args!(
            "a frame whose first field is not \"type\" has {FIELDS_MAX} fields at most"
        )));
    }
    fields.push_back(field);
    Ok(())
}

/// All fields of a frame but `type`, in their order.
pub(crate) struct Fields {
    left: Before,
    value: Option<Box<RawValue>>,
}

impl Fields {
    /// Those that stand before `type`, and those behind it.
    pub(crate) fn of<'de, A: MapAccess<'de>>(mut fields: Before, mut behind: A) -> Result<Self, A::Error> {
        while let Some(field) = behind.next_entry()? {
            keep(&mut fields, field)?;
        }
        Ok(Self { left: fields, value: None })
    }
}

impl<'de> MapAccess<'de> for Fields {
    type Error = serde_json::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> serde_json::Result<Option<K::Value>> {
        let Some((name, value)) = self.left.pop_front() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> serde_json::Result<V::Value> {
        let value = self.value.take().ok_or_else(|| serde_json::Error::custom("a value without its name"))?;
        let mut text = serde_json::Deserializer::from_reader(value.get().as_bytes());
        let read = seed.deserialize(&mut text)?;
        text.end()?;
        Ok(read)
    }
}
