//! Sessions: conversations whose jobs are lanes of their own. Made and looked at on any instance; closed, and given
//! jobs, by the lane's owner.
//!
//! The instance that a session's client is connected to reads the results from the ledger. Notifications say when there
//! is something to read; they may be lost.

use std::time::{Duration, Instant};

use domain::session::Spec;
use domain::{InstanceId, LaneId, SessionId};
use ledger::{JobKey, Opened, Opener, SessionCounts, SessionFilter, SessionRecord, SessionResults, jittered};
use tokio::sync::oneshot;

use super::callers::{Callers, OWNER_LOOK_EVERY};
use super::lease::Adoption;
use super::messages::LaneCommand;
use super::{Accepted, Jobs, Refusal, Submission, TokenSubmissions};

/// A session as it stands.
#[derive(Clone, Debug)]
pub struct Session {
    /// What was asked, and whether it is closed.
    pub record: SessionRecord,
    /// How many jobs it has.
    pub counts: SessionCounts,
    /// How many finished jobs of it are kept.
    pub finished: u64,
    /// Who has its live lease.
    pub owner: Option<InstanceId>,
}

/// A session that was asked for: it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionMade {
    /// Its id.
    pub id: SessionId,
    /// Whether an earlier request under the same key made it.
    pub is_repeated: bool,
}

impl Jobs {
    /// Makes a session; under a key that was used, the one that was made then.
    ///
    /// # Errors
    /// [`Refusal::NoBus`], [`Refusal::KeyReused`], [`Refusal::TooManySessions`], and what the ledger says.
    pub async fn open_session(
        &self,
        spec: &Spec,
        key: Option<&JobKey>,
        opener: Option<&Opener>,
    ) -> Result<SessionMade, Refusal> {
        let callers = &self.callers;
        callers.check_sessions()?;
        let id = SessionId::parse(&uuid::Uuid::new_v4().to_string()).map_err(|_| Refusal::Internal)?;
        let opened = callers.ledger.open_session(&id, spec, key, opener).await;
        match opened? {
            Opened::Made { .. } => Ok(SessionMade { id, is_repeated: false }),
            Opened::Kept { body_hash, session } if key.is_some_and(|key| key.body_hash == body_hash) => {
                Ok(SessionMade { id: session, is_repeated: true })
            }
            Opened::Kept { .. } => Err(Refusal::KeyReused),
            Opened::TooMany => Err(Refusal::TooManySessions),
        }
    }

    /// A session, by the ledger.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`], and what the ledger says.
    pub async fn session(&self, id: &SessionId) -> Result<Session, Refusal> {
        let record = self.session_record(id).await?;
        let ledger = &self.callers.ledger;
        let counts = ledger.session_counts(id).await?;
        let finished = ledger.session_finished(id).await?;
        let owner = self.callers.owner_of(&LaneId::session(id)).await?;
        Ok(Session { record, counts, finished, owner })
    }

