//! Enums whose variants have names.

/// Declares an enum whose variants have names that tables and answers show.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// All of them, in their order.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name that tables and answers show.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// Reads the name.
            ///
            /// # Errors
            /// [`Invalid`](crate::Invalid), listing the names.
            pub fn parse(text: &str) -> Result<Self, $crate::Invalid> {
                Self::ALL.iter().copied().find(|one| one.as_str() == text).ok_or_else(|| $crate::Invalid {
                    what: $what,
                    expected: format!("one of {}", [$($text),+].join(", ")),
                })
            }
        }
    };
}

pub(crate) use named;
