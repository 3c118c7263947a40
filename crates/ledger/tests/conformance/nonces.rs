//! Nonce rows: what a batch writes, what it refuses to write, and what is read back.

use domain::nonce::{Change, OnExpiry, Policy, Status};
use domain::{Resource, Timestamp, Token, TxHash};
use ledger::{NonceFilter, OverdueSigners, Verdict};

use crate::bench::{
    Bench, LONG_MS, batch, batch_with_policy, eventually, hold, new_grant, nonce, owner, signer,
};

pub fn moves(number: u64, from: Status, to: Status, tx: Option<&str>) -> Change {
    let tx_hash = tx.map(|tx| TxHash::parse(tx).unwrap());
    Change::Move { nonce: nonce(number), hold: hold(u128::from(number)), from, to, tx_hash }
}

pub async fn a_grant_is_loaded_by_the_next_owner(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let window = Policy { max_in_flight: Some(9), ..Policy::default() };
    let empty = b.ledger.load(&s, 10).await.unwrap();
    assert_eq!((empty.policy, empty.last, empty.in_flight, empty.holes_complete), (None, None, 0, true));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let mut grant = batch(&s, &a, token, vec![new_grant(5, 1_000), new_grant(6, 1_000)]);
    grant.policy = Some(window.clone());
    let Verdict::Committed { at } = b.ledger.commit(grant).await.unwrap() else { panic!("not committed") };
    let loaded = b.ledger.load(&s, 10).await.unwrap();
    assert_eq!((loaded.policy, loaded.last, loaded.in_flight), (Some(window), Some(nonce(6)), 2));
    let read = b.ledger.rows(&s, &[nonce(6), nonce(4)]).await.unwrap();
    let [row] = &read.value[..] else { panic!("{read:?}") };
    assert_eq!((row.nonce, row.status, row.hold), (nonce(6), Status::Held, hold(6)));
    assert_eq!(row.held_until, at.plus_ms(1_000), "the answer's held_until is the row's");
    assert!(read.at >= at);
}

pub async fn a_batch_with_one_wrong_row_writes_nothing(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch(&s, &a, token, vec![new_grant(0, LONG_MS), new_grant(1, LONG_MS)])).await;
    b.commits(batch(&s, &a, token, vec![moves(1, Status::Held, Status::Released, None)])).await;
    let fills = |number, last_hold| Change::Grant {
        nonce: nonce(number),
        hold: hold(90),
        hold_ms: 1,
        fills: Some(hold(last_hold)),
    };
    let wrong = [
        ("a nonce that is there is not new", new_grant(0, 1)),
        ("a held nonce is no hole", fills(0, 0)),
        ("a hole of another hold", fills(1, 77)),
        ("a hole that never was", fills(9, 9)),
        ("another state", moves(0, Status::Quarantined, Status::Consumed, None)),
        (
            "another hold",
            Change::Move {
                nonce: nonce(0),
                hold: hold(77),
                from: Status::Held,
                to: Status::Consumed,
                tx_hash: None,
            },
        ),
        (
            "a hold that still runs",
            Change::Expire { nonce: nonce(0), hold: hold(0), early_ms: 0, to: Status::Released },
        ),
    ];
    for (why, change) in wrong {
        let verdict = b.ledger.commit(batch(&s, &a, token, vec![new_grant(2, 1), change])).await.unwrap();
        assert_eq!(verdict, Verdict::Diverged, "{why}");
        assert_eq!(b.last(&s).await, Some(1), "{why}: the rest of the batch was written");
    }
    b.commits(batch(&s, &a, token, vec![new_grant(2, 1), fills(1, 1)])).await;
}

pub async fn settlements_move_rows_and_keep_the_hold(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch(&s, &a, token, (0..4).map(|n| new_grant(n, LONG_MS)).collect())).await;
    let changes = vec![
        moves(0, Status::Held, Status::Consumed, Some("0xaa")),
        moves(1, Status::Held, Status::Released, None),
        moves(2, Status::Held, Status::Quarantined, None),
    ];
    let mut settle = batch(&s, &a, token, changes);
    settle.policy = Some(Policy { max_in_flight: Some(9), ..Policy::default() });
    b.commits(settle).await;
    let rows =
        b.ledger.nonces(&NonceFilter { signer: s.clone(), status: None, after: None, limit: 10 }).await;
    let rows = rows.unwrap();
    let seen: Vec<_> =
        rows.iter().map(|r| (r.row.status, r.row.hold, r.tx_hash().map(TxHash::as_str))).collect();
    assert_eq!(
        seen,
        [
            (Status::Consumed, hold(0), Some("0xaa")),
            (Status::Released, hold(1), None),
            (Status::Quarantined, hold(2), None),
            (Status::Held, hold(3), None),
        ]
    );
    assert!(rows.iter().all(|r| r.owner == a && r.token == token && r.updated_at >= r.created_at));
    assert_eq!(b.ledger.load(&s, 10).await.unwrap().in_flight, 2, "HELD and QUARANTINED count");
}

