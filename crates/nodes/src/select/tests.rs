//! Tests of selection: what is chosen, what never is, and that nobody is waited for.

use std::collections::{HashMap, HashSet};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc;
use std::time::Duration;

use bus::NodeState;
use domain::job::Route;
use domain::{Label, PoolPause, Timestamp};
use rand::rngs::StdRng;

use super::*;
use crate::explain::Reason;
use crate::fixture::*;
use crate::record::Applied;
use crate::record::Record;

fn chosen(registry: &Registry, needs: &Requirements, rng: &mut StdRng) -> Option<(String, String)> {
    let choice = registry.select(&Wanted::new(needs), rng)?;
    Some((choice.node().to_string(), choice.pool().to_string()))
}

#[test]
fn a_node_had_much_room_if_a_quarter_of_its_slots_were_free() {
    for (capacity, used, expected) in
        [(1, 0, true), (2, 1, true), (4, 3, true), (5, 4, false), (100, 76, false)]
    {
        let registry = registry([record("n").capacity(capacity).used(used)]);
        let choice = anybody(&registry, &mut seeded()).unwrap();
        assert_eq!(choice.had_much_room(), expected, "{used} of {capacity}");
    }
}

#[test]
fn a_node_elsewhere_serves_a_job_though_it_is_full_but_not_while_it_takes_no_work() {
    let registry = registry([
        record("own").held_by("a"),
        record("n").held_by("b").used(4),
        record("m").held_by("b").labelled(&["cpu"]).used(4),
        record("draining").held_by("c").with(|status| status.state = NodeState::Draining),
    ]);
    let mut rng = seeded();
    let mut elsewhere = |labels: &[&str]| registry.serves_elsewhere(&needs(None, None, labels), &mut rng);
    let of = |name: &str| Some((node(name), instance("b")));
    let found: HashSet<_> = (0..100).map(|_| elsewhere(&[])).collect();
    assert_eq!(found, HashSet::from([of("n"), of("m")]));
    assert_eq!(elsewhere(&["cpu"]), of("m"));
    assert_eq!(elsewhere(&["none"]), None);
}

/// In how many of so many selections each node is chosen, each selection giving its slot back.
fn shares(registry: &Registry, needs: &Requirements, times: usize) -> HashMap<String, usize> {
    let mut rng = seeded();
    let mut shares = HashMap::new();
    for _ in 0..times {
        let (node, _) = chosen(registry, needs, &mut rng).expect("there are nodes");
        *shares.entry(node).or_default() += 1;
    }
    shares
}

#[test]
fn nobody_is_chosen_who_may_not_work_and_the_explanation_says_why() {
    let registry = registry([
        record("full").used(4),
        record("over").used(9),
        record("draining").with(|status| status.state = NodeState::Draining),
        record("unhealthy").with(|status| status.state = NodeState::Unhealthy),
        record("rebuilding").with(|status| status.is_complete = false),
        record("excluded"),
        record("lacking").labelled(&["cpu"]),
    ]);
    let (needs, excluded) = (needs(None, None, &[]), [node("excluded"), node("lacking")]);
    let wanted = Wanted { excluded: &excluded, ..Wanted::new(&needs) };
    let mut rng = seeded();
    assert!(registry.select(&wanted, &mut rng).is_none());
    let explanation = registry.explain(&wanted, &mut rng);
    assert_eq!((explanation.chosen, explanation.considered), (None, 7));
    let reasons = [
        (Reason::Excluded, 2),
        (Reason::NotReady, 1),
        (Reason::Draining, 1),
        (Reason::Unhealthy, 1),
        (Reason::Full, 2),
    ];
    assert_eq!(explanation.rejected, reasons);
    let names: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    let all =
        ["pool", "labels", "paused", "excluded", "unreachable", "not_ready", "draining", "unhealthy", "full"];
    assert_eq!(names, all);
}

