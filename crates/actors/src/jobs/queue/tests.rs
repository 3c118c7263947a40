//! In which order what waits is served.

use std::cell::Cell;

use domain::Label;

use super::*;

fn needs(pool: &str) -> Arc<Requirements> {
    Arc::new(Requirements { pool: Some(PoolName::parse(pool).unwrap()), ..Requirements::default() })
}

/// Of no certain pool.
fn labelled(label: &str) -> Arc<Requirements> {
    Arc::new(Requirements { requires: vec![Label::parse(label).unwrap()], ..Requirements::default() })
}

fn turn(job: u128, priority: i64, tenant: &str) -> Turn {
    let tenant = (!tenant.is_empty()).then(|| TenantId::parse(tenant).unwrap());
    Turn { job: JobId::from_u128(job), seq: 0, priority: Priority::new(priority).unwrap(), tenant }
}

/// The class whose turn it is where all find a node.
fn next_class<T>(queue: &mut Queue<T>) -> Option<(ClassTurn, Arc<Requirements>)> {
    queue.turn(&mut 1, |_| Some(())).map(|(class, needs, ())| (class, needs))
}

/// All jobs in the order in which they are served.
fn drained(queue: &mut Queue<()>) -> Vec<u128> {
    let mut order = Vec::new();
    while let Some((class, _)) = next_class(queue) {
        order.push(queue.pop(class).unwrap().0.as_u128());
    }
    assert_eq!((queue.len(), queue.classes.len(), queue.ids.len(), queue.ready.len()), (0, 0, 0, 0));
    assert!(queue.pools.is_empty());
    order
}

/// The next job of the classes that have a node.
fn serve(queue: &mut Queue<()>, has_node: impl Fn(&Requirements) -> bool) -> u128 {
    let mut looks = usize::MAX;
    let (class, ..) = queue.turn(&mut looks, |of| has_node(of).then_some(())).unwrap();
    let served = queue.pop(class).unwrap().0.as_u128();
    queue.unblock();
    served
}

/// A pass over the queue with so many looks at once, while there are these nodes: the first jobs that find one.
fn pass(
    queue: &mut Queue<()>,
    (nodes, looks_at_once): (u64, usize),
    is_served: impl Fn(&Requirements) -> bool,
    has_slot: impl Fn(&Requirements) -> bool,
    jobs: usize,
) -> Vec<u128> {
    let (mut served, mut is_asked) = (Vec::new(), false);
    loop {
        let mut looks = looks_at_once;
        queue.look_at_parked(nodes, &mut looks, &is_served);
        while !is_asked
            && served.len() < jobs
            && let Some((class, ..)) = queue.turn(&mut looks, |of| has_slot(of).then_some(()))
        {
            served.push(queue.pop(class).unwrap().0.as_u128());
        }
        is_asked |= looks > 0 || served.len() == jobs;
        if is_asked {
            queue.end_pass(nodes, &mut looks, &is_served);
        }
        if looks > 0 {
            assert!(!queue.is_unsettled(nodes), "the pass is over");
            return served;
        }
        assert!(looks_at_once < usize::MAX, "there are always looks left");
    }
}

#[test]
fn higher_priority_comes_first_then_who_came_first() {
    let mut queue = Queue::default();
    for (job, priority) in [(1, 0), (2, 5), (4, -10), (3, 0), (5, 5)] {
        queue.push(&needs("a"), turn(job, priority, ""), ());
    }
    assert!(queue.has_before(&needs("a"), Priority::new(5).unwrap()));
    assert!(!queue.has_before(&needs("a"), Priority::new(6).unwrap()));
    assert!(!queue.has_before(&needs("b"), Priority::new(-10).unwrap()));
    assert_eq!(drained(&mut queue), [2, 5, 1, 3, 4]);
}

