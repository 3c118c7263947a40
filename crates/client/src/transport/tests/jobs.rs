//! Jobs: how they are submitted and retried, and how their ends are waited for.

use tokio::sync::Notify;
use wire::Json;
use wire::jobs::JobRequest;

use super::*;
use crate::socket::stand_in::PATIENCE;

fn job(state: &str) -> Act {
    let body = format!(
        r#"{{"id":"j","state":"{state}","outcome":null,"lane":"l","session":null,"seq":null,"tenant":null,"pool":null,
        "route":null,"requires":[],"priority":0,"timeout_ms":1,"attempt":0,"max_attempts":3,"node":null,"payload":{{ "a":1 }},
        "result":null,"error":null,"dead":false,"progress":null,"created_at":"t","run_at":null,"dispatched_at":null,
        "running_at":null,"finished_at":null,"released_at":null,"retry_of":null,"attempts":[]}}"#
    );
    Act::Answer(200, "", body)
}

#[tokio::test]
async fn a_job_whose_answer_was_lost_is_submitted_again_under_the_same_key() {
    let accepted = r#"{"id":"j","state":"CREATED","lane":"l","created_at":"t"}"#.to_owned();
    let server = StandIn::playing(vec![Act::HangUp, Act::Answer(202, "", accepted)]).await;
    let request = JobRequest::new(Json::parse(r#"{ "a":1 }"#).unwrap());
    let accepted = client(&[&server]).jobs().submit(&request, None).await.unwrap();
    assert_eq!(accepted.id, "j");
    let heard = server.heard();
    assert!(
        heard[0].ends_with(r#"{"payload":{ "a":1 }}"#),
        "the payload travels as it is written: {}",
        heard[0]
    );
    let keys: Vec<_> = heard.iter().map(|request| header(request, "Idempotency-Key").unwrap()).collect();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
}

#[tokio::test]
async fn a_job_with_a_name_in_its_session_is_known_by_that_and_by_no_key() {
    let accepted = r#"{"id":"j","state":"CREATED","lane":"l","created_at":"t"}"#.to_owned();
    let batch = Act::Answer(202, "", r#"{"results":[{"id":"j"}]}"#.to_owned());
    let single = || Act::Answer(202, "", accepted.clone());
    let server = StandIn::playing(vec![single(), single(), batch]).await;
    let client = client(&[&server]);
    let (session, client_ref) = (Some("s".to_owned()), Some("mine".to_owned()));
    let named = JobRequest { session, client_ref, ..JobRequest::new(Json::null()) };
    client.jobs().submit(&named, None).await.unwrap();
    client.jobs().submit(&named, Some("given")).await.unwrap();
    client.jobs().submit_batch(vec![named], None).await.unwrap();
    let keys: Vec<_> = server.heard().iter().map(|request| header(request, "Idempotency-Key")).collect();
    assert_eq!(keys, [None, Some("given".to_owned()), None]);
}

/// An instance that keeps its first request until the test lets it answer, one that shows it in the cluster, and a client of both
/// that knows so and goes to the first.
async fn kept(answer: Act) -> (StandIn, StandIn, Arc<Notify>, Client) {
    let notify = Arc::new(Notify::new());
    let keeps = StandIn::playing(vec![Act::When(Arc::clone(&notify), Box::new(answer))]).await;
    let script = [granted_on(FIRST)].into_iter().chain((0..50).map(|_| ring_of(&keeps)));
    let shows = StandIn::playing(script.collect()).await;
    let mut client = client(&[&shows, &keeps]);
    client.look_after = Duration::from_millis(20);
    // Longer than the test runs.
    client.look_while_waiting = Duration::from_secs(600);
    grant(&client).await.unwrap();
    until(|| client.owner(Some("x")).is_some()).await;
    client.rotate(0);
    (keeps, shows, notify, client)
}

#[tokio::test]
async fn an_instance_that_is_asked_to_wait_is_looked_after_less_often() {
    let (waits, shows, told_to_end, waiting) = kept(job("FINISHED")).await;
    let (_reads, asked, told_to_answer, reading) = kept(job("FINISHED")).await;
    let (waiting, reading) = (waiting.jobs(), reading.jobs());
    let read = async {
        until(|| waits.heard().len() == 1).await;
        reading.get("j").await
    };
    let watch = async {
        // The request that does not ask to wait came later, and its instance is looked after.
        until(|| asked.heard().len() > 4).await;
        let heard = shows.heard();
        assert_eq!(heard.len(), 2, "the grant, and the first look: {heard:?}");
        told_to_end.notify_one();
        told_to_answer.notify_one();
    };
    let (waited, read, ()) = tokio::join!(waiting.wait("j", Duration::from_secs(60)), read, watch);
    assert_eq!((waited.unwrap().id, read.unwrap().id), ("j".to_owned(), "j".to_owned()));
}

#[tokio::test]
async fn a_wait_that_a_paused_instance_keeps_goes_on_elsewhere_once_it_has_left_the_cluster() {
    let paused = StandIn::playing(vec![Act::Hold]).await;
    let without_it = shown_as(SECOND, "worker-queue", &[]);
    let script = vec![granted_on(FIRST), ring_of(&paused), ring_of(&paused), without_it, job("FINISHED")];
    let entry = StandIn::playing(script).await;
    let mut client = client(&[&entry, &paused]);
    (client.look_after, client.look_while_waiting) = (Duration::from_millis(20), Duration::from_millis(20));
    // Longer than the test runs: the answer that is kept is not waited for.
    client.retry.attempt_max = Duration::from_secs(600);
    client.retry.total_max = Duration::from_secs(600);
    grant(&client).await.unwrap();
    until(|| client.owner(Some("x")).is_some()).await;
    client.rotate(0);
    let jobs = client.jobs();
    let waited = jobs.wait("j", Duration::from_secs(600));
    let job = tokio::time::timeout(PATIENCE, waited).await.expect("it is asked elsewhere").unwrap();
    assert_eq!((job.id.as_str(), paused.heard().len()), ("j", 1));
    assert!(entry.heard()[4].starts_with("GET /v1/jobs/j?wait_ms="), "{:?}", entry.heard());
}

#[tokio::test]
async fn a_wait_asks_until_the_job_has_ended() {
    let server = StandIn::playing(vec![job("CREATED"), Act::HangUp, job("FINISHED")]).await;
    let job = client(&[&server]).jobs().wait("j", Duration::from_secs(60)).await.unwrap();
    assert_eq!((job.id.as_str(), job.result), ("j", Some(Json::null())));
    assert_eq!(job.payload.unwrap().as_str(), r#"{ "a":1 }"#);
    let heard = server.heard();
    assert!(heard.iter().all(|request| request.starts_with("GET /v1/jobs/j?wait_ms=")), "{heard:?}");
}

#[tokio::test]
async fn a_batch_has_as_many_answers_as_jobs_and_a_retry_needs_no_body() {
    let short = Act::Answer(202, "", r#"{"results":[{"id":"j"}]}"#.to_owned());
    let again = r#"{"id":"k","state":"CREATED","lane":"l","created_at":"t","retry_of":"j"}"#.to_owned();
    let server = StandIn::playing(vec![short, Act::Answer(202, "", again)]).await;
    let client = client(&[&server]);
    let jobs = vec![JobRequest::new(Json::null()), JobRequest::new(Json::null())];
    assert!(matches!(client.jobs().submit_batch(jobs, None).await, Err(Error::Unexpected { .. })));
    assert_eq!(client.jobs().retry("j", Some("mine")).await.unwrap().retry_of.as_deref(), Some("j"));
    let retry = &server.heard()[1];
    assert!(retry.starts_with("POST /v1/jobs/j/retry HTTP/1.1\r\n"), "{retry}");
    assert_eq!(header(retry, "Idempotency-Key").as_deref(), Some("mine"));
}
