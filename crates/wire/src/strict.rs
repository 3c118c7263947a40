//! Readers for request fields that take exactly what the API allows, where serde's own are generous
//! (`null` for an absent field, an array for a struct, a map for an enum), and that say what is allowed.
//!
//! Nothing here knows a particular field; the limits come in as const arguments.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};

/// A whole number from `MIN` to `MAX`.
struct Integer<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for Integer<MIN, MAX> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        if (MIN..=MAX).contains(&number) {
            return Ok(number);
        }
        Err(E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    // A whole number all the same, so say that its value is wrong, not its type.
    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Err(E::invalid_value(Unexpected::Signed(number), &self))
    }
}

pub fn integer<'de, const MIN: u64, const MAX: u64, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_u64(Integer::<MIN, MAX>)
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present_integer<'de, const MIN: u64, const MAX: u64, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<u64>, D::Error> {
    integer::<MIN, MAX, D>(from).map(Some)
}

/// A whole number from `MIN` to `MAX`, or `null`.
struct IntegerOrNull<const MIN: u64, const MAX: u64>;

impl<'de, const MIN: u64, const MAX: u64> Visitor<'de> for IntegerOrNull<MIN, MAX> {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}, or null")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Option<u64>, E> {
        if (MIN..=MAX).contains(&number) {
            return Ok(Some(number));
        }
        Err(E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Err(E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// For fields with `#[serde(default)]`: absent is `None`, `null` is `Some(None)`.
pub fn present_integer_or_null<'de, const MIN: u64, const MAX: u64, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<u64>>, D::Error> {
    from.deserialize_any(IntegerOrNull::<MIN, MAX>).map(Some)
}

/// A text of 1 to `MAX` characters.
struct Text<const MAX: usize>;

impl<const MAX: usize> Visitor<'_> for Text<MAX> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of 1 to {MAX} characters")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        match text.chars().count() {
            0 => Err(E::invalid_value(Unexpected::Other("an empty text"), &self)),
            chars if chars > MAX => {
                Err(E::invalid_value(Unexpected::Other(&format!("a text of {chars} characters")), &self))
            }
            _ => Ok(text.to_owned()),
        }
    }
}

pub fn text<'de, const MAX: usize, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    from.deserialize_str(Text::<MAX>)
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present_text<'de, const MAX: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<String>, D::Error> {
    text::<MAX, D>(from).map(Some)
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// An object, where a derived reader would also take an array of its fields' values.
struct Object<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// One object inside a list.
struct Item<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Item<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Object(PhantomData)).map(Self)
    }
}

/// A list of 1 to `MAX` objects.
struct Objects<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Objects<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of 1 to {MAX} objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(Item(item)) = items.next_element::<Item<T>>()? {
            if list.len() == MAX {
                return Err(A::Error::invalid_value(Unexpected::Other("a longer list"), &self));
            }
            list.push(item);
        }
        if list.is_empty() {
            return Err(A::Error::invalid_value(Unexpected::Other("an empty list"), &self));
        }
        Ok(list)
    }
}

pub fn objects<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(Objects::<T, MAX>(PhantomData))
}

/// For fields with `#[serde(default)]`: a list of 1 to `MAX` texts; absent is `None`, and `null` is refused.
pub fn present_texts<'de, const MAX: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<String>>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    if !(1..=MAX).contains(&texts.len()) {
        let expected = format!("a list of 1 to {MAX} texts");
        return Err(D::Error::invalid_length(texts.len(), &expected.as_str()));
    }
    Ok(Some(texts))
}

/// Reads one of a few words.
pub struct Word<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy> Visitor<'_> for Word<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of")?;
        for (i, (name, _)) in self.0.iter().enumerate() {
            write!(f, "{} {name:?}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        self.0
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, word)| *word)
            .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// An enum that travels as one word, and as nothing but a text (serde's own would also take
/// `{"word": null}`).
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, utoipa::ToSchema)]
        pub enum $name {
            $($(#[$doc])* #[schema(rename = $text)] $variant,)+
        }

        impl $name {
            /// Every one, in the order of this page.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word that travels.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str($crate::strict::Word(&[$(($text, Self::$variant),)+]))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use words;