#[test]
fn jobs_of_sessions_wait_no_longer_than_others() {
    let at = |ms: u128, n: u128| (ms << 80) + n;
    let mut queue = Queue::default();
    for (job, seq) in [(at(3, 1), 0), (at(1, 2), 7), (at(2, 1), 2), (at(1, 1), 8), (at(2, 0), 0)] {
        queue.push(&needs("a"), Turn { seq, ..turn(job, 0, "") }, ());
    }
    // Within a millisecond by their places.
    assert_eq!(drained(&mut queue), [at(1, 2), at(1, 1), at(2, 0), at(2, 1), at(3, 1)]);
}

#[test]
fn a_backlog_of_one_tenant_does_not_keep_anothers_single_job_waiting() {
    let mut queue = Queue::default();
    for job in 0..1_000 {
        queue.push(&needs("a"), turn(job, 0, "big"), ());
    }
    queue.push(&needs("a"), turn(5_000, 0, "small"), ());
    queue.push(&needs("a"), turn(5_001, 0, ""), ());
    assert_eq!(drained(&mut queue)[..5], [0, 5_000, 5_001, 1, 2]);
}

#[test]
fn a_tenant_has_no_more_turns_the_more_different_things_its_jobs_need() {
    let mut queue = Queue::default();
    for job in 0..100 {
        queue.push(&labelled(&format!("c{job}")), turn(job, 0, "big"), ());
    }
    for job in [1_000, 1_001] {
        queue.push(&labelled("x"), turn(job, 0, "small"), ());
    }
    // Also where the other one waits already.
    queue.push(&labelled("c99"), turn(2_000, 0, "other"), ());
    assert_eq!(drained(&mut queue)[..6], [0, 1_000, 2_000, 1, 1_001, 2]);
}

#[test]
fn a_tenant_that_keeps_one_job_waiting_leaves_the_others_their_turns() {
    let mut queue = Queue::default();
    for job in 0..100 {
        queue.push(&labelled("a"), turn(job, 0, "backlog"), ());
    }
    for n in 0..20 {
        queue.push(&labelled(["a", "b"][n as usize % 2]), turn(1_000 + n, 0, "one"), ());
        for next in [n, 1_000 + n] {
            let (class, _) = next_class(&mut queue).unwrap();
            assert_eq!(queue.pop(class).unwrap().0.as_u128(), next);
        }
    }
    let turns = &queue.pools[&labelled("a").pool].turns[&Reverse(Priority::default())];
    assert_eq!(turns.tenants.len(), 1, "nothing is remembered of one that waits nowhere");
}

#[test]
fn jobs_of_a_tenant_that_are_served_elsewhere_do_not_keep_its_others_waiting() {
    let (mut queue, gpu) = (Queue::default(), labelled("gpu"));
    for job in 0..1_000 {
        queue.push(&gpu, turn(job, 0, "both"), ());
        queue.push(&labelled("cpu"), turn(2_000 + job, 0, "backlog"), ());
    }
    // The next one of those that need a GPU, or of the others.
    let serve = |queue: &mut Queue<()>, is_gpu: bool| serve(queue, |of| (*of == *gpu) == is_gpu);
    let busy = |queue: &mut Queue<()>| {
        for _ in 0..50 {
            serve(queue, true);
        }
    };
    busy(&mut queue);
    queue.push(&labelled("avx"), turn(9_000, 0, "both"), ());
    busy(&mut queue);
    let first = serve(&mut queue, false);
    busy(&mut queue);
    assert_eq!([first, serve(&mut queue, false)], [2_000, 9_000]);
}

/// A tenant with jobs in many classes.
fn backlog() -> Queue<()> {
    let mut queue = Queue::default();
    for job in 0..99 {
        queue.push(&labelled(&format!("c{job}")), turn(job, 0, "big"), ());
    }
    queue
}

/// Another tenant comes.
fn waits_for_few(queue: &mut Queue<()>, why: &str) {
    queue.push(&labelled("x"), turn(1_000, 0, "small"), ());
    let served = drained(queue);
    assert!(served[..3].contains(&1_000), "{why}: {served:?}");
}

#[test]
fn a_tenant_that_comes_does_not_wait_for_a_backlog_behind_jobs_of_a_higher_priority() {
    for (tenant, jobs) in [("big", 1), ("big", 200), ("other", 200)] {
        let mut queue = backlog();
        for job in 0..jobs {
            queue.push(&labelled("hot"), turn(2_000 + job, 1, tenant), ());
        }
        for job in 0..jobs {
            assert_eq!(serve(&mut queue, |_| true), 2_000 + job);
        }
        waits_for_few(&mut queue, tenant);
    }
}