#[test]
fn no_selection_finds_a_node_in_a_paused_pool() {
    let in_both = record("both");
    let only = |name: &str| {
        let name = name.to_owned();
        move |profile: &mut Profile| profile.pools = Some([pool_name(&name)].into())
    };
    let registry =
        registry([in_both, record("a-only").profile(only("a")), record("b-only").profile(only("b"))]);
    adopt(&registry, 1, vec![pool("a", &[], &[]), pool("b", &[], &[])]);
    let mut rng = seeded();
    let mut chosen = |pool: Option<&str>| {
        let needs = needs(pool, None, &[]);
        let wanted = Wanted::new(&needs);
        let choices = (0..20).filter_map(|_| registry.select(&wanted, &mut rng));
        let nodes: std::collections::BTreeSet<_> =
            choices.map(|choice| (choice.node().to_string(), choice.pool().to_string())).collect();
        nodes.into_iter().map(|(node, pool)| format!("{node} in {pool}")).collect::<Vec<_>>()
    };
    let serves =
        |node: &str| registry.serves(&self::node(node), &needs(None, None, &[])).map(|pool| pool.to_string());
    assert_eq!(chosen(Some("a")), ["a-only in a", "both in a"]);
    assert!(registry.adopt_pauses(&registry.pauses(), vec![pause("a")]));
    assert!(chosen(Some("a")).is_empty());
    assert_eq!(chosen(None), ["b-only in b", "both in b"], "a node in another pool is chosen there");
    assert_eq!((serves("a-only"), serves("both")), (None, Some("b".to_owned())), "nor is a slot passed on");
    let (in_a, anywhere) = (needs(Some("a"), None, &[]), needs(None, None, &[]));
    let nowhere = needs(None, None, &["tpu"]);
    let explained = |needs| registry.explain(&Wanted::new(needs), &mut seeded()).rejected;
    assert_eq!(explained(&in_a), [(Reason::Pool, 1), (Reason::Paused, 2)]);
    assert_eq!(explained(&anywhere), [(Reason::Paused, 1)]);
    assert_eq!(explained(&nowhere), [(Reason::Labels, 3)], "the end of the pause would not help");
    // The pause outlasts a new index, and so does its end.
    registry.reindex();
    assert!(chosen(Some("a")).is_empty());
    let openings = registry.openings();
    assert!(registry.adopt_pauses(&registry.pauses(), vec![]));
    assert!(openings.has_changed().unwrap(), "those who wait look again");
    assert_eq!(chosen(Some("a")), ["a-only in a", "both in a"]);
}

#[test]
fn a_node_is_kept_back_by_a_pause_only_where_it_could_run_the_job() {
    let registry = registry([
        record("mute"),
        record("fluent").labelled(&["asr:zh", "tts:en"]),
        record("lacking").labelled(&["cpu"]),
    ]);
    // `a` serves the route itself; in `b` a node must know its languages.
    adopt(&registry, 1, vec![pool("a", &["zh:en"], &[]), pool("b", &[], &[])]);
    let explained = |labels: &[&str]| {
        let needs = needs(None, Some("zh:en"), labels);
        registry.explain(&Wanted::new(&needs), &mut seeded()).rejected
    };
    assert_eq!(explained(&[]), []);
    assert!(registry.adopt_pauses(&registry.pauses(), vec![pause("a")]));
    assert_eq!(explained(&[]), [(Reason::Paused, 2)]);
    assert_eq!(explained(&["cpu"]), [(Reason::Labels, 2), (Reason::Paused, 1)]);
    assert!(registry.adopt_pauses(&registry.pauses(), vec![pause("b")]));
    assert_eq!(explained(&[]), []);
}

fn pause(name: &str) -> PoolPause {
    PoolPause {
        pool: pool_name(name),
        reason: "repair".into(),
        principal: "".into(),
        since: Timestamp::from_micros(1),
        until: None,
    }
}

