//! Records of rows, declared once for both databases.

/// Declares a row's record: each field is the column of its name. A field marked `#[flatten]` is another record whose
/// columns stand in the same row.
///
/// This stands in for `sqlx`'s derive. The crate of that derive needs both databases' drivers while it compiles, and so
/// has SQLite and both drivers built twice.
macro_rules! record {
    ($(#[$meta:meta])* $visible:vis struct $record:ident {
        $($(#[$kind:ident])? $field_visible:vis $field:ident: $of:ty,)+
    }) => {
        $(#[$meta])*
        $visible struct $record {
            $($field_visible $field: $of,)+
        }
        $crate::sql::record!(@read sqlx::postgres::PgRow, $record { $($field $($kind)?,)+ });
        $crate::sql::record!(@read sqlx::sqlite::SqliteRow, $record { $($field $($kind)?,)+ });
    };
    (@read $row:ty, $record:ident { $($field:ident $($kind:ident)?,)+ }) => {
        impl sqlx::FromRow<'_, $row> for $record {
            fn from_row(row: &$row) -> sqlx::Result<Self> {
                Ok(Self { $($field: $crate::sql::record!(@field row $field $($kind)?),)+ })
            }
        }
    };
    (@field $row:ident $field:ident flatten) => {
        sqlx::FromRow::from_row($row)?
    };
    (@field $row:ident $field:ident) => {
        sqlx::Row::try_get($row, stringify!($field))?
    };
}
pub(crate) use record;