#[test]
fn a_tenant_that_comes_does_not_wait_for_a_backlog_that_found_no_node_when_another_job_did() {
    let mut queue = backlog();
    assert_eq!(serve(&mut queue, |of| *of == *labelled("c98")), 98);
    waits_for_few(&mut queue, "the nodes of the others are free again");
}

#[test]
fn a_tenant_that_comes_takes_turns_with_one_that_was_served_alone_whatever_its_jobs_need() {
    let mut queue = Queue::default();
    for job in 0..1_000 {
        queue.push(&labelled(&format!("c{}", job % 99)), turn(job, 0, "big"), ());
    }
    for job in 0..500 {
        assert_eq!(serve(&mut queue, |_| true), job);
    }
    for job in 0..100 {
        queue.push(&labelled("x"), turn(5_000 + job, 0, "small"), ());
    }
    let served: Vec<_> = (0..40).map(|_| serve(&mut queue, |_| true)).collect();
    let of_small = served.iter().filter(|job| **job >= 5_000).count();
    assert!((19..=21).contains(&of_small), "{served:?}");
}

#[test]
fn a_tenant_with_a_job_that_never_finds_a_node_keeps_its_turns_for_its_other_jobs() {
    let mut queue = Queue::default();
    let serve = |queue: &mut Queue<()>| serve(queue, |of| *of != *labelled("none"));
    queue.push(&labelled("none"), turn(9_000, 0, "big"), ());
    for job in 0..1_000 {
        queue.push(&labelled("a"), turn(job, 0, "big"), ());
    }
    for _ in 0..500 {
        serve(&mut queue);
    }
    // One that has such a job as well, and one that has none.
    queue.push(&labelled("none"), turn(9_001, 0, "first"), ());
    for job in 0..100 {
        queue.push(&labelled("a"), turn(2_000 + job, 0, "first"), ());
        queue.push(&labelled(["a", "b"][job as usize % 2]), turn(5_000 + job, 0, "second"), ());
    }
    let served: Vec<_> = (0..60).map(|_| serve(&mut queue)).collect();
    let count = |jobs: std::ops::Range<u128>| served.iter().filter(|job| jobs.contains(*job)).count();
    for count in [count(0..1_000), count(2_000..2_100), count(5_000..5_100)] {
        assert!((18..=22).contains(&count), "{served:?}");
    }
}

#[test]
fn jobs_that_never_find_a_node_cost_their_tenant_no_turns() {
    let mut queue = Queue::default();
    let without = Requirements { requires: vec![Label::parse("none").unwrap()], ..Requirements::default() };
    let has_node = |of: &Requirements| !of.requires.starts_with(&without.requires);
    for class in 0..20 {
        let both = [without.requires[0].clone(), Label::parse(&format!("c{class}")).unwrap()];
        let needs = Requirements { requires: both.to_vec(), ..Requirements::default() };
        queue.push(&Arc::new(needs), turn(9_000 + class, 0, "many"), ());
    }
    for job in 0..200 {
        queue.push(&labelled("a"), turn(job, 0, "many"), ());
        queue.push(&labelled("b"), turn(1_000 + job, 0, "other"), ());
    }
    // It has waited for its turns by then.
    for _ in 0..40 {
        serve(&mut queue, has_node);
    }
    // Its turn is passed over, and comes late.
    for _ in 0..5 {
        assert!(serve(&mut queue, |of| *of == *labelled("b")) >= 1_000);
    }
    let served: Vec<_> = (0..60).map(|_| serve(&mut queue, has_node)).collect();
    let of_many = served.iter().filter(|job| **job < 1_000).count();
    assert!((28..=32).contains(&of_many), "{served:?}");
}