#[test]
fn a_job_may_be_served_by_any_node_that_has_what_it_needs_and_a_change_of_that_has_a_number() {
    let draining = record("m").labelled(&["gpu"]).with(|status| status.state = NodeState::Draining);
    let registry = registry([record("n").labelled(&["cpu"]).used(4), draining]);
    let may = |labels: &[&str]| registry.may_be_served(&needs(None, None, labels));
    assert!(may(&[]) && may(&["cpu"]) && may(&["gpu"]));
    assert!(!may(&["none"]) && !may(&["cpu", "gpu"]), "no node has both");
    assert!(!registry.may_be_served(&needs(Some("a"), None, &[])), "there is no such pool");
    let mut before = registry.index_version();
    let mut has_risen =
        || registry.index_version() > std::mem::replace(&mut before, registry.index_version());
    assert_eq!(apply(&registry, record("n").labelled(&["cpu"]).at(1, 2)), Applied::New);
    assert!(!has_risen(), "it has free slots now, and what it can do is the same");
    assert!(registry.adopt_pauses(&registry.pauses(), vec![pause("default")]));
    assert!(has_risen() && !may(&["cpu"]));
    assert!(registry.adopt_pauses(&registry.pauses(), vec![]));
    assert!(has_risen() && may(&["cpu"]));
    assert_eq!(apply(&registry, record("both").labelled(&["cpu", "gpu"])), Applied::New);
    registry.reindex();
    assert!(has_risen() && may(&["cpu", "gpu"]));
}

#[test]
fn no_node_is_selected_before_the_pools_are_read_that_are_awaited() {
    let registry = registry([record("n"), record("fast").labelled(&["gpu"])]);
    registry.await_pools();
    let (needs, mut rng) = (needs(None, None, &[]), seeded());
    let serves = |name: &str| registry.serves(&node(name), &needs).map(|pool| pool.to_string());
    assert!(registry.adopt_pools(crate::pools::Pools::new(1, vec![pool("a", &[], &["gpu"])]).unwrap()));
    assert_eq!((chosen(&registry, &needs, &mut rng), serves("fast")), (None, None));
    registry.reindex();
    assert_eq!(chosen(&registry, &needs, &mut rng), None, "an index is no word about the pauses");
    assert!(registry.adopt_pauses(&registry.pauses(), vec![pause("b")]));
    assert_eq!(chosen(&registry, &needs, &mut rng), None);
    let openings = registry.openings();
    registry.pools_are_read();
    assert!(openings.has_changed().unwrap(), "those who wait look again");
    for _ in 0..20 {
        assert_eq!(chosen(&registry, &needs, &mut rng), Some(("fast".to_owned(), "a".to_owned())));
    }
    assert_eq!((serves("n"), serves("fast")), (None, Some("a".to_owned())));
}

#[test]
fn the_index_is_not_older_than_the_pools_where_these_were_awaited() {
    let registry = registry([record("n")]);
    registry.await_pools();
    assert!(registry.adopt_pools(crate::pools::Pools::new(1, vec![pool("a", &[], &["gpu"])]).unwrap()));
    registry.pools_are_read();
    assert!(chosen(&registry, &needs(None, None, &[]), &mut seeded()).is_none(), "the node is in no pool");
}

#[test]
fn a_paused_pool_stays_paused_while_new_indexes_are_built() {
    let registry = registry([record("n")]);
    adopt(&registry, 1, vec![pool("a", &[], &[])]);
    assert!(registry.adopt_pauses(&registry.pauses(), vec![pause("a")]));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for _ in 0..5_000 {
                registry.reindex();
            }
            is_over.store(true, SeqCst);
        });
        let (needs, mut rng) = (needs(Some("a"), None, &[]), seeded());
        while !is_over.load(SeqCst) {
            assert!(registry.select(&Wanted::new(&needs), &mut rng).is_none());
        }
    });
}

