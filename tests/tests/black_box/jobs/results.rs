//! Results of sessions that come faster than a socket reads them, or are more than there is room for.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;

use super::rig::{PATIENCE, Rig, echo, with};
use super::session_client::{Talk, open, seqs};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_only_listens_gets_every_result_while_jobs_end_all_the_time() {
    const COUNT: usize = 1_000;
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 200).await;
    let session = open(&rig, 0, json!({ "ordering": "none" })).await;
    let mut talk = Talk::open(&rig, 0, &session, None).await;
    let job = |n: usize| with(echo(n), json!({ "session": session }));
    // More of them end at once than notices of them are kept.
    rig.submit_all(0, &(0..COUNT).map(job).collect::<Vec<_>>()).await;
    let goes_on = async {
        loop {
            rig.submit(0, job(0)).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let reads = async {
        let mut missing: HashSet<u64> = (1..=COUNT as u64).collect();
        while !missing.is_empty() {
            missing.remove(&talk.next().await["seq"].as_u64().unwrap());
        }
    };
    tokio::select! {
        () = goes_on => {}
        read = tokio::time::timeout(PATIENCE, reads) => read.expect("every result while others come"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_sent_again_gets_its_result_again_wherever_its_client_began() {
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    for ordering in ["strict", "results", "none"] {
        let session = open(&rig, 0, json!({ "ordering": ordering })).await;
        let mut talk = Talk::open(&rig, 0, &session, None).await;
        for (n, client_ref) in ["a", "b", "a"].into_iter().enumerate() {
            talk.job(client_ref, echo(client_ref)).await;
            let accepted = talk.next().await;
            assert_eq!(accepted["type"], "accepted", "{ordering}, {n}: {accepted}");
            let result = talk.next().await;
            assert_eq!(
                [&result["ref"], &result["result"]],
                [client_ref, client_ref],
                "{ordering}, {n}: {result}"
            );
        }
        // One that begins behind everything, and one that begins behind what is not there yet.
        for (after_seq, client_ref) in [(None, "a"), (Some(99), "c")] {
            let mut talk = Talk::open(&rig, 0, &session, after_seq).await;
            talk.job(client_ref, echo(client_ref)).await;
            let (accepted, result) = (talk.next().await, talk.next().await);
            assert_eq!(
                [&accepted["type"], &result["type"]],
                ["accepted", "result"],
                "{ordering}: {accepted}"
            );
            assert_eq!([&accepted["seq"], &result["ref"]], [&result["seq"], &json!(client_ref)], "{result}");
        }
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_begin_anew_at_once_get_more_than_there_is_room_for() {
    const MIB: usize = 1 << 20;
    const SESSIONS: usize = 5;
    const RESULTS: u64 = 8;
    let room = (32 * MIB).to_string();
    let rig = Rig::alone_and(|setup| {
        let setup = setup.env("FENCEPOST__SERVER__SENDING_BYTES_MAX", &room);
        setup.env("FENCEPOST__SERVER__CALLER_SENDING_BYTES_MAX", &room)
    })
    .await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let session = open(&rig, 0, json!({ "ordering": "none" })).await;
        for _ in 0..RESULTS {
            let job = with(echo("x".repeat(MIB - 4_096)), json!({ "session": session }));
            let id = rig.submit(0, job).await;
            rig.finished(0, &id).await;
        }
        sessions.push(session);
    }
    let reads = sessions.iter().map(async |session| {
        let results = Talk::open(&rig, 0, session, Some(0)).await.results(RESULTS as usize).await;
        results.iter().map(|result| result["seq"].as_u64().unwrap()).collect::<HashSet<_>>()
    });
    for seqs in futures_util::future::join_all(reads).await {
        assert_eq!(seqs, (1..=RESULTS).collect());
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_everything_again_gets_every_result_before_the_session_closes() {
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let session = open(&rig, 0, json!({})).await;
    // More results than one read takes, of jobs that one notice names.
    let job = json!({ "payload": { "large": 900_000 } });
    let mut talk = Talk::open(&rig, 0, &session, None).await;
    for n in 0..20 {
        talk.job(&format!("r{n}"), job.clone()).await;
    }
    talk.results(20).await;
    let mut again = Talk::open(&rig, 0, &session, Some(20)).await;
    for n in 0..20 {
        again.job(&format!("r{n}"), job.clone()).await;
    }
    let (mut accepted, mut results) = (0, Vec::new());
    while accepted < 20 {
        let frame = again.next().await;
        match frame["type"] == "accepted" {
            true => accepted += 1,
            false => results.push(frame),
        }
    }
    rig.ask(0, "DELETE", &format!("/v1/sessions/{session}"), None).await;
    results.extend(again.results(20 - results.len()).await);
    let mut places = seqs(&results);
    places.sort_unstable();
    assert!(places.into_iter().eq(1..=20));
    assert_eq!(again.closed().await, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_behind_everything_and_sends_it_again_gets_the_results_in_order() {
    const COUNT: usize = 30;
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let session = open(&rig, 0, json!({ "ordering": "strict" })).await;
    let mut talk = Talk::open(&rig, 0, &session, None).await;
    for n in 0..COUNT {
        talk.job(&format!("r{n}"), echo(n)).await;
    }
    talk.results(COUNT).await;
    let mut anew = Talk::open(&rig, 0, &session, None).await;
    // In one go, so that one look finds them all.
    for n in 0..COUNT {
        anew.job(&format!("r{n}"), echo(n)).await;
    }
    let mut places = Vec::new();
    while places.len() < COUNT {
        let frame = anew.next().await;
        if frame["type"] == "result" {
            places.push(frame["seq"].as_u64().unwrap());
        }
    }
    assert!(places.is_sorted(), "{places:?}");
    rig.no_defect().await;
}