#[test]
fn a_tenant_that_comes_does_not_wait_for_a_backlog_that_found_no_node_while_another_tenant_was_served() {
    let mut queue = backlog();
    for job in 0..200 {
        queue.push(&labelled("hot"), turn(2_000 + job, 0, "other"), ());
    }
    for job in 0..200 {
        assert_eq!(serve(&mut queue, |of| *of == *labelled("hot")), 2_000 + job);
    }
    waits_for_few(&mut queue, "the nodes of the others are free again");
}

#[test]
fn jobs_that_were_all_taken_out_for_nothing_are_served_fairly_again() {
    let mut queue = backlog();
    for job in 0..10 {
        queue.push(&labelled("x"), turn(1_000 + job, 0, "small"), ());
    }
    let mut taken = Vec::new();
    while let Some((class, of)) = next_class(&mut queue) {
        taken.push((of, queue.pop(class).unwrap().0.as_u128()));
    }
    for (of, job) in taken {
        queue.put_back(&of, turn(job, 0, if job < 1_000 { "big" } else { "small" }), ());
    }
    let served = drained(&mut queue);
    let of_small = served[..8].iter().filter(|job| **job >= 1_000).count();
    assert!((3..=5).contains(&of_small), "{served:?}");
}

#[test]
fn a_job_is_served_however_often_its_tenant_is_served_late_elsewhere() {
    let mut queue = Queue::default();
    for job in 0..1_500 {
        queue.push(&labelled("x"), turn(job, 0, "fast"), ());
    }
    for job in 0..500 {
        queue.push(&labelled("gpu"), turn(2_000 + job, 0, "both"), ());
        queue.push(&labelled("cpu"), turn(3_000 + job, 0, "backlog"), ());
    }
    let mut served = Vec::new();
    for round in 0..20 {
        if round == 5 {
            queue.push(&labelled("cpu"), turn(9_000, 0, "both"), ());
        }
        for class in ["x", "x", "x", "gpu", "cpu"] {
            served.push(serve(&mut queue, |of| *of == *labelled(class)));
        }
    }
    let place = served.iter().position(|job| *job == 9_000);
    assert!(place.is_some_and(|place| place < 15 * 5), "{served:?}");
}

#[test]
fn a_class_is_looked_at_once_however_many_of_its_turns_are_numbered_anew() {
    let mut queue = Queue::default();
    for job in 0..5 {
        for (class, job) in [("a", job), ("b", 100 + job)] {
            queue.push(&labelled(class), turn(job, 0, &format!("t{}", job % 100)), ());
        }
    }
    for job in 0..20 {
        queue.push(&labelled("fast"), turn(1_000 + job, 0, "fast"), ());
    }
    // Their turns for `b` are passed over, and come late.
    for class in std::iter::repeat_n("fast", 20).chain(std::iter::repeat_n("b", 5)) {
        serve(&mut queue, |of| *of == *labelled(class));
    }
    let mut asked = 0;
    let found = queue.turn(&mut 1, |_| {
        asked += 1;
        Some(())
    });
    assert_eq!((found.map(|(_, of, ())| of), asked), (Some(labelled("a")), 1));
}

#[test]
fn a_class_that_no_node_serves_is_not_asked_for_again_before_there_are_other_nodes() {
    for looks_at_once in [usize::MAX, 7] {
        let mut queue = Queue::default();
        for job in 0..100 {
            queue.push(&labelled(&format!("none{job}")), turn(job, 5, ""), ());
        }
        queue.push(&labelled("full"), turn(1_000, 0, ""), ());
        // How many classes a pass asks for, where these are served by nodes of this version that are full.
        let asked = |queue: &mut Queue<()>, nodes, served: &[&str]| {
            let asked = Cell::new(0);
            let is_served = |of: &Requirements| served.iter().any(|label| *of == *labelled(label));
            let has_slot = |_: &Requirements| {
                asked.set(asked.get() + 1);
                false
            };
            assert!(pass(queue, (nodes, looks_at_once), is_served, has_slot, usize::MAX).is_empty());
            asked.get()
        };
        assert_eq!(asked(&mut queue, 1, &["full"]), 101);
        assert_eq!((queue.classes(), queue.firsts().count()), (1, 1));
        queue.push(&labelled("none7"), turn(2_000, 9, ""), ());
        queue.push(&labelled("new"), turn(2_001, 9, ""), ());
        assert_eq!(asked(&mut queue, 1, &["full"]), 2, "one that came, and one that a node serves");
        assert_eq!(asked(&mut queue, 1, &["full"]), 1);
        assert!(queue.is_unsettled(2), "other nodes may serve others");
        assert_eq!(asked(&mut queue, 2, &["none7"]), 2);
        assert_eq!(asked(&mut queue, 2, &["none7"]), 1);
        assert_eq!(queue.turn(&mut 1, |_| Some(())).map(|(_, of, ())| of), Some(labelled("none7")));
        for job in 0..3_000 {
            queue.remove(JobId::from_u128(job));
        }
        assert_eq!((queue.len(), queue.classes.len(), queue.parked.len()), (0, 0, 0));
    }
}