#[test]
fn pauses_that_were_read_before_others_became_known_change_nothing() {
    let registry = registry([record("n")]);
    let (slow, quick) = (registry.pauses(), registry.pauses());
    assert!(registry.adopt_pauses(&quick, vec![pause("a")]));
    assert!(!registry.adopt_pauses(&slow, vec![]), "what was read in between is newer");
    assert_eq!(*registry.pauses(), [pause("a")]);
    let (slow, quick) = (registry.pauses(), registry.pauses());
    assert!(registry.adopt_pauses(&quick, vec![pause("a")]));
    assert!(!registry.adopt_pauses(&slow, vec![]), "also where it was the same");
}

#[test]
fn without_configured_pools_everybody_is_in_default_and_routes_ask_for_languages() {
    let registry = registry([
        record("zh-en").labelled(&["asr:zh", "tts:en", "gpu"]),
        record("en-zh").labelled(&["asr:en", "tts:zh"]),
        record("limited").profile(|profile| profile.pools = Some([pool_name("other")].into())),
    ]);
    let mut rng = seeded();
    let table = [
        (needs(None, Some("zh:en"), &[]), Some("zh-en")),
        (needs(Some("default"), Some("en:zh"), &[]), Some("en-zh")),
        (needs(None, Some("zh:en"), &["gpu"]), Some("zh-en")),
        (needs(None, Some("en:zh"), &["gpu"]), None),
        (needs(None, Some("zh:zh"), &[]), None),
        (needs(None, Some("zh:fr"), &[]), None),
        (needs(None, None, &["tpu"]), None),
        (needs(Some("other"), None, &[]), None),
    ];
    for (needs, expected) in table {
        let found = chosen(&registry, &needs, &mut rng);
        let expected = expected.map(|node| (node.to_owned(), "default".to_owned()));
        assert_eq!(found, expected, "{needs:?}");
    }
    let explanation = registry.explain(&Wanted::new(&needs(Some("other"), None, &[])), &mut rng);
    assert_eq!(explanation.rejected, [(Reason::Pool, 3)]);
    let explanation = registry.explain(&Wanted::new(&needs(None, Some("zh:en"), &[])), &mut rng);
    assert_eq!(explanation.chosen, Some((node("zh-en"), pool_name("default"))));
    assert_eq!(explanation.rejected, [(Reason::Labels, 2)]);
}

