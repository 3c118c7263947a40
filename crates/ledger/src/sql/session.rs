//! A connection to either database, lent for one call; and a transaction on it.

use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, FromRow, PgConnection, PgTransaction, Row as _, SqliteConnection, SqliteTransaction};

use super::{Arguments, Ask, Statement, statement};
use crate::Kind;
use crate::identity::Mark;

const CLOCK: Statement = statement!("clock");
const MARK: Statement = statement!(postgres "transaction_mark");

/// A row's record that can be read from either database. Columns are found by their names.
pub(crate) trait FromEither: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> {}

impl<T: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow>> FromEither for T {}

/// What a statement answered: its rows as they came.
pub(crate) struct Answer {
    rows: AnswerRows,
}

enum AnswerRows {
    Postgres(Vec<PgRow>),
    Sqlite(Vec<SqliteRow>),
}

impl Answer {
    /// The rows, read.
    pub(crate) fn records<T: FromEither>(&self) -> sqlx::Result<Vec<T>> {
        match &self.rows {
            AnswerRows::Postgres(rows) => {
                rows.iter().map(|row| <T as FromRow<'_, PgRow>>::from_row(row)).collect()
            }
            AnswerRows::Sqlite(rows) => {
                rows.iter().map(|row| <T as FromRow<'_, SqliteRow>>::from_row(row)).collect()
            }
        }
    }

    /// The mark of the transaction that answered, where a statement of PostgreSQL's tells it in the column `mark`, and has
    /// written by then.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let AnswerRows::Postgres(rows) = &self.rows else { return None };
        // All rows are of one transaction. A list without a number cannot be read, and is none.
        rows.iter().take(2).find_map(|row| match row.try_get::<Option<Vec<i64>>, _>("mark").ok()??[..] {
            [timeline, xid, place] => Some(Mark { timeline, xid, place }),
            _ => None,
        })
    }
}

/// A connection to one of the databases.
pub(crate) enum Session<'c> {
    Postgres(&'c mut PgConnection),
    Sqlite(&'c mut SqliteConnection),
}

impl Session<'_> {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Postgres(_) => Kind::Postgres,
            Self::Sqlite(_) => Kind::Sqlite,
        }
    }

    /// Sends a statement and waits for all of its rows: in SQLite a statement that writes by itself commits when it has
    /// run to its end, and only then its failure is seen.
    pub(crate) async fn answer(&mut self, ask: Ask) -> sqlx::Result<Answer> {
        let Ask { text, arguments, unfit } = ask;
        if let Some(unfit) = unfit {
            return Err(sqlx::Error::Encode(unfit));
        }
        let rows = match (self, arguments) {
            (Self::Postgres(connection), Arguments::Postgres(arguments)) => {
                AnswerRows::Postgres(sqlx::query_with(text, arguments).fetch_all(&mut **connection).await?)
            }
            (Self::Sqlite(connection), Arguments::Sqlite(arguments)) => {
                AnswerRows::Sqlite(sqlx::query_with(text, arguments).fetch_all(&mut **connection).await?)
            }
            _ => unreachable!("an ask is made for the database that it is sent to"),
        };
        Ok(Answer { rows })
    }

    /// Sends a statement and reads its rows.
    pub(crate) async fn all<T: FromEither>(&mut self, ask: Ask) -> sqlx::Result<Vec<T>> {
        self.answer(ask).await?.records()
    }

    /// Sends a statement and reads its first row. There must be one.
    pub(crate) async fn one<T: FromEither>(&mut self, ask: Ask) -> sqlx::Result<T> {
        self.all(ask).await?.into_iter().next().ok_or(sqlx::Error::RowNotFound)
    }

    /// Sends a statement that answers no rows; says how many rows it has touched.
    pub(crate) async fn touch(&mut self, ask: Ask) -> sqlx::Result<u64> {
        let Ask { text, arguments, unfit } = ask;
        if let Some(unfit) = unfit {
            return Err(sqlx::Error::Encode(unfit));
        }
        match (self, arguments) {
            (Self::Postgres(connection), Arguments::Postgres(arguments)) => {
                let done = sqlx::query_with(text, arguments).execute(&mut **connection).await?;
                Ok(done.rows_affected())
            }
            (Self::Sqlite(connection), Arguments::Sqlite(arguments)) => {
                let done = sqlx::query_with(text, arguments).execute(&mut **connection).await?;
                Ok(done.rows_affected())
            }
            _ => unreachable!("an ask is made for the database that it is sent to"),
        }
    }

    /// Begins a transaction. In SQLite it is a writer from its first statement on: what it reads cannot change before
    /// it commits.
    pub(crate) async fn begin(&mut self) -> sqlx::Result<Transaction<'_>> {
        let mut inner = match self {
            Self::Postgres(connection) => Inner::Postgres(connection.begin().await?),
            Self::Sqlite(connection) => Inner::Sqlite(connection.begin_with("BEGIN IMMEDIATE").await?),
        };
        let mut at = None;
        if let Inner::Sqlite(transaction) = &mut inner {
            let clock = Session::Sqlite(transaction).one::<(i64,)>(CLOCK.on(Kind::Sqlite)).await;
            at = Some(clock?.0);
        }
        Ok(Transaction { inner, at, mark: None })
    }
}