pub async fn a_consumed_nonce_gets_its_transaction_under_its_hold(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch(&s, &a, token, vec![new_grant(0, LONG_MS), new_grant(1, LONG_MS)])).await;
    let used = [0, 1].map(|n| moves(n, Status::Held, Status::Consumed, None));
    b.commits(batch(&s, &a, token, used.into())).await;
    // By one statement, and the general way.
    b.commits(batch(&s, &a, token, vec![moves(0, Status::Consumed, Status::Consumed, Some("0xaa"))])).await;
    let general = vec![moves(1, Status::Consumed, Status::Consumed, Some("0xbb"))];
    b.commits(batch_with_policy(&s, &a, token, general)).await;
    let filter = NonceFilter { signer: s.clone(), status: Some(Status::Consumed), after: None, limit: 10 };
    let rows = b.ledger.nonces(&filter).await.unwrap();
    let seen: Vec<_> = rows.iter().map(|r| (r.row.hold, r.tx_hash().map(TxHash::as_str))).collect();
    assert_eq!(seen, [(hold(0), Some("0xaa")), (hold(1), Some("0xbb"))]);
    let record = b.ledger.signer(&s).await.unwrap().unwrap();
    assert_eq!((record.next_nonce, record.consumed, record.held), (2, 2, 0));
}

pub async fn a_hold_expires_only_when_the_database_says_so(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch(&s, &a, token, vec![new_grant(0, 30), new_grant(1, LONG_MS)])).await;
    let found = async |max| b.ledger.overdue(&s, 0, None, max).await.unwrap();
    eventually("the hold runs out", async || found(10).await.len() == 2).await;
    assert_eq!(found(1).await.len(), 2, "the next is beside the limit");
    let found = found(10).await;
    let named: Vec<_> = found.iter().map(|held| (held.nonce, held.hold)).collect();
    assert_eq!(
        named,
        [(nonce(0), hold(0)), (nonce(1), hold(1))],
        "the next to run out comes behind those that did"
    );
    assert!(found[1].read_at < found[1].held_until);
    assert_eq!(found[0].held_until.ms_since(found[0].granted_at), 30);
    assert!(found[0].read_at >= found[0].held_until);
    assert_eq!(
        b.ledger.overdue(&s, LONG_MS + 1_000, None, 10).await.unwrap().len(),
        2,
        "looked for ahead of the time"
    );
    for (after_us, first) in [(0, 0), (1, 1)] {
        let from = Timestamp::from_micros(found[0].held_until.as_micros() + after_us);
        let behind = b.ledger.overdue(&s, LONG_MS + 1_000, Some(from), 10).await.unwrap();
        assert_eq!(behind[0].nonce, nonce(first), "from {after_us} us behind the end of the first on");
    }
    let expire = |n: u64| Change::Expire {
        nonce: nonce(n),
        hold: hold(u128::from(n)),
        early_ms: 0,
        to: Status::Quarantined,
    };
    b.commits(batch(&s, &a, token, vec![expire(0)])).await;
    assert_eq!(b.ledger.commit(batch(&s, &a, token, vec![expire(1)])).await.unwrap(), Verdict::Diverged);
    assert_eq!(b.ledger.commit(batch(&s, &a, token, vec![expire(0)])).await.unwrap(), Verdict::Diverged);
    let next = b.ledger.overdue(&s, 0, None, 10).await.unwrap();
    assert_eq!(next.iter().map(|held| held.nonce).collect::<Vec<_>>(), [nonce(1)], "the next to run out");
    assert!(next[0].read_at < next[0].held_until);
    assert!(b.ledger.overdue(&signer("other"), 0, None, 10).await.unwrap().is_empty());
}

pub async fn holes_come_lowest_first_and_say_whether_there_are_more(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch(&s, &a, token, (0..6).map(|n| new_grant(n, LONG_MS)).collect())).await;
    let released = [4, 1, 3].map(|n| moves(n, Status::Held, Status::Released, None));
    b.commits(batch(&s, &a, token, released.into())).await;
    let holes = async |max| {
        let (holes, complete) = b.ledger.holes(&s, max).await.unwrap();
        (holes.iter().map(|hole| hole.nonce.get()).collect::<Vec<_>>(), complete)
    };
    assert_eq!(holes(2).await, (vec![1, 3], false));
    assert_eq!(holes(3).await, (vec![1, 3, 4], true));
    assert_eq!(holes(9).await, (vec![1, 3, 4], true));
    assert_eq!(b.ledger.load(&s, 1).await.unwrap().holes[0].hold, hold(1));
}

