//! Statements, their arguments and their rows, declared once for both databases.
//!
//! What lives here: a [`Statement`] with its text for each database, and an [`Ask`], the statement with its arguments
//! encoded by their types. What must never: the meaning of a statement, which is its caller's.

mod cell;
mod record;
mod session;

use serde_json::{Map, Value};
use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, AssertSqlSafe, Encode, Postgres, SqlSafeStr as _, SqlStr, Sqlite, Type};

use crate::Kind;
pub(crate) use cell::{BulkKey, Cell, Hold, Id, Moment, PlanKey, TaskKey};
pub(crate) use record::record;
pub(crate) use session::{Answer, FromEither, Session, Transaction};

/// One statement in the words of each database. They take the same arguments and answer the same columns.
#[derive(Clone, Copy)]
pub(crate) struct Statement {
    pub(crate) postgres: &'static str,
    pub(crate) sqlite: &'static str,
}

/// The statement of that name: `statement!("x")` has a file for each database, `statement!(both "x")` one for both.
macro_rules! statement {
    (both $name:literal) => {
        $crate::sql::Statement::only($crate::sql::sql_file!("both", $name))
    };
    ($name:literal) => {
        $crate::sql::Statement {
            postgres: $crate::sql::sql_file!("postgres", $name),
            sqlite: $crate::sql::sql_file!("sqlite", $name),
        }
    };
}

/// The text of a statement that only one of the databases needs.
macro_rules! sql_file {
    ($folder:literal, $name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/", $folder, "/", $name, ".sql"))
    };
}
pub(crate) use {sql_file, statement};

impl Statement {
    /// A statement with one text: both databases understand it, or only one of them is ever asked.
    pub(crate) const fn only(text: &'static str) -> Self {
        Self { postgres: text, sqlite: text }
    }

    /// Begins an ask of this statement.
    pub(crate) fn on(&self, kind: Kind) -> Ask {
        match kind {
            Kind::Postgres => Ask::new(self.postgres, Arguments::Postgres(PgArguments::default())),
            Kind::Sqlite => Ask::new(self.sqlite, Arguments::Sqlite(SqliteArguments::default())),
        }
    }
}

/// A statement on its way to one of the databases, with its arguments in the order of their numbers.
pub(crate) struct Ask {
    text: SqlStr,
    arguments: Arguments,
    /// The first argument that could not be encoded. The ask then fails when it is sent.
    unfit: Option<BoxDynError>,
}

enum Arguments {
    Postgres(PgArguments),
    Sqlite(SqliteArguments),
}

impl Ask {
    const fn new(text: &'static str, arguments: Arguments) -> Self {
        Self { text: SqlStr::from_static(text), arguments, unfit: None }
    }

    /// The same with a text that was made of the statement's own.
    pub(crate) fn reworded(mut self, reword: impl FnOnce(&str) -> String) -> Self {
        self.text = AssertSqlSafe(reword(self.text.as_str())).into_sql_str();
        self
    }

    /// Adds an argument.
    pub(crate) fn bind<'t, V>(mut self, value: V) -> Self
    where
        V: Encode<'t, Postgres> + Type<Postgres> + Encode<'t, Sqlite> + Type<Sqlite>,
    {
        let added = match &mut self.arguments {
            Arguments::Postgres(arguments) => arguments.add(value),
            Arguments::Sqlite(arguments) => arguments.add(value),
        };
        self.note(added);
        self
    }

    /// Adds the time of the transaction, which PostgreSQL's statements know by themselves as `now()`.
    pub(crate) fn at(mut self, micros: Option<i64>) -> Self {
        if let (Arguments::Sqlite(arguments), Some(micros)) = (&mut self.arguments, micros) {
            let added = arguments.add(micros);
            self.note(added);
        }
        self
    }

    /// Adds a list of values: an array on PostgreSQL, a JSON array in SQLite.
    pub(crate) fn array<C: Cell>(mut self, values: Vec<C>) -> Self {
        let added = match &mut self.arguments {
            Arguments::Postgres(arguments) => C::add_array(arguments, values),
            Arguments::Sqlite(arguments) => {
                arguments.add(Value::from_iter(values.into_iter().map(Cell::into_json)).to_string())
            }
        };
        self.note(added);
        self
    }

    /// Adds a list of rows: one array for each column on PostgreSQL, one JSON array of objects in SQLite.
    pub(crate) fn rows<T>(mut self, rows: &[T], columns: impl FnOnce(&mut Rows<'_, '_, T>)) -> Self {
        let added = match &mut self.arguments {
            Arguments::Postgres(arguments) => {
                let mut into = Rows { rows, into: Target::Arrays(arguments), added: Ok(()) };
                columns(&mut into);
                into.added
            }
            Arguments::Sqlite(arguments) => {
                let mut into =
                    Rows { rows, into: Target::Objects(vec![Map::new(); rows.len()]), added: Ok(()) };
                columns(&mut into);
                let Target::Objects(objects) = into.into else { unreachable!("it was made so") };
                arguments.add(Value::from_iter(objects).to_string())
            }
        };
        self.note(added);
        self
    }

    fn note(&mut self, added: Result<(), BoxDynError>) {
        if let (Err(unfit), None) = (added, &self.unfit) {
            self.unfit = Some(unfit);
        }
    }
}

/// Rows that become arguments, column by column.
pub(crate) struct Rows<'i, 'a, T> {
    rows: &'i [T],
    into: Target<'a>,
    added: Result<(), BoxDynError>,
}

enum Target<'a> {
    Arrays(&'a mut PgArguments),
    Objects(Vec<Map<String, Value>>),
}

impl<'i, T> Rows<'i, '_, T> {
    /// Adds a column. PostgreSQL's statement knows it by its place, SQLite's by its name.
    pub(crate) fn column<C: Cell>(&mut self, name: &str, of: impl Fn(&'i T) -> C) -> &mut Self {
        match &mut self.into {
            Target::Arrays(arguments) => {
                let added = C::add_array(arguments, self.rows.iter().map(of).collect());
                if self.added.is_ok() {
                    self.added = added;
                }
            }
            Target::Objects(objects) => {
                for (object, row) in objects.iter_mut().zip(self.rows) {
                    object.insert(name.to_owned(), of(row).into_json());
                }
            }
        }
        self
    }
}
