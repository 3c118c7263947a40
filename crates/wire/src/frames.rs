//! Frames of the sockets: objects whose first field is `type`.

use serde::de::{Deserialize, Error, MapAccess};

/// Frames of one direction: an enum that travels as an object whose first field is `type`. (serde's own reader
/// of such enums would take `type` anywhere, and could not carry raw JSON.)
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
                        f.write_str("a frame: an object whose first field is \"type\"")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let kind = $crate::frames::kind(&mut map)?;
                        let rest = serde::de::value::MapAccessDeserializer::new(map);
                        match kind {
                            $($kinds::$variant => <$body as serde::Deserialize>::deserialize(rest).map($name::$variant),)+
                        }
                    }
                }

                from.deserialize_map(Frame)
            }
        }
    };
}

pub(crate) use frames;

/// What the first field says, which must be `type`.
pub(crate) fn kind<'de, K: Deserialize<'de>, A: MapAccess<'de>>(map: &mut A) -> Result<K, A::Error> {
    match map.next_key::<String>()? {
        Some(first) if first == "type" => map.next_value(),
        Some(first) => {
            Err(A::Error::custom(format_args!("the first field is {first:?}; it must be \"type\"")))
        }
        None => Err(A::Error::custom("an empty object is no frame; the first field must be \"type\"")),
    }
}