#[test]
fn configured_pools_take_who_meets_them_and_serve_their_routes() {
    let registry = registry([
        record("special").labelled(&["gpu"]),
        record("polyglot").labelled(&["asr:zh", "tts:en"]),
        record("shy")
            .labelled(&["gpu", "asr:zh", "tts:en"])
            .profile(|profile| profile.pools = Some([pool_name("nowhere")].into())),
    ]);
    adopt(&registry, 1, vec![pool("fast", &["zh:en", "de:fr"], &["gpu"]), pool("rest", &[], &[])]);
    let mut rng = seeded();
    let mut both = |needs: &Requirements| -> Vec<_> {
        let mut found: Vec<_> = (0..200).filter_map(|_| chosen(&registry, needs, &mut rng)).collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    let pair = |node: &str, pool: &str| (node.to_owned(), pool.to_owned());
    let (special, polyglot) = (pair("special", "fast"), pair("polyglot", "rest"));
    assert_eq!(both(&needs(None, Some("zh:en"), &[])), [polyglot.clone(), special.clone()]);
    assert_eq!(
        both(&needs(None, Some("de:fr"), &[])),
        slice::from_ref(&special),
        "the pool answers for its route"
    );
    assert_eq!(both(&needs(Some("rest"), Some("zh:en"), &[])), [polyglot]);
    assert_eq!(both(&needs(Some("fast"), Some("zh:en"), &[])), slice::from_ref(&special));
    assert_eq!(both(&needs(Some("fast"), Some("en:zh"), &[])), [], "it does not serve that route");
    assert_eq!(both(&needs(Some("fast"), None, &["gpu"])), [special]);
    assert_eq!(both(&needs(Some("default"), None, &[])), []);
}

#[test]
fn pools_are_tried_by_weight_and_an_exhausted_one_leaves_its_share_to_the_others() {
    let registry = registry([record("often").labelled(&["o"]), record("seldom").labelled(&["s"])]);
    let mut often = pool("often", &[], &["o"]);
    often.weight = 3;
    adopt(&registry, 1, vec![often, pool("seldom", &[], &["s"])]);
    let shared = shares(&registry, &Requirements::default(), 4_000);
    assert!((2_800..3_200).contains(&shared["often"]), "three of four: {shared:?}");
    apply(&registry, record("often").labelled(&["o"]).at(1, 2).used(4));
    assert_eq!(shares(&registry, &Requirements::default(), 100), HashMap::from([("seldom".to_owned(), 100)]));
}

#[test]
fn every_node_is_chosen_about_as_often_as_any_other() {
    let registry = registry((0..65).map(|n| record(&format!("n{n}"))));
    let shared = shares(&registry, &Requirements::default(), 65 * 200);
    assert_eq!(shared.len(), 65);
    assert!(shared.values().all(|times| (100..400).contains(times)), "{shared:?}");
}

#[test]
fn a_burst_does_not_pile_onto_one_node() {
    let registry = registry((0..10).map(|n| record(&format!("n{n}")).capacity(100)));
    let mut rng = seeded();
    for _ in 0..500 {
        anybody(&registry, &mut rng).unwrap().reserved();
    }
    let used: Vec<_> = registry.list(None, 10).iter().map(|record| record.status.used).collect();
    assert!(used.iter().all(|used| (40..=60).contains(used)), "{used:?}");
    let record = registry.get(&node("n0")).unwrap();
    apply(&registry, record.at(1, 2).used(7));
    assert_eq!(
        registry.get(&node("n0")).unwrap().status.used,
        7,
        "updates count for all that was counted here"
    );
}

#[test]
fn slots_add_up_under_many_selections_at_once() {
    let registry = registry((0..100).map(|n| record(&format!("n{n}")).capacity(3)));
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut rng = seeded();
                while let Some(choice) = anybody(&registry, &mut rng) {
                    choice.reserved();
                    taken.fetch_add(1, SeqCst);
                }
            });
        }
    });
    assert_eq!(taken.into_inner(), 300, "every slot once");
    assert!(registry.list(None, 100).iter().all(|record| record.status.used == 3));
}

#[test]
fn a_choice_that_is_dropped_gives_its_slot_back() {
    let registry = registry([record("only").capacity(1)]);
    let mut rng = seeded();
    let choice = anybody(&registry, &mut rng).unwrap();
    assert_eq!(
        (choice.holder(), choice.epoch(), choice.pool()),
        (&instance("a"), Epoch::new(1), &pool_name("default"))
    );
    assert!(anybody(&registry, &mut rng).is_none());
    let mut openings = registry.openings();
    drop(choice);
    assert!(openings.has_changed().unwrap(), "whoever found it taken hears that it is free");
    openings.mark_unchanged();
    anybody(&registry, &mut rng).unwrap().found_full();
    assert!(anybody(&registry, &mut rng).is_none() && !openings.has_changed().unwrap());
    apply(&registry, record("only").capacity(1).at(1, 2));
    assert!(openings.has_changed().unwrap());
    anybody(&registry, &mut rng).unwrap().reserved();
    assert!(anybody(&registry, &mut rng).is_none());
    registry.freed(&node("only"), Epoch::new(2));
    assert!(anybody(&registry, &mut rng).is_none(), "that was another connection");
    registry.freed(&node("only"), Epoch::new(1));
    assert!(anybody(&registry, &mut rng).is_some());
}

