//! Statements, their arguments and their rows, declared once for both databases.
//!
//! What lives here: a [`Statement`] with its text for each database, and an [`Ask`], the statement with its arguments
//! encoded by their types. What must never: the meaning of a statement, which is its caller's.
//!
//! Marks in the text of a statement: `{name}` is a part, which `build.rs` writes out; `{given}` is the list of columns of a new
//! job ([`expanded`](crate::jobs::columns::expanded)); what stands between `--if name` and `--end` is there for a train that
//! needs it ([`Sectioned`]); and a line that ends in `--? name` is there for a caller that asks for it ([`narrowed`]).

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

/// One statement in the words of each database. They take the same arguments and answer the same columns; PostgreSQL's may also
/// tell the mark of its transaction, in the column `mark` ([`Answer::mark`]).
#[derive(Clone, Copy)]
pub(crate) struct Statement {
    pub(crate) postgres: &'static str,
    pub(crate) sqlite: &'static str,
}

/// The statement of that name: `statement!("x")` has a file for each database, `statement!(both "x")` one for both, and
/// `statement!(postgres "x")` and `statement!(sqlite "x")` one for the only database that is asked.
macro_rules! statement {
    (both $name:literal) => {
        $crate::sql::Statement {
            postgres: $crate::sql::sql_file!("both/postgres", $name),
            sqlite: $crate::sql::sql_file!("both/sqlite", $name),
        }
    };
    (postgres $name:literal) => {
        $crate::sql::Statement::only($crate::sql::sql_file!("postgres-only", $name))
    };
    (sqlite $name:literal) => {
        $crate::sql::Statement::only($crate::sql::sql_file!("sqlite-only", $name))
    };
    ($name:literal) => {
        $crate::sql::Statement {
            postgres: $crate::sql::sql_file!("postgres", $name),
            sqlite: $crate::sql::sql_file!("sqlite", $name),
        }
    };
}

/// The text of a statement, of the file in this folder.
macro_rules! sql_file {
    ($folder:literal, $name:literal) => {
        // As `build.rs` has written it out.
        include_str!(concat!(env!("OUT_DIR"), "/sql/", $folder, "/", $name, ".sql"))
    };
}
pub(crate) use {sql_file, statement};

impl Statement {
    /// A statement with one text: only one of the databases is ever asked.
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

/// A statement with `N` sections that need not be there. PostgreSQL makes all parts of a statement ready each time that it
/// runs, also those that will do nothing. So there is one statement for each choice of sections, made once; all take the same
/// arguments.
pub(crate) struct Sectioned<const N: usize> {
    /// By the number that has one bit for each section, the lowest for the first.
    statements: Vec<Statement>,
}

impl<const N: usize> Sectioned<N> {
    /// Of a statement with one text, in which a section begins with a line `--if its_name` and ends with a line `--end`; there
    /// may be others in it.
    pub(crate) fn new(Statement { postgres: text, .. }: Statement, names: [&str; N]) -> Self {
        let choice = |number: usize| -> &'static str {
            let is_wanted = |section: &str| {
                let bit =
                    names.iter().position(|name| *name == section).expect("the text has no other sections");
                number >> bit & 1 == 1
            };
            sections(text, is_wanted).leak()
        };
        let statements = (0..1 << N).map(|number| Statement::only(choice(number)));
        Self { statements: statements.collect() }
    }

    /// The statement that has these sections, in the order of their names.
    pub(crate) fn with(&self, sections: [bool; N]) -> &Statement {
        let number = sections.into_iter().rev().fold(0, |number, has| 2 * number + usize::from(has));
        &self.statements[number]
    }
}

fn sections(text: &str, is_wanted: impl Fn(&str) -> bool) -> String {
    let mut open = Vec::new();
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("--if ") {
            open.push(is_wanted(name));
        } else if line == "--end" {
            open.pop().expect("a section begins before it ends");
        } else if !open.contains(&false) {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    assert!(open.is_empty(), "a section has an end");
    kept
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

    /// Adds a list of rows: one array for each column on PostgreSQL, one JSON array of objects in SQLite. PostgreSQL's
    /// statements read the arrays side by side, `SELECT unnest($1) AS a, unnest($2) AS b`. As `FROM unnest($1, $2)` each is
    /// copied into a store of its own first, which takes as long as all else that many of these statements do.
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

/// A statement's text without the lines whose mark (`--? mark`) is not asked for.
pub(crate) fn narrowed(text: &str, asks_for: impl Fn(&str) -> bool) -> String {
    let stays = |line: &&str| line.split_once("--? ").is_none_or(|(_, mark)| asks_for(mark));
    text.lines().filter(stays).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_the_sections_that_are_wanted() {
        let text = "all\n--if a\nof a\n--if b\nof both\n--end\nof a too\n--end\n--if b\nof b\n--end\nend\n";
        let sectioned = Sectioned::new(Statement::only(text), ["a", "b"]);
        for (wanted, expected) in [
            ([false, false], "all\nend\n"),
            ([true, false], "all\nof a\nof a too\nend\n"),
            ([false, true], "all\nof b\nend\n"),
            ([true, true], "all\nof a\nof both\nof a too\nof b\nend\n"),
        ] {
            assert_eq!(sectioned.with(wanted).postgres, expected);
        }
    }
}