pub async fn a_policy_is_kept_whole(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    let policies = [
        Policy {
            first_nonce: nonce(40),
            hold_ms: Some(5_000),
            on_expiry: OnExpiry::Quarantine,
            max_in_flight: Some(7),
            shared_keys: true,
        },
        Policy { first_nonce: nonce(40), ..Policy::default() },
    ];
    for policy in policies {
        let mut write = batch(&s, &a, token, vec![]);
        write.policy = Some(policy.clone());
        b.commits(write).await;
        assert_eq!(b.ledger.load(&s, 1).await.unwrap().policy, Some(policy.clone()));
        let record = b.ledger.signer(&s).await.unwrap().unwrap();
        assert_eq!((record.policy, record.next_nonce, record.consumed), (policy, 40, 0));
    }
}

pub async fn signers_are_counted_and_listed(b: Bench) {
    let a = owner("a");
    for name in ["s1", "s2", "s3"] {
        let s = signer(name);
        let token = b.acquired(&a, &s, LONG_MS).await;
        b.commits(batch_with_policy(&s, &a, token, (0..5).map(|n| new_grant(n, LONG_MS)).collect())).await;
        let changes = vec![
            moves(0, Status::Held, Status::Consumed, None),
            moves(1, Status::Held, Status::Consumed, None),
            moves(2, Status::Held, Status::Released, None),
            moves(3, Status::Held, Status::Quarantined, None),
        ];
        b.commits(batch(&s, &a, token, changes)).await;
    }
    let record = b.ledger.signer(&signer("s2")).await.unwrap().unwrap();
    assert_eq!((record.next_nonce, record.held, record.released), (5, 1, 1));
    assert_eq!((record.consumed, record.quarantined), (2, 1));
    assert_eq!((record.owner, record.token), (Some(a.clone()), Some(Token::new(1))));
    assert!(record.lease_expires_in_ms > 0 && record.oldest_hold_ms.is_some());
    assert_eq!(b.ledger.signer(&signer("s")).await.unwrap(), None);
    for (name, is_known) in [("s2", true), ("s", false)] {
        assert_eq!(b.ledger.is_known(&signer(name)).await.unwrap(), is_known, "{name}");
    }
    let names = async |prefix: &str, after: Option<&str>, limit| {
        let after = after.map(signer);
        let page = b.ledger.signers(prefix, after.as_ref(), limit).await.unwrap();
        page.into_iter().map(|record| record.signer.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("", None, 2).await, ["s1", "s2"]);
    assert_eq!(names("", Some("s2"), 2).await, ["s3"]);
    assert_eq!(names("s2", None, 2).await, ["s2"]);
    assert_eq!(names("s", Some("s1"), 2).await, ["s2", "s3"]);
    assert_eq!(names("s2", Some("s2"), 2).await, [""; 0]);
    assert_eq!(names("t", None, 2).await, [""; 0]);
    let mut counts = b.ledger.open_counts().await.unwrap();
    counts.sort_by_key(|(status, _)| status.as_str());
    assert_eq!(counts, [(Status::Held, 3), (Status::Quarantined, 3), (Status::Released, 3)]);
    b.ledger.release(&Resource::signer(&signer("s1")), &a, Token::new(1)).await.unwrap();
    let free = b.ledger.signer(&signer("s1")).await.unwrap().unwrap();
    assert_eq!((free.owner, free.token, free.lease_expires_in_ms), (None, Some(Token::new(1)), 0));
}

pub async fn nonces_are_listed_by_state_and_cursor(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch(&s, &a, token, (0..6).map(|n| new_grant(n, LONG_MS)).collect())).await;
    let released = [1, 3, 5].map(|n| moves(n, Status::Held, Status::Released, None));
    b.commits(batch(&s, &a, token, released.into())).await;
    let page = async |status, after: Option<u64>, limit| {
        let filter = NonceFilter { signer: s.clone(), status, after: after.map(nonce), limit };
        let page = b.ledger.nonces(&filter).await.unwrap();
        page.iter().map(|record| record.row.nonce.get()).collect::<Vec<_>>()
    };
    assert_eq!(page(None, None, 4).await, [0, 1, 2, 3]);
    assert_eq!(page(Some(Status::Held), None, 2).await, [0, 2]);
    assert_eq!(page(Some(Status::Held), Some(2), 2).await, [4]);
    assert_eq!(page(None, Some(3), 4).await, [4, 5]);
    assert_eq!(page(Some(Status::Released), None, 2).await, [1, 3]);
    assert_eq!(page(Some(Status::Released), Some(3), 2).await, [5]);
    assert_eq!(page(Some(Status::Consumed), None, 2).await, [0_u64; 0]);
}