#[test]
fn a_full_node_serves_what_it_could_be_chosen_for_if_it_were_not() {
    let registry = registry([
        record("full").used(4).labelled(&["gpu"]),
        record("draining").with(|status| status.state = NodeState::Draining),
        record("unhealthy").with(|status| status.state = NodeState::Unhealthy),
        record("rebuilding").with(|status| status.is_complete = false),
    ]);
    let serves =
        |name: &str, needs: &Requirements| registry.serves(&node(name), needs).map(|pool| pool.to_string());
    let (any, gpu, cpu) = (Requirements::default(), needs(None, None, &["gpu"]), needs(None, None, &["cpu"]));
    assert_eq!(serves("full", &any).as_deref(), Some("default"));
    assert_eq!(serves("full", &gpu).as_deref(), Some("default"));
    assert_eq!(serves("full", &cpu), None);
    for none in ["draining", "unhealthy", "rebuilding", "unknown"] {
        assert_eq!(serves(none, &any), None, "{none}");
    }
    adopt(&registry, 1, vec![pool("a", &[], &["gpu"]), pool("b", &[], &["cpu"])]);
    assert_eq!(serves("full", &any).as_deref(), Some("a"));
    assert_eq!(serves("full", &needs(Some("b"), None, &[])), None);
}

#[test]
fn a_reservation_that_is_taken_back_opens_its_node_again_and_makes_no_room_beyond_it() {
    let registry = registry([record("only").capacity(1)]);
    let mut rng = seeded();
    let mut openings = registry.openings();
    anybody(&registry, &mut rng).unwrap().reserved();
    openings.mark_unchanged();
    registry.unreserved(&node("only"));
    assert!(openings.has_changed().unwrap());
    // The one reservation was of before the last update, and had the bus find it full.
    anybody(&registry, &mut rng).unwrap().found_full();
    openings.mark_unchanged();
    registry.unreserved(&node("only"));
    assert!(openings.has_changed().unwrap());
    anybody(&registry, &mut rng).unwrap().reserved();
    assert!(anybody(&registry, &mut rng).is_none(), "it has one slot");
    registry.unreserved(&node("nobody"));
}

#[test]
fn who_is_preferred_is_taken_if_it_can_be() {
    let registry = registry((0..200).map(|n| record(&format!("n{n}")).capacity(1)));
    adopt(&registry, 1, vec![pool("a", &[], &[]), pool("b", &[], &[])]);
    let (needs, last, pool) = (Requirements::default(), node("n77"), pool_name("b"));
    let wanted = Wanted { preferred: Some(&last), preferred_pool: Some(&pool), ..Wanted::new(&needs) };
    let mut rng = seeded();
    let choice = registry.select(&wanted, &mut rng).unwrap();
    assert_eq!(choice.node(), &last);
    let other = registry.select(&wanted, &mut rng).unwrap();
    assert_eq!((other.node() == &last, other.pool()), (false, &pool));
    drop(choice);
    let excluded = Wanted { excluded: slice::from_ref(&last), ..wanted };
    assert_ne!(registry.select(&excluded, &mut rng).unwrap().node(), &last);
    let stranger = node("nobody");
    assert!(registry.select(&Wanted { preferred: Some(&stranger), ..wanted }, &mut rng).is_some());
}

#[test]
fn while_the_bus_is_away_only_own_nodes_are_chosen() {
    let registry = registry([record("own").used(4), record("far").held_by("b")]);
    let mut rng = seeded();
    registry.link(false);
    assert!(anybody(&registry, &mut rng).is_none());
    let explanation = registry.explain(&Wanted::new(&Requirements::default()), &mut rng);
    assert_eq!(explanation.rejected, [(Reason::Unreachable, 1), (Reason::Full, 1)]);
    let mut openings = registry.openings();
    openings.mark_unchanged();
    registry.link(true);
    assert!(openings.has_changed().unwrap());
    assert_eq!(anybody(&registry, &mut rng).unwrap().node(), &node("far"));
}