enum Inner<'c> {
    Postgres(PgTransaction<'c>),
    Sqlite(SqliteTransaction<'c>),
}

/// A transaction. Dropped without an end, it is rolled back.
pub(crate) struct Transaction<'c> {
    inner: Inner<'c>,
    /// Its time in microseconds; `None` on PostgreSQL, whose statements know it themselves.
    at: Option<i64>,
    /// Its mark on PostgreSQL, once a statement has told it.
    mark: Option<Mark>,
}

impl Transaction<'_> {
    pub(crate) const fn kind(&self) -> Kind {
        match self.inner {
            Inner::Postgres(_) => Kind::Postgres,
            Inner::Sqlite(_) => Kind::Sqlite,
        }
    }

    /// Its time in microseconds since 1970, where it is known without asking.
    pub(crate) const fn at(&self) -> Option<i64> {
        self.at
    }

    /// Its connection.
    pub(crate) fn session(&mut self) -> Session<'_> {
        match &mut self.inner {
            Inner::Postgres(transaction) => Session::Postgres(transaction),
            Inner::Sqlite(transaction) => Session::Sqlite(transaction),
        }
    }

    /// As [`Session::all`].
    pub(crate) async fn all<T: FromEither>(&mut self, ask: Ask) -> sqlx::Result<Vec<T>> {
        let answer = self.session().answer(ask).await?;
        self.saw_mark(answer.mark());
        answer.records()
    }

    /// As [`Self::all`], of a statement that answers one row at most.
    pub(crate) async fn optional<T: FromEither>(&mut self, ask: Ask) -> sqlx::Result<Option<T>> {
        Ok(self.all::<T>(ask).await?.into_iter().next())
    }

    /// Notes its mark, if that is known: its end does not ask for it then.
    pub(crate) fn saw_mark(&mut self, mark: Option<Mark>) {
        self.mark = self.mark.or(mark);
    }

    /// As [`Session::touch`].
    pub(crate) async fn touch(&mut self, ask: Ask) -> sqlx::Result<u64> {
        self.session().touch(ask).await
    }

    /// Ends it and keeps what it wrote. Answers its mark: on PostgreSQL, if it wrote.
    pub(crate) async fn commit(mut self) -> sqlx::Result<Option<Mark>> {
        if self.mark.is_none() && self.kind() == Kind::Postgres {
            self.mark = self.session().answer(MARK.on(Kind::Postgres)).await?.mark();
        }
        match self.inner {
            Inner::Postgres(transaction) => transaction.commit().await?,
            Inner::Sqlite(transaction) => transaction.commit().await?,
        }
        Ok(self.mark)
    }

    /// Ends it and undoes what it wrote.
    pub(crate) async fn rollback(self) -> sqlx::Result<()> {
        match self.inner {
            Inner::Postgres(transaction) => transaction.rollback().await,
            Inner::Sqlite(transaction) => transaction.rollback().await,
        }
    }
}
