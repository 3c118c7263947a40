//! Readers for request fields that take exactly what the API allows, where serde's own are generous
//! (`null` for an absent field, an array for a struct, a map for an enum), and that say what is allowed.
//!
//! Nothing here knows a particular field; the limits come in as const arguments.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{
    Deserialize, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};

use crate::json::Json;

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

/// An id, 0 to `MAX`: a text of digits, as answers write it, or a whole number.
struct Id<const MAX: u64>;

impl<const MAX: u64> Visitor<'_> for Id<MAX> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {MAX}, or one as a text")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        if number <= MAX {
            return Ok(number);
        }
        Err(E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        Err(E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        let number = if plain { text.parse().ok() } else { None };
        number
            .filter(|number| *number <= MAX)
            .ok_or_else(|| E::invalid_value(Unexpected::Other("another text"), &self))
    }
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present_id<'de, const MAX: u64, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_any(Id::<MAX>).map(Some)
}

/// One that fits 32 bits, as its limit does.
pub fn integer32<'de, const MIN: u64, const MAX: u64, D: Deserializer<'de>>(
    from: D,
) -> Result<u32, D::Error> {
    const { assert!(MAX <= u32::MAX as u64, "the limit fits 32 bits") };
    integer::<MIN, MAX, D>(from).map(|number| number as u32)
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present_integer32<'de, const MIN: u64, const MAX: u64, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<u32>, D::Error> {
    integer32::<MIN, MAX, D>(from).map(Some)
}

/// A whole number from `MIN` to `MAX`, which may be below zero.
struct Signed<const MIN: i64, const MAX: i64>;

impl<const MIN: i64, const MAX: i64> Visitor<'_> for Signed<MIN, MAX> {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<i64, E> {
        match i64::try_from(number) {
            Ok(number) => self.visit_i64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<i64, E> {
        if (MIN..=MAX).contains(&number) {
            return Ok(number);
        }
        Err(E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present_signed<'de, const MIN: i64, const MAX: i64, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<i64>, D::Error> {
    from.deserialize_i64(Signed::<MIN, MAX>).map(Some)
}

/// A number from `MIN` to `MAX`, whole or not.
struct Number<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for Number<MIN, MAX> {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number from {MIN} to {MAX}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
        self.visit_f64(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
        if (MIN as f64..=MAX as f64).contains(&number) {
            return Ok(number);
        }
        Err(E::invalid_value(Unexpected::Float(number), &self))
    }
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present_number<'de, const MIN: u64, const MAX: u64, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<f64>, D::Error> {
    from.deserialize_f64(Number::<MIN, MAX>).map(Some)
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

/// A text of 1 to `MAX` characters without the character NUL, which no log and no history keeps well.
pub fn prose<'de, const MAX: usize, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = text::<MAX, D>(from)?;
    refuse_nul(&text, &Text::<MAX>)?;
    Ok(text)
}

fn refuse_nul<E: Error>(text: &str, expected: &dyn Expected) -> Result<(), E> {
    if !text.contains('\0') {
        return Ok(());
    }
    let expected = format!("{expected} without it");
    Err(E::invalid_value(Unexpected::Other("a text with the character NUL"), &expected.as_str()))
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present_prose<'de, const MAX: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<String>, D::Error> {
    prose::<MAX, D>(from).map(Some)
}

/// A text of any length, of which the first `MAX` characters are kept.
struct CutText<const MAX: usize>;

impl<const MAX: usize> Visitor<'_> for CutText<MAX> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        let end = text.char_indices().nth(MAX).map_or(text.len(), |(at, _)| at);
        Ok(text[..end].to_owned())
    }
}

/// For texts of a sender that would send a frame that is refused again for ever. The empty text is one.
pub fn cut_text<'de, const MAX: usize, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    from.deserialize_str(CutText::<MAX>)
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present_cut_text<'de, const MAX: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<String>, D::Error> {
    cut_text::<MAX, D>(from).map(Some)
}

/// A text of at most `MAX` bytes without the character NUL, which may be empty.
struct ShortText<const MAX: usize>;

impl<const MAX: usize> Visitor<'_> for ShortText<MAX> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {MAX} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() > MAX {
            let found = format!("a text of {} bytes", text.len());
            return Err(E::invalid_value(Unexpected::Other(&found), &self));
        }
        refuse_nul(text, &self)?;
        Ok(text.to_owned())
    }
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused; the empty text is one.
pub fn present_short_text<'de, const MAX: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<String>, D::Error> {
    from.deserialize_str(ShortText::<MAX>).map(Some)
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused.
pub fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A word in capitals, whose letters count in either case, for fields with `#[serde(default)]`: absent is `None`, and `null` is
/// refused.
pub fn present_in_either_case<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(from)?;
    T::deserialize(text.to_ascii_uppercase().into_deserializer()).map(Some)
}

/// A request or an item of a list: a JSON object. Its derived reader would also take an array of its fields' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        object(from).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

pub fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_map(ObjectVisitor(PhantomData))
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is refused; so is an array in place of the
/// object.
pub fn present_object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    object(from).map(Some)
}

/// How the message of [`json`] begins about a value that is too long. No other reader's message begins so; further on, one may
/// have text of the sender's.
const TOO_LONG: &str = "invalid value: one of ";

/// Whether a reader's message, with nothing before it, says that a JSON value is too long, and not that it is wrong.
#[must_use]
pub fn is_too_large(message: &str) -> bool {
    message.starts_with(TOO_LONG)
}