#[test]
fn nodes_whose_sockets_are_here_come_first_in_each_pool() {
    let registry = registry([
        record("own").labelled(&["a"]),
        record("own-too").labelled(&["a"]),
        record("far").held_by("b").labelled(&["a"]).capacity(1_000),
        record("elsewhere").held_by("b").labelled(&["b"]),
    ]);
    adopt(&registry, 1, vec![pool("a", &[], &["a"]), pool("b", &[], &["b"])]);
    let (mut rng, needs) = (seeded(), needs(Some("a"), None, &[]));
    let mut chosen: Vec<_> = std::iter::repeat_with(|| registry.select(&Wanted::new(&needs), &mut rng))
        .take(12)
        .flatten()
        .collect();
    let holders = |choices: &[Choice]| -> Vec<_> { choices.iter().map(|c| c.holder().to_string()).collect() };
    assert_eq!(holders(&chosen), [["a"; 8].as_slice(), &["b"; 4]].concat(), "as long as they have slots");
    // One that has a free slot again comes first again.
    chosen.swap_remove(0);
    let next = registry.select(&Wanted::new(&needs), &mut rng).unwrap();
    assert_eq!(next.holder(), &instance("a"));
    // The pools keep their shares, wherever their nodes are.
    drop((next, chosen));
    let shares = shares(&registry, &Requirements::default(), 400);
    assert!((120..280).contains(&shares["elsewhere"]), "{shares:?}");
}

#[test]
fn a_job_is_served_here_if_an_own_node_could_have_it_be_it_full() {
    let registry = registry([
        record("own").labelled(&["cpu"]).used(4),
        record("draining").labelled(&["disk"]).with(|status| status.state = NodeState::Draining),
        record("other").labelled(&["gpu"]).held_by("b"),
    ]);
    let served = |label| registry.is_served_here(&needs(None, None, &[label]));
    assert_eq!(["cpu", "disk", "gpu"].map(served), [true, false, false]);
}

#[test]
fn the_one_free_node_of_ten_thousand_is_found() {
    let registry = registry((0..10_000).map(|n| record(&format!("n{n}")).used(4)));
    let mut rng = seeded();
    for round in 0..200_u64 {
        assert!(anybody(&registry, &mut rng).is_none());
        let free = format!("n{}", rng.random_range(0..10_000));
        let version = registry.get(&node(&free)).unwrap().stamp.version.get() + 1;
        apply(&registry, record(&free).at(1, version));
        assert_eq!(anybody(&registry, &mut rng).unwrap().node(), &node(&free), "round {round}");
        apply(&registry, record(&free).at(1, version + 1).used(4));
    }
}

