//! Values of columns whose types differ between the databases, and the way of every value into a list of rows.

use domain::{BulkId, HoldId, JobId, PlanId, TaskId, Timestamp};
use serde_json::Value;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Arguments as _, Decode, Encode, Postgres, Sqlite, Type};
use uuid::Uuid;

type Outcome<T> = Result<T, BoxDynError>;

/// A value in a list of rows.
pub(crate) trait Cell: Sized {
    /// Adds the values of one column as an array.
    fn add_array(arguments: &mut PgArguments, cells: Vec<Self>) -> Outcome<()>;
    /// The value in an object that stands for a row.
    fn into_json(self) -> Value;
}

/// Cells that PostgreSQL takes as they are.
macro_rules! cells {
    ($($cell:ty => $json:expr;)+) => { $(
        impl Cell for $cell {
            fn add_array(arguments: &mut PgArguments, cells: Vec<Self>) -> Outcome<()> {
                arguments.add(cells)
            }
            fn into_json(self) -> Value {
                ($json)(self)
            }
        }
        impl Cell for Option<$cell> {
            fn add_array(arguments: &mut PgArguments, cells: Vec<Self>) -> Outcome<()> {
                arguments.add(cells)
            }
            fn into_json(self) -> Value {
                self.map_or(Value::Null, $json)
            }
        }
    )+ };
}

cells! {
    i64 => Value::from;
    bool => Value::from;
    &str => Value::from;
    String => Value::from;
    Id => |id: Id| Value::from(id.0.to_string());
    Moment => |at: Moment| Value::from(at.0.as_micros());
    Hold => |hold: Hold| Value::from(hold.0.to_string());
    PlanKey => |plan: PlanKey| Value::from(plan.0.to_string());
    TaskKey => |task: TaskKey| Value::from(task.0.to_string());
    // A BLOB has no form in JSON: SQLite's statements read it with unhex().
    &[u8] => |bytes: &[u8]| Value::from(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
}

/// An id that is `uuid` on PostgreSQL and text in SQLite.
macro_rules! uuid_column {
    ($column:ident($id:ty), $what:literal) => {
        #[doc = concat!("A column with ", $what, ": `uuid` on PostgreSQL, text in SQLite.")]
        #[derive(Clone, Copy)]
        pub(crate) struct $column(pub(crate) $id);

        impl Type<Postgres> for $column {
            fn type_info() -> PgTypeInfo {
                <Uuid as Type<Postgres>>::type_info()
            }
        }

        impl PgHasArrayType for $column {
            fn array_type_info() -> PgTypeInfo {
                <Uuid as PgHasArrayType>::array_type_info()
            }
        }

        impl Encode<'_, Postgres> for $column {
            fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Outcome<IsNull> {
                <Uuid as Encode<Postgres>>::encode(Uuid::from_u128(self.0.as_u128()), buffer)
            }
        }

        impl Decode<'_, Postgres> for $column {
            fn decode(value: PgValueRef<'_>) -> Outcome<Self> {
                let id = <Uuid as Decode<Postgres>>::decode(value)?;
                Ok(Self(<$id>::from_u128(id.as_u128())))
            }
        }

        impl Type<Sqlite> for $column {
            fn type_info() -> SqliteTypeInfo {
                <str as Type<Sqlite>>::type_info()
            }
        }

        impl Encode<'_, Sqlite> for $column {
            fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Outcome<IsNull> {
                <String as Encode<Sqlite>>::encode(self.0.to_string(), buffer)
            }
        }

        impl<'r> Decode<'r, Sqlite> for $column {
            fn decode(value: SqliteValueRef<'r>) -> Outcome<Self> {
                let text = <&str as Decode<'r, Sqlite>>::decode(value)?;
                <$id>::parse(text).map(Self).ok_or_else(|| format!("{text:?} is no id").into())
            }
        }
    };
}

uuid_column!(Id(JobId), "a job's id");
uuid_column!(Hold(HoldId), "a hold");
uuid_column!(BulkKey(BulkId), "a bulk operation's id");
uuid_column!(PlanKey(PlanId), "a plan's id");
uuid_column!(TaskKey(TaskId), "a task's id");

impl Id {
    /// Below the ids of all jobs.
    pub(crate) const LOWEST: Self = Self(JobId::from_u128(0));
}

/// A column with a time: `timestamptz` on PostgreSQL, microseconds since 1970 in SQLite.
#[derive(Clone, Copy)]
pub(crate) struct Moment(pub(crate) Timestamp);

/// From 1970 to 2000, where PostgreSQL begins to count.
const TO_2000_MICROS: i64 = 946_684_800_000_000;

/// As PostgreSQL counts. The last moment is its `infinity`, which somebody may have written by hand.
const fn since_2000(at: Timestamp) -> i64 {
    match at.as_micros() {
        i64::MAX => i64::MAX,
        micros => micros.saturating_sub(TO_2000_MICROS),
    }
}

/// The moment that PostgreSQL counts so. What is later than the last moment is that.
const fn since_1970(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros.saturating_add(TO_2000_MICROS))
}

/// The server's own numbers of `timestamptz` and `timestamptz[]`, the same in every database.
const TIMESTAMPTZ: Oid = Oid(1184);
const TIMESTAMPTZ_ARRAY: Oid = Oid(1185);

impl Type<Postgres> for Moment {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

impl PgHasArrayType for Moment {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ_ARRAY)
    }
}

impl Encode<'_, Postgres> for Moment {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Outcome<IsNull> {
        buffer.extend_from_slice(&since_2000(self.0).to_be_bytes());
        Ok(IsNull::No)
    }
}

impl Encode<'_, Sqlite> for Moment {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Outcome<IsNull> {
        <i64 as Encode<Sqlite>>::encode(self.0.as_micros(), buffer)
    }
}

impl Decode<'_, Postgres> for Moment {
    fn decode(value: PgValueRef<'_>) -> Outcome<Self> {
        match value.format() {
            PgValueFormat::Binary => {
                let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?);
                Ok(Self(since_1970(micros)))
            }
            PgValueFormat::Text => Err("a time as text: only prepared statements read rows".into()),
        }
    }
}

impl Type<Sqlite> for Moment {
    fn type_info() -> SqliteTypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }
}

impl<'r> Decode<'r, Sqlite> for Moment {
    fn decode(value: SqliteValueRef<'r>) -> Outcome<Self> {
        Ok(Self(Timestamp::from_micros(<i64 as Decode<'r, Sqlite>>::decode(value)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_time_in_the_server_are_moments_and_stay_themselves() {
        for micros in [i64::MIN, -TO_2000_MICROS, 0, 1, i64::MAX] {
            assert_eq!(since_2000(since_1970(micros)), micros, "{micros}");
        }
        assert_eq!(since_1970(0).as_micros(), TO_2000_MICROS);
        assert_eq!(since_1970(i64::MAX).as_micros(), i64::MAX);
        assert_eq!(since_2000(Timestamp::from_micros(i64::MIN)), i64::MIN);
    }
}