#[test]
fn the_first_classes_are_those_of_the_highest_priorities_whatever_pools_they_name() {
    let mut queue = Queue::default();
    for (job, of, priority) in [
        (1, needs("a"), 5),
        (2, labelled("x"), 1),
        (3, labelled("y"), 3),
        (4, needs("b"), 4),
        (5, labelled("x"), 0),
    ] {
        queue.push(&of, turn(job, priority, ""), ());
    }
    let first = |limit| -> Vec<_> {
        queue.first_classes(limit).into_iter().map(|(priority, of)| (priority.get(), of)).collect()
    };
    assert_eq!(first(9), [(5, needs("a")), (4, needs("b")), (3, labelled("y")), (1, labelled("x"))]);
    assert_eq!(first(2), first(9)[..2]);
}

/// Whatever comes, goes and finds a node, and whichever nodes there are.
#[test]
fn the_order_is_the_same_as_where_no_class_is_parked() {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let classes: Vec<_> =
        ["a", "b", "c"].map(needs).into_iter().chain(["d", "e", "f"].map(labelled)).collect();
    let (mut parking, mut plain) = (Queue::default(), Queue::default());
    let (mut nodes, mut served) = (1, vec![true; classes.len()]);
    let (mut pushed, mut has_parked) = (Vec::new(), false);
    for job in 0..10_000_u128 {
        let class = rng.random_range(0..classes.len());
        let turn = turn(job, rng.random_range(-1..2), ["", "x", "y"][rng.random_range(0..3)]);
        let gone = JobId::from_u128(rng.random_range(0..=job));
        let is_removed = rng.random_ratio(1, 4);
        for queue in [&mut parking, &mut plain] {
            queue.push(&classes[class], turn.clone(), ());
            if is_removed {
                queue.remove(gone);
            }
        }
        pushed.push((class, turn));
        if rng.random_ratio(1, 10) {
            nodes += 1;
            served.fill_with(|| rng.random_ratio(1, 2));
        }
        let with_slot: Vec<_> = served.iter().map(|is_served| *is_served && rng.random_ratio(1, 2)).collect();
        let is_in = |set: &[bool], of: &Requirements| {
            classes.iter().zip(set).any(|(class, is_in)| *is_in && **class == *of)
        };
        let is_served = |of: &Requirements| is_in(&served, of);
        let has_slot = |of: &Requirements| is_in(&with_slot, of);
        let jobs = rng.random_range(0..3);
        let found = pass(&mut parking, (nodes, rng.random_range(1..5)), is_served, has_slot, jobs);
        assert_eq!(found, pass(&mut plain, (nodes, usize::MAX), |_| true, has_slot, jobs), "seed {seed}");
        has_parked |= !parking.parked.is_empty();
        if let Some(back) = found.first().filter(|_| rng.random_ratio(1, 8)) {
            let (class, turn) = &pushed[usize::try_from(*back).unwrap()];
            parking.put_back(&classes[*class], turn.clone(), ());
            plain.put_back(&classes[*class], turn.clone(), ());
        }
    }
    assert!(has_parked && plain.parked.is_empty(), "seed {seed}");
    let left = plain.len();
    assert_eq!((parking.len(), drained(&mut plain).len()), (left, left), "seed {seed}");
}

