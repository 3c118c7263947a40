//! Which PostgreSQL server a connection has reached.

use sqlx::PgConnection;

use super::failure::{is_lost, is_passing};
use crate::Kind;
use crate::identity::{Mark, Remembered, Replayed, Server};
use crate::sql::{Session, Statement, statement};

const SERVER: Statement = statement!(postgres "server_show");
const LACKS: Statement = statement!(postgres "server_lacks");
const LOWER: Statement = statement!(postgres "identity_lower");
const TIMELINE: Statement = statement!(postgres "timeline_note");
const POSITION: Statement = statement!(postgres "position_note");

/// Asks a new connection which server it reached: a standby may have become the primary since the last look, and lack
/// what this process was answered. Refuses any other server than the one that a look accepted, and one that did not tell in time.
/// Where the server tells, the session's statements tell the marks of their transactions.
pub(super) async fn reaches_accepted(
    connection: &mut PgConnection,
    remembered: &Remembered,
) -> sqlx::Result<()> {
    let mut session = Session::Postgres(connection);
    let (system, timeline) = match asked(&mut session).await {
        Ok((system, timeline, ..)) => (system, timeline),
        // It may tell the next time.
        Err(source) if is_lost(&source) || is_passing(&source) => return Err(source),
        Err(_) => return Ok(()),
    };
    if let Some(timeline) = timeline {
        session.touch(TIMELINE.on(Kind::Postgres).bind(timeline)).await?;
    }
    // Last: a look may have accepted another one meanwhile, and the connection counts as opened a moment after this.
    if remembered.is_accepted(&system, timeline) {
        Ok(())
    } else {
        Err(sqlx::Error::Protocol("the server is not the one that was looked at last".to_owned()))
    }
}

/// Tells a session the position of the ledger.
pub(super) async fn note_position(session: &mut Session<'_>, position: i64) -> sqlx::Result<()> {
    session.touch(POSITION.on(Kind::Postgres).bind(position)).await.map(drop)
}

/// What a look has reached.
pub(super) enum Reached {
    /// A primary, and what it has of what was written before it became that.
    Primary(Server, Replayed),
    /// A standby. It takes no writes, and what it shows says nothing: it may have more than it has replayed.
    Standby,
    /// A server that does not tell, such as a managed one that does not let ordinary roles ask. It is known by the ledger's
    /// position alone.
    Untold,
}

/// Asks a look's connection which server it reached.
pub(super) async fn found(session: &mut Session<'_>, remembered: &Remembered) -> sqlx::Result<Reached> {
    match asked(session).await {
        Ok((system, Some(timeline), Some(written), ended, is_synchronous)) => {
            let server = Server { system, timeline, written, is_synchronous };
            let answered = remembered.must_have(server.timeline);
            let lacks_answered = !answered.is_empty() && lacks(session, &answered, ended).await?;
            Ok(Reached::Primary(server, Replayed { to: ended, lacks_answered }))
        }
        Ok(_) => Ok(Reached::Standby),
        // It may tell the next time.
        Err(source) if is_lost(&source) || is_passing(&source) => Err(source),
        Err(source) => {
            if remembered.is_news() {
                tracing::warn!(
                    error = %source,
                    "the server does not tell its system identifier and timeline; a failover that loses less than the \
                     last 300 ms is not noticed"
                );
            }
            Ok(Reached::Untold)
        }
    }
}

/// Whether the server lacks one of these transactions, which were answered. `ended` is where it stopped to replay, if it tells:
/// what it has not replayed anything of is lost, and its number another one's.
async fn lacks(session: &mut Session<'_>, answered: &[Mark], ended: Option<i64>) -> sqlx::Result<bool> {
    if answered.iter().any(|mark| ended.is_some_and(|ended| ended < mark.place)) {
        return Ok(true);
    }
    let numbers: Vec<_> = answered.iter().map(|mark| mark.xid).collect();
    let (lacks,): (bool,) = session.one(LACKS.on(Kind::Postgres).array(numbers)).await?;
    Ok(lacks)
}

/// Lowers the position of the ledger of this name, which lacks what this process was answered. So the other instances hear of it:
/// each knows only what it was answered itself.
pub(super) async fn lower(session: &mut Session<'_>, cluster: &str, remembered: &Remembered) {
    let lower = LOWER.on(Kind::Postgres).bind(cluster).bind(remembered.position());
    if let Err(error) = session.touch(lower).await {
        tracing::warn!(%error, "the other instances could not be told yet that the ledger lacks commits");
    }
}

/// System identifier, timeline, end of the log, where the replay ended, and whether commits wait for a standby.
type ServerRow = (String, Option<i64>, Option<i64>, Option<i64>, bool);

async fn asked(session: &mut Session<'_>) -> sqlx::Result<ServerRow> {
    session.one(SERVER.on(Kind::Postgres)).await
}