/// A choice exists exactly if a look at every node finds one, and it is one of those.
#[test]
fn a_selection_finds_what_a_look_at_every_node_finds() {
    let mut rng = seeded();
    const LABELS: [&str; 6] = ["asr:zh", "asr:en", "tts:zh", "tts:en", "gpu", "big"];
    let some = |rng: &mut StdRng, chance: f64| -> Vec<&str> {
        LABELS.into_iter().filter(|_| rng.random_bool(chance)).collect()
    };
    for _ in 0..60 {
        let count = rng.random_range(0..300);
        let records: Vec<Record> = (0..count)
            .map(|n| {
                let labels = some(&mut rng, 0.4);
                record(&format!("n{n}")).labelled(&labels).used(rng.random_range(0..5))
            })
            .collect();
        let registry = registry(records.clone());
        let mut pools =
            vec![pool("p0", &["zh:en"], &some(&mut rng, 0.2)), pool("p1", &[], &some(&mut rng, 0.2))];
        pools.truncate(rng.random_range(0..=2));
        if !pools.is_empty() {
            adopt(&registry, 1, pools.clone());
        }
        for _ in 0..40 {
            let pool = ["p0", "p1", "default"][rng.random_range(0..3)];
            let route = ["zh:en", "en:zh"][rng.random_range(0..2)];
            let needs = needs(
                rng.random_bool(0.3).then_some(pool),
                rng.random_bool(0.5).then_some(route),
                &some(&mut rng, 0.1),
            );
            let may = |record: &Record| {
                let fluent = needs.route.as_ref().is_none_or(|Route { source, target }| {
                    [format!("asr:{source}"), format!("tts:{target}")]
                        .iter()
                        .all(|text| record.profile.has(&Label::parse(text).unwrap()))
                });
                let serves = |pool: &crate::Pool| {
                    needs.pool.as_ref().is_none_or(|name| *name == pool.name)
                        && pool.admits(&record.profile)
                        && (pool.routes.is_empty() && fluent
                            || needs.route.as_ref().is_none_or(|route| pool.routes.contains(route)))
                };
                let everybody = crate::Pool { requires: vec![], ..self::pool("default", &[], &[]) };
                let is_served = if pools.is_empty() { serves(&everybody) } else { pools.iter().any(serves) };
                is_served
                    && record.status.used < record.status.capacity
                    && needs.requires.iter().all(|label| record.profile.has(label))
            };
            let able: Vec<_> = records.iter().filter(|record| may(record)).map(|r| &r.profile.node).collect();
            let choice = registry.select(&Wanted::new(&needs), &mut rng);
            match &choice {
                Some(choice) => assert!(able.contains(&choice.node()), "{needs:?}"),
                None => assert!(able.is_empty(), "{needs:?}"),
            }
            drop(choice);
            let explanation = registry.explain(&Wanted::new(&needs), &mut rng);
            let rejected: usize = explanation.rejected.iter().map(|(_, count)| count).sum();
            assert_eq!(records.len() - rejected, able.len(), "{needs:?}: {explanation:?}");
        }
    }
}

/// Writers that stop half-way, with every lock of the registry held.
#[test]
fn a_reader_never_waits_for_a_writer() {
    let registry = registry((0..100).map(|n| record(&format!("n{n}"))));
    let (done, waiting) = mpsc::channel();
    let reader = registry.clone();
    registry.while_all_locks_are_held(|| {
        std::thread::spawn(move || {
            let mut rng = seeded();
            for n in 0..10_000 {
                let preferred = node(&format!("n{}", n % 100));
                let wanted = Requirements::default();
                let wanted = Wanted { preferred: Some(&preferred), ..Wanted::new(&wanted) };
                reader.select(&wanted, &mut rng).expect("there are free nodes");
                reader.explain(&wanted, &mut rng);
            }
            done.send(()).expect("the test waits");
        });
        let limit = Duration::from_secs(60);
        assert!(waiting.recv_timeout(limit).is_ok(), "a selection waits for a writer");
    });
}

#[test]
fn nodes_that_come_and_go_meanwhile_disturb_no_selection() {
    let registry = registry((0..500).map(|n| record(&format!("n{n}"))));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = seeded();
            for version in 2..2_000 {
                let name = format!("n{}", rng.random_range(0..600));
                let epoch = rng.random_range(1..3) * version;
                match rng.random_range(0..4) {
                    0 => registry.left(&node(&name), Epoch::new(epoch), Instant::now()),
                    _ => {
                        assert_ne!(apply(&registry, record(&name).at(epoch, version)), Applied::TooMany);
                    }
                }
                if version % 16 == 0 {
                    registry.reindex();
                }
            }
            is_over.store(true, SeqCst);
        });
        let mut rng = seeded();
        while !is_over.load(SeqCst) {
            anybody(&registry, &mut rng).expect("most nodes are free");
        }
    });
    registry.reindex();
    let free: u32 = registry.list(None, 1_000).iter().map(|record| record.status.capacity).sum();
    let mut rng = seeded();
    let taken = std::iter::from_fn(|| anybody(&registry, &mut rng).map(Choice::reserved)).count();
    assert_eq!(taken, free as usize, "what is open is what is free");
}