#[test]
fn turns_that_were_not_served_cost_their_tenant_none() {
    let mut queue = Queue::default();
    queue.push(&labelled("none"), turn(1, 0, "big"), ());
    for job in 100..200 {
        queue.push(&labelled("b"), turn(job, 0, "big"), ());
        queue.remove(JobId::from_u128(job));
    }
    for job in 0..50 {
        queue.push(&labelled("a"), turn(3_000 + job, 0, "small"), ());
        queue.push(&labelled("a"), turn(2_000 + job, 0, "big"), ());
    }
    let served: Vec<_> = (0..8).map(|_| serve(&mut queue, |of| *of == *labelled("a"))).collect();
    let of_big = served.iter().filter(|job| **job < 3_000).count();
    assert!((3..=5).contains(&of_big), "{served:?}");
}

#[test]
fn who_was_taken_out_for_nothing_is_next_again() {
    let mut queue = Queue::default();
    for (job, tenant) in [(1, "big"), (2, "big"), (3, "small")] {
        queue.push(&needs("a"), turn(job, 0, tenant), ());
    }
    for _ in 0..3 {
        let (class, of) = next_class(&mut queue).unwrap();
        assert_eq!(queue.pop(class).unwrap().0.as_u128(), 1);
        queue.put_back(&of, turn(1, 0, "big"), ());
    }
    assert_eq!(drained(&mut queue), [1, 3, 2]);
}

#[test]
fn classes_take_turns_and_one_without_a_node_does_not_hold_up_the_others() {
    let mut queue = Queue::default();
    for job in [1, 2, 3] {
        queue.push(&needs("a"), turn(job, 0, ""), ());
        queue.push(&needs("b"), turn(job + 10, 0, ""), ());
    }
    let mut looked_at = Vec::new();
    let found = queue.turn(&mut 1, |of| {
        looked_at.push(of.clone());
        None::<()>
    });
    assert!(found.is_none());
    assert_eq!(looked_at, [(*needs("a")).clone()]);
    assert_eq!(next_class(&mut queue).unwrap().1, needs("b"));
    // One that comes meanwhile does not change that.
    queue.push(&needs("a"), turn(4, 0, ""), ());
    assert_eq!(next_class(&mut queue).unwrap().1, needs("b"));
    queue.remove(JobId::from_u128(4));
    queue.unblock();
    assert_eq!(next_class(&mut queue).unwrap().1, needs("a"));
    assert_eq!(drained(&mut queue), [1, 11, 2, 12, 3, 13]);
}

#[test]
fn a_pool_that_empties_and_comes_again_leaves_the_others_their_turns() {
    let mut queue = Queue::default();
    let serve = |queue: &mut Queue<()>| {
        let (class, of) = next_class(queue).unwrap();
        (queue.pop(class).unwrap(), of).1
    };
    for job in 0..100 {
        queue.push(&needs("backlog"), turn(job, 0, ""), ());
    }
    assert_eq!(serve(&mut queue), needs("backlog"));
    // A client that keeps one job waiting, and another that needs something new each time.
    for n in 0..20 {
        queue.push(&needs("one"), turn(1_000 + n, 0, ""), ());
        queue.push(&needs(&format!("new{n}")), turn(2_000 + n, 0, ""), ());
        assert_eq!(serve(&mut queue), needs("backlog"), "it has waited longest");
        let mut served: Vec<_> =
            (0..2).map(|_| serve(&mut queue).pool.clone().unwrap().to_string()).collect();
        served.sort_unstable();
        assert_eq!(served, [format!("new{n}"), "one".to_owned()]);
    }
}

#[test]
fn a_class_whose_job_was_taken_out_for_nothing_has_its_turn_again() {
    let mut queue = Queue::default();
    for (class, job) in [("a", 1), ("b", 2), ("a", 3), ("b", 4)] {
        queue.push(&needs(class), turn(job, 0, ""), ());
    }
    let (class, of) = next_class(&mut queue).unwrap();
    assert_eq!(queue.pop(class).unwrap().0.as_u128(), 1);
    queue.put_back(&of, turn(1, 0, ""), ());
    assert_eq!(drained(&mut queue), [1, 2, 3, 4]);
}