/// Any JSON value of at most `BYTES` bytes of text.
pub fn json<'de, const BYTES: usize, D: Deserializer<'de>>(from: D) -> Result<Json, D::Error> {
    let json = Json::deserialize(from)?;
    let bytes = json.as_str().len();
    if bytes > BYTES {
        return Err(D::Error::custom(format_args!(
            "{TOO_LONG}{bytes} bytes, expected a value of at most {BYTES} bytes of JSON text"
        )));
    }
    Ok(json)
}

/// For fields with `#[serde(default)]`: absent is `None`, and `null` is a value like any other.
pub fn present_json<'de, const BYTES: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Json>, D::Error> {
    json::<BYTES, D>(from).map(Some)
}

/// For fields with `#[serde(default)]`: a JSON object of at most `BYTES` bytes of text; absent is `None`, and `null` is
/// refused.
pub fn present_json_object<'de, const BYTES: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Json>, D::Error> {
    let json = json::<BYTES, D>(from)?;
    if json.as_str().starts_with('{') {
        return Ok(Some(json));
    }
    Err(D::Error::invalid_type(Unexpected::Other("another value"), &"an object"))
}

/// A list of `MIN` to `MAX` objects, each read as `T` reads.
struct Objects<T, const MIN: usize, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MIN: usize, const MAX: usize> Visitor<'de> for Objects<T, MIN, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {MIN} to {MAX} objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::invalid_value(Unexpected::Other("a longer list"), &self));
            }
            list.push(item);
        }
        if list.len() < MIN {
            return Err(A::Error::invalid_value(Unexpected::Other("an empty list"), &self));
        }
        Ok(list)
    }
}

fn list<'de, const MIN: usize, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    let items = from.deserialize_seq(Objects::<Object<T>, MIN, MAX>(PhantomData))?;
    Ok(items.into_iter().map(|Object(item)| item).collect())
}

pub fn objects<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    list::<1, MAX, T, D>(from)
}

/// A list of objects that may be empty.
pub fn any_objects<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    list::<0, MAX, T, D>(from)
}

/// A list of objects of a kind that sees to it by itself that it is one.
pub fn own_objects<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(Objects::<T, 1, MAX>(PhantomData))
}

/// A text of 1 to `MAX` characters inside a list.
struct TextItem<const MAX: usize>(String);

impl<'de, const MAX: usize> Deserialize<'de> for TextItem<MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        text::<MAX, D>(from).map(Self)
    }
}

/// A list of `MIN` to `MAX` texts of 1 to `CHARS` characters.
struct Texts<const MIN: usize, const MAX: usize, const CHARS: usize>;

impl<'de, const MIN: usize, const MAX: usize, const CHARS: usize> Visitor<'de> for Texts<MIN, MAX, CHARS> {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match MIN {
            0 => write!(f, "a list of at most {MAX} texts"),
            _ => write!(f, "a list of {MIN} to {MAX} texts"),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<String>, A::Error> {
        let mut list = Vec::new();
        while let Some(TextItem(item)) = items.next_element::<TextItem<CHARS>>()? {
            if list.len() == MAX {
                return Err(A::Error::invalid_value(Unexpected::Other("a longer list"), &self));
            }
            list.push(item);
        }
        if list.len() < MIN {
            return Err(A::Error::invalid_length(list.len(), &self));
        }
        Ok(list)
    }
}

/// A list of at most `MAX` texts of 1 to `CHARS` characters each.
pub fn texts<'de, const MAX: usize, const CHARS: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<String>, D::Error> {
    from.deserialize_seq(Texts::<0, MAX, CHARS>)
}

/// For fields with `#[serde(default)]` that are written only where they have items: a list of 1 to `MAX` texts of 1 to `CHARS`
/// characters each.
pub fn some_texts<'de, const MAX: usize, const CHARS: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<String>, D::Error> {
    from.deserialize_seq(Texts::<1, MAX, CHARS>)
}

/// A list of 1 to `MAX` texts of any length.
struct SomeTexts<const MAX: usize>;

impl<'de, const MAX: usize> Visitor<'de> for SomeTexts<MAX> {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of 1 to {MAX} texts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Vec<String>, A::Error> {
        let texts = Vec::<String>::deserialize(SeqAccessDeserializer::new(items))?;
        if !(1..=MAX).contains(&texts.len()) {
            return Err(A::Error::invalid_length(texts.len(), &self));
        }
        Ok(texts)
    }
}

/// For fields with `#[serde(default)]`: a list of 1 to `MAX` texts; absent is `None`, and `null` is refused.
pub fn present_texts<'de, const MAX: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<String>>, D::Error> {
    from.deserialize_seq(SomeTexts::<MAX>).map(Some)
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
/// `{"word": null}`). Answers of a newer daemon may have further words of a `growing` one: `lenient` reads them as
/// `Unrecognised`, which no request may be.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, utoipa::ToSchema)]
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* #[schema(rename = $text)] $variant,)+
        }

        $crate::strict::words!(@travels $name { $($variant = $text,)+ });
    };
    ($(#[$meta:meta])* pub growing enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, utoipa::ToSchema)]
        $(#[$meta])*
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* #[schema(rename = $text)] $variant,)+
            /// A word in the answer of a newer daemon, which this version does not know.
            #[serde(skip)]
            Unrecognised,
        }

        $crate::strict::words!(@travels $name { $($variant = $text,)+ } Unrecognised = "unrecognised");

        impl $crate::lenient::Growing for $name {
            fn read<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str($crate::lenient::AnyWord {
                    known: &[$(($text, Self::$variant),)+],
                    otherwise: Self::Unrecognised,
                })
            }
        }
    };
    (@travels $name:ident { $($variant:ident = $text:literal,)+ } $($other:ident = $other_text:literal)?) => {
        impl $name {
            /// Every one that this version knows, in the order of this page.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word that travels.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                    $(Self::$other => $other_text,)?
                }
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
