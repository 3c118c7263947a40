//! Reads that an instance asks of all the others in the name of a caller.

use std::time::Instant;

use actix_web::HttpRequest;
use actix_web::body::MessageBody as _;
use futures_util::future::join_all;

use super::{Asked, ForwardedRequest, Forwarder};
use crate::limits::SHOWN_PAUSE;
use crate::refusal::Refusal;

/// An instance, and its answer to a read, or why there is none.
pub type OtherAnswer = (String, Result<Vec<u8>, String>);

impl Forwarder {
    /// Asks all other instances the same read, again and again, until each has answered as `is_so` wants. It stops
    /// waiting for an instance that cannot be asked, or does not know what it is asked about.
    pub async fn until_all_show(
        &self,
        request: &HttpRequest,
        path: &str,
        is_so: impl Fn(&[u8]) -> bool,
        deadline: Instant,
    ) {
        let incarnation = self.state.incarnation();
        let question = ForwardedRequest::of(request, Vec::new()).within("GET", path.to_owned(), None);
        let others = incarnation.others();
        let asked = others.iter().map(async |member| {
            while Instant::now() < deadline {
                let asked = self.ask_there(&incarnation, &question, member, deadline).await;
                let Ok(Asked::Answered(answer)) = asked else { return };
                let is_shown = answer.status().is_success();
                let body = answer.into_body().try_into_bytes();
                if !is_shown || body.is_ok_and(|body| is_so(&body)) {
                    return;
                }
                tokio::time::sleep(SHOWN_PAUSE).await;
            }
        });
        join_all(asked).await;
    }

    /// Asks all other live instances the same read, all at once, until the deadline.
    pub async fn ask_others(
        &self,
        request: &ForwardedRequest,
        path: &str,
        deadline: Instant,
    ) -> Vec<OtherAnswer> {
        let incarnation = self.state.incarnation();
        let question = request.within("GET", path.to_owned(), None);
        let others = incarnation.others();
        let asked = others.iter().map(async |member| {
            let asked = self.ask_there(&incarnation, &question, member, deadline).await;
            (member.id.to_string(), body_of(asked))
        });
        join_all(asked).await
    }
}

/// The body of a good answer, or why there is none.
fn body_of(asked: Result<Asked, Refusal>) -> Result<Vec<u8>, String> {
    let answer = match asked {
        Ok(Asked::Answered(answer) | Asked::NotOwner(_, answer)) => answer,
        Ok(Asked::Away | Asked::Leaving) => return Err("it cannot be reached, or is stopping".to_owned()),
        Ok(Asked::Distrusts) => return Err("it does not accept this instance's requests".to_owned()),
        Ok(Asked::Again | Asked::Lost) => return Err("it did not answer in time".to_owned()),
        Err(refusal) => return Err(refusal.code_and_detail().1),
    };
    let status = answer.status();
    let body = answer.into_body().try_into_bytes().map(|body| body.to_vec());
    match body {
        Ok(body) if status.is_success() => Ok(body),
        _ => Err(format!("it answered {status}")),
    }
}
