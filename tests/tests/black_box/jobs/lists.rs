//! Lists: all that fit, each once, in their order, however many are on a page.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::rig::{Rig, echo, with};
use crate::until;

/// All pages of a list.
async fn pages(rig: &Rig, index: usize, query: &str, limit: usize) -> Vec<Value> {
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = rig.get(index, &format!("{query}limit={limit}{cursor}")).await;
        let some = page["items"].as_array().unwrap();
        assert!(some.len() <= limit);
        items.extend(some.iter().cloned());
        assert!(items.len() <= 1_000, "{query} goes on for ever");
        let Some(next) = page["next_cursor"].as_str() else { return items };
        assert_eq!(some.len(), limit, "a page with a next one is full");
        cursor = format!("&cursor={next}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_page_by_page_under_every_condition() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 8).await;
    let mut expected = Vec::new();
    for n in 0..24 {
        let job = match n % 4 {
            0 => with(echo(n), json!({"tenant": "a"})),
            1 => json!({"payload": {"broken": "b"}, "tenant": "a"}),
            2 => with(echo(n), json!({"delay_ms": 3_600_000})),
            _ => json!({"payload": {"fail": 9}, "max_attempts": 1, "pool": "default"}),
        };
        expected.push(rig.submit(n % 2, job).await);
    }
    for (n, id) in expected.iter().enumerate() {
        if n % 4 != 2 {
            rig.finished(1, id).await;
        }
    }
    let of = |wanted: &[usize]| -> BTreeSet<String> {
        expected
            .iter()
            .enumerate()
            .filter(|(n, _)| wanted.contains(&(n % 4)))
            .map(|(_, id)| id.clone())
            .collect()
    };
    for (query, wanted) in [
        ("", &[0, 1, 2, 3][..]),
        ("state=CREATED&", &[2]),
        ("state=FINISHED&", &[0, 1, 3]),
        ("outcome=succeeded&", &[0]),
        ("outcome=failed&", &[1, 3]),
        ("dead=true&", &[1, 3]),
        ("dead=false&", &[0, 2]),
        ("dead=false&tenant=a&", &[0]),
        ("dead=false&state=FINISHED&", &[0]),
        ("retriable=true&", &[0, 1, 3]),
        ("retriable=true&dead=true&tenant=a&", &[1]),
        ("retriable=true&state=CREATED&", &[]),
        ("retriable=false&tenant=a&", &[0, 1]),
        ("tenant=a&", &[0, 1]),
        ("tenant=a&outcome=failed&", &[1]),
        ("tenant=nobody&", &[]),
        ("pool=default&", &[3]),
        ("state=CREATED&outcome=failed&", &[]),
    ] {
        for limit in [5, 24, 1_000] {
            let items = pages(&rig, 1, &format!("/v1/jobs?{query}"), limit).await;
            let ids: Vec<_> = items.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect();
            assert!(ids.is_sorted_by(|a, b| a > b), "newest first, each once: {query} {ids:?}");
            assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), of(wanted), "{query}");
            assert!(items.iter().all(|job| job.get("payload").is_none() && job.get("attempts").is_none()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_listed_page_by_page_on_every_instance() {
    let rig = Rig::together(2).await;
    let mut nodes = Vec::new();
    for n in 0..5 {
        nodes.push(
            rig.node(&[n % 2], &format!("n-{n}"), |options| options.version = Some("v".to_owned())).await,
        );
    }
    for index in [0, 1] {
        until("all are listed", async || pages(&rig, index, "/v1/nodes?", 2).await.len() == 5).await;
        let items = pages(&rig, index, "/v1/nodes?", 2).await;
        let ids: Vec<_> = items.iter().map(|node| node["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["n-0", "n-1", "n-2", "n-3", "n-4"]);
        assert!(items.iter().all(|node| node["version"] == "v" && node["capacity"] == 1), "{items:?}");
        let holders: BTreeSet<_> = items.iter().map(|node| node["instance"].as_str().unwrap()).collect();
        assert_eq!(holders.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_other_list_is_page_by_page_what_it_is_at_once() {
    let rig = Rig::alone().await;
    for n in 0..3 {
        let nonces = json!({"count": 3, "hold_ms": 600_000});
        rig.post(0, &format!("/v1/signers/s{n}/nonces"), Some(&nonces), 201).await;
        let segment = format!("/v1/ids/segments/t{n}");
        let made = rig.ask(0, "PUT", &segment, Some(&json!({"step": 100}))).await;
        assert_eq!(made.status, 200, "{}", made.text);
        let made = rig.ask(0, "PUT", &format!("/v1/ids/sequences/t{n}"), Some(&json!({}))).await;
        assert_eq!(made.status, 200, "{}", made.text);
        let task = json!({"tenant": format!("t{n}"), "stages": [{"name": "s", "payload": 1}]});
        rig.post(0, "/v1/plans", Some(&json!({"start": false, "tasks": [task]})), 201).await;
        rig.post(0, "/v1/bulk", Some(&json!({"action": "dismiss", "filter": {}})), 202).await;
    }
    for (list, field) in [
        ("/v1/signers?", "signer"),
        ("/v1/signers/s0/nonces?", "nonce"),
        ("/v1/signers/s0/nonces?status=HELD&", "nonce"),
        ("/v1/leases?kind=signer&", "resource"),
        ("/v1/ids/segments?", "tag"),
        ("/v1/ids/sequences?", "name"),
        ("/v1/audit?action=set_segment&", "id"),
        ("/v1/bulk?", "id"),
        ("/v1/plans?", "id"),
    ] {
        let names = async |limit: usize| {
            let items = pages(&rig, 0, list, limit).await;
            items.iter().map(|item| item[field].to_string()).collect::<Vec<_>>()
        };
        let all = names(1_000).await;
        let different: BTreeSet<_> = all.iter().collect();
        assert_eq!((all.len(), different.len()), (3, 3), "{list} {all:?}");
        for limit in [1, 2, 3] {
            assert_eq!(names(limit).await, all, "{list} by {limit}");
        }
    }
}