pub async fn overdue_signers_are_those_without_a_live_owner(b: Bench) {
    let a = owner("a");
    b.ledger.acquire(&Resource::instance(&a), &a, LONG_MS).await.unwrap();
    // An instance without its own lease is dead, whatever other leases it has.
    let dead = owner("dead");
    let holds = [("owned", 1), ("free", 1), ("running", LONG_MS), ("settled", 1), ("gone", 1)];
    for (name, hold_ms) in holds {
        let s = signer(name);
        let a = if name == "gone" { &dead } else { &a };
        let token = b.acquired(a, &s, LONG_MS).await;
        // The first of its holds that runs out is what counts.
        b.commits(batch(&s, a, token, vec![new_grant(0, LONG_MS), new_grant(1, hold_ms)])).await;
        if name == "settled" {
            let settled = [0, 1].map(|n| moves(n, Status::Held, Status::Consumed, Some("0x1")));
            b.commits(batch(&s, a, token, settled.into())).await;
        }
        if !["owned", "gone"].contains(&name) {
            b.ledger.release(&Resource::signer(&s), a, token).await.unwrap();
        }
    }
    let look = async |after: Option<&str>, limit| {
        let after = after.map(signer);
        b.ledger.overdue_signers(&owner("b"), 0, after.as_ref(), limit).await.unwrap()
    };
    eventually("the holds run out", async || look(None, 9).await.overdue.len() >= 2).await;
    let found = |overdue: &[&str], next: Option<&str>| OverdueSigners {
        overdue: overdue.iter().copied().map(signer).collect(),
        next: next.map(signer),
    };
    assert_eq!(look(None, 9).await, found(&["free", "gone"], None));
    assert_eq!(look(None, 1).await, found(&["free"], Some("free")));
    assert_eq!(look(Some("free"), 1).await, found(&["gone"], Some("gone")));
    assert_eq!(look(Some("gone"), 1).await, found(&[], Some("owned")));
    assert_eq!(look(Some("owned"), 2).await, found(&[], None), "one signer is left, and two were asked for");
    assert_eq!(look(Some("owned"), 1).await, found(&[], Some("running")));
    assert_eq!(look(Some("running"), 1).await, found(&[], None));
    let mine = b.ledger.overdue_signers(&a, 0, None, 9).await.unwrap();
    assert_eq!(mine, found(&["free", "gone", "owned"], None), "its own signers count for who asks");
    // What of a signer's holds is left to run out soon counts as run out for who knows its clock to be behind.
    let ahead = b.ledger.overdue_signers(&owner("b"), LONG_MS, None, 9).await.unwrap();
    assert_eq!(ahead, found(&["free", "gone", "running"], None));
}

pub async fn a_thousand_nonces_fit_one_batch(b: Bench) {
    let (a, s) = (owner("a"), signer("s"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch_with_policy(&s, &a, token, (0..1_000).map(|n| new_grant(n, LONG_MS)).collect())).await;
    let consume = (0..1_000).map(|n| moves(n, Status::Held, Status::Consumed, Some("0x1"))).collect();
    b.commits(batch(&s, &a, token, consume)).await;
    let record = b.ledger.signer(&s).await.unwrap().unwrap();
    assert_eq!((record.next_nonce, record.consumed, record.held), (1_000, 1_000, 0));
}

pub async fn odd_but_legal_texts_survive(b: Bench) {
    let (a, s) = (owner("a.b_c:d@e-f"), signer("eip155:1:0xAb@-._"));
    let token = b.acquired(&a, &s, LONG_MS).await;
    b.commits(batch_with_policy(&s, &a, token, vec![new_grant(0, LONG_MS)])).await;
    let tx = r#"'"\{}[]$1,%;--/**/?:<>&|`~"#;
    b.commits(batch(&s, &a, token, vec![moves(0, Status::Held, Status::Consumed, Some(tx))])).await;
    let rows = b.ledger.rows(&s, &[nonce(0)]).await.unwrap().value;
    assert_eq!(rows[0].tx_hash.as_ref().map(TxHash::as_str), Some(tx));
    assert_eq!(b.ledger.signers("", None, 1).await.unwrap()[0].signer, s);
}
