//! Snowflakes of an instance whose clock is wrong: another instance makes them. Snowflakes have no owner, so any instance can;
//! `worker_queue.on_misroute` says nothing about them.

use std::sync::Arc;
use std::time::Instant;

use actix_web::http::header::{CACHE_CONTROL, HeaderValue};
use actix_web::{HttpRequest, HttpResponse};
use cluster::Member;
use rand::seq::SliceRandom as _;

use super::{Asked, ForwardedRequest, Forwarder};
use crate::limits::{RIGHT_CLOCK_AGE_MAX, RIGHT_CLOCKS_ASKED_MAX};
use crate::peer_credential;
use crate::services::Incarnation;

impl Forwarder {
    /// Passes a request for snowflakes on to another instance; `None` if none of those that were asked has served it before the
    /// deadline. A request that another instance has passed on is not passed on again.
    pub async fn to_a_right_clock(&self, request: &HttpRequest, deadline: Instant) -> Option<HttpResponse> {
        // Before the ledger is reached no other instance is known.
        if peer_credential::is_forwarded(request) || !self.state.is_open() {
            return None;
        }
        let incarnation = self.state.incarnation();
        let forwarded = ForwardedRequest::of(request, Vec::new());
        for member in self.right_clocks(&incarnation) {
            if Instant::now() >= deadline {
                break;
            }
            match self.ask_there(&incarnation, &forwarded, &member, deadline).await {
                Ok(Asked::Answered(mut answer)) if answer.status().is_success() => {
                    self.right_clock.store(Some(Arc::new((member.id, Instant::now()))));
                    actors::handed_on::count("snowflake", 1);
                    // As where this instance answers: the ids are valid once.
                    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                    return Some(answer);
                }
                Ok(Asked::Away) => incarnation.cluster_view.avoid(&member.id),
                Ok(Asked::Leaving) => incarnation.cluster_view.avoid_leaving(&member.id),
                // Ids that an instance made and whose answer was lost are used by nobody.
                Ok(_) => {}
                // This instance forwards too many requests already.
                Err(_) => break,
            }
        }
        self.right_clock.store(None);
        None
    }

    /// The instances to ask: the one that has served last, then others by chance.
    fn right_clocks(&self, incarnation: &Incarnation) -> Vec<Member> {
        let mut members = incarnation.others();
        members.shuffle(&mut rand::rng());
        let last = self.right_clock.load_full();
        if let Some((last, _)) = last.as_deref().filter(|(_, at)| at.elapsed() < RIGHT_CLOCK_AGE_MAX) {
            members.sort_by_key(|member| member.id != *last);
        }
        members.truncate(RIGHT_CLOCKS_ASKED_MAX);
        members
    }
}