#[test]
fn who_is_removed_is_not_served_and_who_is_in_is_not_put_in_twice() {
    let mut queue = Queue::default();
    for job in [1, 2, 3, 2] {
        queue.push(&needs("a"), turn(job, 0, "t"), job);
    }
    assert_eq!(queue.len(), 3);
    assert_eq!(queue.remove(JobId::from_u128(2)), Some(2));
    assert_eq!(queue.remove(JobId::from_u128(2)), None);
    queue.remove_if(|item| *item == 3);
    assert_eq!(queue.len(), 1);
    let (class, _) = next_class(&mut queue).unwrap();
    assert_eq!(queue.pop(class), Some((JobId::from_u128(1), 1)));
}

#[test]
fn needs_that_differ_in_anything_are_classes_of_their_own() {
    let mut queue = Queue::default();
    queue.push(&labelled("gpu"), turn(1, 0, ""), ());
    queue.push(&Arc::new(Requirements::default()), turn(2, 1, ""), ());
    assert_eq!(queue.classes.len(), 2);
    assert_eq!(drained(&mut queue), [2, 1]);
}

#[test]
fn wanted_jobs_are_shown_by_priority_and_one_of_each_tenant_in_turn() {
    let mut queue = Queue::default();
    for (job, priority, tenant) in [
        (1, 0, "a"),
        (2, 0, "a"),
        (3, 0, "a"),
        (4, 0, "b"),
        (5, 0, ""),
        (6, 0, "b"),
        (7, 1, "a"),
        (8, 0, "c"),
    ] {
        queue.push(&needs("a"), turn(job, priority, tenant), job);
    }
    queue.push(&needs("b"), turn(9, 0, ""), 9);
    let shown = |first, unwanted: u128| -> Vec<_> {
        let of = needs("a");
        let jobs = queue.jobs_in_turn(&of, first, |item| *item != unwanted);
        jobs.map(|(job, item)| (job.as_u128(), *item)).inspect(|(job, item)| assert_eq!(job, item)).collect()
    };
    let shown = |first, unwanted| shown(first, unwanted).into_iter().map(|(job, _)| job).collect::<Vec<_>>();
    assert_eq!(shown(0, 0), [7, 1, 4, 5, 8, 2, 6, 3]);
    assert_eq!(shown(2, 0), [7, 5, 8, 1, 4, 2, 6, 3]);
    assert_eq!(shown(7, 0), [7, 8, 1, 4, 5, 2, 6, 3]);
    assert_eq!(shown(0, 1), [7, 2, 4, 5, 8, 3, 6]);
    assert_eq!(queue.jobs_in_turn(&needs("c"), 1, |_| true).count(), 0);
    let mut all: Vec<_> = queue.jobs(&needs("a")).copied().collect();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// Whatever is pushed, popped and removed: each job comes out once, and the counts add up.
#[test]
fn nothing_is_lost_or_served_twice() {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut queue, mut inside) = (Queue::default(), BTreeSet::new());
    for job in 0..20_000_u128 {
        let class = needs(["a", "b", "c"][rng.random_range(0..3)]);
        queue.push(&class, turn(job, rng.random_range(-2..3), ["", "x", "y"][rng.random_range(0..3)]), job);
        inside.insert(job);
        match rng.random_range(0..4) {
            0 => {
                let gone = rng.random_range(0..=job);
                assert_eq!(
                    queue.remove(JobId::from_u128(gone)).is_some(),
                    inside.remove(&gone),
                    "seed {seed}"
                );
            }
            1 | 2 => {
                let (class, _) = next_class(&mut queue).unwrap();
                let (_, item) = queue.pop(class).unwrap();
                assert!(inside.remove(&item), "seed {seed}");
            }
            _ => {}
        }
        assert_eq!(queue.len(), inside.len(), "seed {seed}");
        if inside.is_empty() {
            assert!(next_class(&mut queue).is_none());
        }
    }
}