    /// The last place given in a session, 0 for none and where there is no such session. Reads no job.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn last_place(&self, id: &SessionId) -> Result<u64, Refusal> {
        Ok(self.callers.ledger.lane_seq(&LaneId::session(id)).await?)
    }

    /// Sessions in the order of their ids.
    ///
    /// # Errors
    /// [`Refusal::NoBus`], and what the ledger says.
    pub async fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRecord>, Refusal> {
        self.callers.check_sessions()?;
        Ok(self.callers.ledger.sessions(filter).await?)
    }

    /// What was asked of a session, and whether it is closed.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`], or [`Refusal::NoBus`] where nobody opens one, and what the ledger says.
    pub async fn session_record(&self, id: &SessionId) -> Result<SessionRecord, Refusal> {
        self.callers.session_record(id).await
    }

    /// Checks that sessions can be opened here.
    ///
    /// # Errors
    /// [`Refusal::NoBus`].
    pub fn check_sessions(&self) -> Result<(), Refusal> {
        self.callers.check_sessions()
    }

    /// Whether its owner is here.
    #[must_use]
    pub fn serves_session(&self, id: &SessionId) -> bool {
        self.keeper.directory().contains_key(&LaneId::session(id))
    }

    /// Accepts jobs of a session, in this order, each on its own; an answer for each. All of them are refused where
    /// another instance owns the session. They take room of their token, if they have one.
    ///
    /// # Errors
    /// [`Refusal::NotOwner`], [`Refusal::UnknownSession`], and what the ledger says.
    pub async fn submit_in(
        &self,
        id: &SessionId,
        submissions: Vec<Submission>,
        of_token: Option<&TokenSubmissions>,
    ) -> Result<Vec<Result<Accepted, Refusal>>, Refusal> {
        let callers = &self.callers;
        let deadline = Instant::now() + callers.request_timeout;
        loop {
            let lane = callers.session_lane(id, deadline).await?;
            let each = submissions.iter().cloned();
            let answers = callers.submissions.submit_to(&lane, each, of_token, deadline).await;
            // An owner that was leaving has written nothing of what it refuses so.
            let is_left = answers.iter().all(|answer| matches!(answer, Err(Refusal::Fenced)));
            if answers.is_empty() || !is_left || Instant::now() + OWNER_LOOK_EVERY * 2 >= deadline {
                return Ok(answers);
            }
            tokio::time::sleep(jittered(OWNER_LOOK_EVERY)).await;
        }
    }

    /// Closes a session: it takes no more jobs, those that it has are finished. Closed already, it stays so.
    ///
    /// # Errors
    /// As [`Self::submit_in`].
    pub async fn close_session(&self, id: &SessionId) -> Result<(), Refusal> {
        let callers = &self.callers;
        let deadline = Instant::now() + callers.request_timeout;
        loop {
            if callers.session_record(id).await?.closed_at.is_some() {
                // An earlier request may have closed it, and its answer was lost.
                let settled = callers.ledger.settled_session(id).await?.ok_or(Refusal::UnknownSession)?;
                if settled.closed_at.is_some() {
                    return Ok(());
                }
            }
            let lane = callers.session_lane(id, deadline).await?;
            let (reply, answer) = oneshot::channel();
            if let Err(undelivered) =
                self.keeper.directory().try_send(&lane, LaneCommand::CloseSession(reply))
                && undelivered.is_full
            {
                return Err(Refusal::Overloaded);
            }
            match tokio::time::timeout_at(deadline.into(), answer).await {
                Ok(Ok(Ok(()))) => return Ok(()),
                Ok(Ok(Err(Refusal::Fenced)) | Err(_)) if Instant::now() + OWNER_LOOK_EVERY * 2 < deadline => {
                    tokio::time::sleep(jittered(OWNER_LOOK_EVERY)).await;
                }
                Ok(Ok(Err(refusal))) => return Err(refusal),
                Ok(Err(_)) => return Err(callers.lifetime.refusal_of_lost_owner()),
                Err(_) => return Err(Refusal::LedgerUnavailable),
            }
        }
    }

    /// Results of a session behind a place and below the lowest place of an unfinished job, that place (`first_unfinished`), and
    /// whether the session is open (`is_open`), all as of one moment.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn session_results(
        &self,
        id: &SessionId,
        after_seq: u64,
        limit: u32,
    ) -> Result<SessionResults, Refusal> {
        Ok(self.callers.ledger.session_results(id, after_seq, limit).await?)
    }

    /// Places of finished jobs of a session behind a place, without what came of them.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn finished_places(
        &self,
        id: &SessionId,
        after_seq: u64,
        limit: u32,
    ) -> Result<Vec<(u64, domain::JobId)>, Refusal> {
        Ok(self.callers.ledger.finished_places(id, after_seq, limit).await?)
    }

    /// Places of unfinished jobs of a session behind a place, in order.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn unfinished_places(
        &self,
        id: &SessionId,
        after_seq: u64,
        limit: u32,
    ) -> Result<Vec<u64>, Refusal> {
        Ok(self.callers.ledger.unfinished_places(id, after_seq, limit).await?)
    }
}

impl Callers {
    /// Several instances tell each other of sessions over the bus; one that is alone needs none. One without it opens none, and
    /// serves those that other instances have opened.
    fn check_sessions(&self) -> Result<(), Refusal> {
        if self.has_sessions { Ok(()) } else { Err(Refusal::NoBus) }
    }

    async fn session_record(&self, id: &SessionId) -> Result<SessionRecord, Refusal> {
        let found = self.ledger.session(id).await?;
        if found.is_none() {
            self.check_sessions()?;
        }
        found.ok_or(Refusal::UnknownSession)
    }

    /// A session's lane, served here: from now on, if no other instance has it.
    async fn session_lane(&self, id: &SessionId, deadline: Instant) -> Result<LaneId, Refusal> {
        let lane = LaneId::session(id);
        if self.keeper.directory().get(&lane).is_some() {
            return Ok(lane);
        }
        self.session_record(id).await?;
        loop {
            if !self.lifetime.takes_work() {
                return Err(Refusal::Fenced);
            }
            let adopting = tokio::time::timeout_at(deadline.into(), self.keeper.adopt(&lane));
            match adopting.await.map_err(|_late| Refusal::LedgerUnavailable)?? {
                Adoption::Taken(()) => return Ok(lane),
                Adoption::Held(owner) => return Err(Refusal::NotOwner { owner }),
                // It is this instance's own, which is about to be released; or somebody was quicker.
                Adoption::Missed if Instant::now() + OWNER_LOOK_EVERY * 2 < deadline => {
                    tokio::time::sleep(jittered(Duration::from_millis(20))).await;
                }
                Adoption::Missed => return Err(Refusal::NoOwner { lane }),
            }
        }
    }
}
