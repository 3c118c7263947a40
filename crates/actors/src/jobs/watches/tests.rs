//! Who gets which events, and what is forgotten.

use nodes::connection::Percent;

use super::*;
use crate::jobs::watches::exchange::JobNotice;

fn job(n: u128) -> Topic {
    Topic::Job(JobId::from_u128(n))
}

fn lane() -> LaneId {
    LaneId::parse("session:s").unwrap()
}

fn seen(n: u128, kind: JobEventKind) -> JobEvent {
    JobEvent { job: JobId::from_u128(n), attempt: Attempt::new(1), lane: Some(lane()), node: None, kind }
}

fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

/// What a node says of an attempt, before anybody has looked up whether it has that.
fn says(of: &str, attempt: u32, percent: f64) -> JobEvent {
    let kind = JobEventKind::Progressed(Progress { percent: Percent::new(percent), note: None });
    JobEvent { attempt: Attempt::new(attempt), lane: None, node: Some(node(of)), ..seen(1, kind) }
}

fn running(n: u128) -> JobEvent {
    seen(n, JobEventKind::Changed(State::Running, None))
}

fn heard(notifications: &mut broadcast::Receiver<Notification>) -> Vec<JobEvent> {
    let mut all = Vec::new();
    while let Ok(Notification::Event(seen)) = notifications.try_recv() {
        all.push(JobEvent::clone(&seen));
    }
    all
}

fn sent(to_tell: &mut mpsc::Receiver<Notice>) -> usize {
    std::iter::from_fn(|| to_tell.try_recv().ok()).count()
}

#[tokio::test]
async fn what_nobody_listens_to_is_not_even_said() {
    let (watches, mut to_tell) = Watches::new(false);
    watches.tell(|| unreachable!("nobody listens"));
    let mut notifications = watches.listen(&job(1)).unwrap();
    watches.tell(|| running(1));
    watches.tell(|| running(2));
    assert_eq!(heard(&mut notifications), [running(1)]);
    assert_eq!(sent(&mut to_tell), 0, "nobody elsewhere wants it");
    watches.wanted_by_another(job(2));
    watches.tell(|| running(1));
    watches.tell(|| running(2));
    assert_eq!(sent(&mut to_tell), 1);
    watches.forget_if(&job(1), |_| true);
    watches.wanted.alter_all(|_, _| Instant::now());
    assert!(watches.sweep().is_empty());
    watches.tell(|| unreachable!("nobody listens any more"));
}

#[tokio::test]
async fn a_lane_and_all_are_topics_too() {
    let (watches, mut to_tell) = Watches::new(false);
    let mut of_lane = watches.listen(&Topic::Lane(lane())).unwrap();
    let mut of_all = watches.listen(&Topic::All).unwrap();
    watches.wanted_by_another(Topic::Lane(lane()));
    let elsewhere = JobEvent { lane: None, ..running(2) };
    watches.tell(|| running(1));
    watches.tell(|| elsewhere.clone());
    assert_eq!(heard(&mut of_lane), [running(1)]);
    assert_eq!(heard(&mut of_all), [running(1), elsewhere]);
    assert_eq!(sent(&mut to_tell), 1);
    // Said by the notice for callers that wait: those who want all hear it with its outcome from elsewhere.
    watches.finished(&lane(), JobId::from_u128(1), Attempt::new(1));
    assert_eq!((heard(&mut of_lane).len(), heard(&mut of_all).len()), (1, 0));
}

#[tokio::test]
async fn the_end_of_a_job_is_passed_on_once_by_whichever_notice_comes_first() {
    let (watches, _to_tell) = Watches::new(false);
    let finished = |n| seen(n, JobEventKind::Changed(State::Finished, Some(Outcome::Succeeded)));
    let mut of_lane = watches.listen(&Topic::Lane(lane())).unwrap();
    let mut of_job = watches.listen(&job(1)).unwrap();
    watches.finished(&lane(), JobId::from_u128(1), Attempt::new(1));
    watches.hand_out(finished(1));
    watches.hand_out(finished(2));
    watches.finished(&lane(), JobId::from_u128(2), Attempt::new(1));
    let jobs = |heard: Vec<JobEvent>| heard.iter().map(|event| event.job).collect::<Vec<_>>();
    assert_eq!(jobs(heard(&mut of_lane)), [1, 2].map(JobId::from_u128));
    assert_eq!(jobs(heard(&mut of_job)), [JobId::from_u128(1)]);
    // It is bounded how far back that is known.
    for n in 3..=3 + FINISHED_JOBS_KNOWN as u128 {
        watches.hand_out(finished(n));
    }
    heard(&mut of_lane);
    watches.hand_out(finished(4));
    watches.hand_out(finished(3));
    assert_eq!(jobs(heard(&mut of_lane)), [JobId::from_u128(3)]);
    assert_eq!(watches.here.get(&Topic::Lane(lane())).unwrap().finished.len(), FINISHED_JOBS_KNOWN);
}

#[tokio::test]
async fn the_watches_of_a_lane_whose_session_is_closed_read_the_ledger_here_and_elsewhere() {
    let (watches, mut to_tell) = Watches::new(false);
    let mut of_lane = watches.listen(&Topic::Lane(lane())).unwrap();
    let mut of_job = watches.listen(&job(1)).unwrap();
    watches.closed(&lane());
    assert!(matches!(of_lane.try_recv(), Ok(Notification::Missed)));
    assert_eq!(sent(&mut to_tell), 0, "nobody elsewhere listens to it");
    watches.wanted_by_another(Topic::Lane(lane()));
    watches.closed(&lane());
    assert!(of_job.try_recv().is_err(), "it says nothing of a job");
    let Ok(Notice::Want { topics, .. }) = to_tell.try_recv() else { panic!("it is said") };
    assert_eq!(Topic::read(&topics[0]), None, "to earlier releases it is no topic");

    let (elsewhere, _to_tell) = Watches::new(false);
    let mut of_lane = elsewhere.listen(&Topic::Lane(lane())).unwrap();
    let [owner, me] = ["i", "j"].map(|name| InstanceId::parse(name).unwrap());
    let progress: exchange::ProgressSource = Box::new(|_| None);
    let hearing = exchange::Hearing { watches: &elsewhere, me: &me, progress: &progress };
    let hear = |topic: &str| {
        let notice = Notice::Want { topics: vec![topic.to_owned()], ask: None, again: true };
        let messages = exchange::messages(&owner, std::iter::once(notice));
        messages.iter().for_each(|message| hearing.hear(message));
    };
    hear(&topics[0]);
    assert!(matches!(of_lane.try_recv(), Ok(Notification::Missed)));
    for other in ["ends", "all", "lane session:s"] {
        hear(other);
        assert!(of_lane.try_recv().is_err(), "{other}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_a_defect_interrupts_keeps_out_none_that_comes_behind_it() {
    let (watches, mut to_tell) = Watches::new(false);
    let (watches, bus) = (Arc::new(watches), bus::Hub::default().join());
    let [other, me] = ["i", "j"].map(|name| InstanceId::parse(name).unwrap());
    let looks = AtomicUsize::new(0);
    let progress: exchange::ProgressSource = Box::new(move |_| {
        assert!(looks.fetch_add(1, Ordering::Relaxed) > 0, "made on purpose");
        None
    });
    let heard = bus.subscribe(bus::Channel::Watches);
    tokio::spawn(exchange::hear(heard, Arc::downgrade(&watches), me.clone(), progress));
    let question = Notice::Want { topics: vec![job(1).written()], ask: Some(me.to_string()), again: false };
    for message in exchange::messages(&other, std::iter::once(question)).iter().cycle().take(2) {
        bus.publish(bus::Channel::Watches, message).await.unwrap();
    }
    let answer = tokio::time::timeout(Duration::from_secs(20), to_tell.recv()).await.expect("it hears on");
    assert!(matches!(answer, Some(Notice::Nothing { .. })), "{answer:?}");
}

#[tokio::test]
async fn whoever_wants_all_is_told_so_much_each_second() {
    let (watches, mut to_tell) = Watches::new(false);
    watches.wanted_by_another(Topic::All);
    let mut count = 0;
    for n in 0..10 * u128::from(EVENTS_OF_ALL_PER_SECOND) {
        watches.tell(|| running(n));
        count += sent(&mut to_tell);
    }
    let seconds = watches.born.elapsed().as_secs() + 1;
    assert!((1..=seconds * EVENTS_OF_ALL_PER_SECOND).contains(&(count as u64)), "{count} in {seconds} s");
}

#[tokio::test]
async fn a_slow_listener_is_told_that_it_missed_some_and_nobody_waits_for_it() {
    let (watches, _to_tell) = Watches::new(true);
    let mut notifications = watches.listen(&job(1)).unwrap();
    for _ in 0..10 * NOTIFICATIONS_OF_JOB_MAX {
        watches.tell(|| running(1));
    }
    assert!(matches!(notifications.recv().await, Err(broadcast::error::RecvError::Lagged(_))));
}

#[tokio::test]
async fn topics_are_bounded() {
    let (watches, _to_tell) = Watches::new(false);
    let all: Vec<_> = (0..WATCHED_TOPICS_MAX as u128).filter_map(|n| watches.listen(&job(n))).collect();
    assert_eq!(all.len(), WATCHED_TOPICS_MAX);
    assert!(watches.listen(&Topic::All).is_none());
    assert!(watches.listen(&job(0)).is_some(), "one that is listened to already takes no more room");
    drop(all);
    assert!(watches.sweep().is_empty());
    assert!(watches.has_nobody());
}

#[tokio::test]
async fn jobs_that_are_asked_about_are_bounded_and_take_no_room_of_watches() {
    let (watches, _to_tell) = Watches::new(false);
    let (node, holder) = (node("n"), InstanceId::parse("holder").unwrap());
    let ask = |n: u128| watches.ask(JobId::from_u128(n), Attempt::new(1), &node, &holder);
    futures_util::future::join_all((0..ASKED_TOPICS_MAX as u128).map(ask)).await;
    assert_eq!(ask(ASKED_TOPICS_MAX as u128).await, None);
    assert_eq!(watches.here.len(), ASKED_TOPICS_MAX, "it asks about no more jobs");
    let all: Vec<_> =
        (1_000_000..).take(WATCHED_TOPICS_MAX).filter_map(|n| watches.listen(&job(n))).collect();
    assert_eq!(all.len(), WATCHED_TOPICS_MAX);
    assert!(watches.listen(&Topic::All).is_none());
    // One of them has a listener as well.
    let listener = watches.listen(&job(0)).unwrap();
    for mut watched in watches.here.iter_mut() {
        watched.asked_until = watched.asked_until.map(|_| Instant::now());
    }
    drop(all);
    assert_eq!(watches.sweep(), [job(0)]);
    assert_eq!(watches.asked.load(Ordering::Relaxed), 0, "their room is free after a while");
    drop(listener);
    assert!(watches.sweep().is_empty());
    assert!(watches.has_nobody());
}

#[tokio::test]
async fn progress_is_asked_for_once_and_known_for_a_while() {
    let (watches, mut to_tell) = Watches::new(false);
    let (node, holder) = (node("n"), InstanceId::parse("holder").unwrap());
    let ask = |job, attempt| watches.ask(JobId::from_u128(job), Attempt::new(attempt), &node, &holder);
    let progress = Progress { percent: Percent::new(5.0), note: None };
    let answer = async {
        assert!(matches!(to_tell.recv().await, Some(Notice::Want { ask: Some(_), again: false, .. })));
        watches.hand_out(says("n", 1, 5.0));
    };
    assert_eq!(tokio::join!(ask(1, 1), answer).0, Some(progress.clone()));
    assert_eq!(ask(1, 1).await, Some(progress));
    assert_eq!(ask(1, 2).await, None, "it is of another attempt");
    assert!(to_tell.try_recv().is_err());
    assert_eq!(watches.sweep(), [job(1)], "the others learn that it is wanted still");
    assert_eq!(ask(2, 1).await, None, "nobody answers");
}

#[tokio::test]
async fn what_another_node_says_of_an_attempt_is_not_shown() {
    let (watches, mut to_tell) = Watches::new(false);
    let (node, holder) = (node("n"), InstanceId::parse("holder").unwrap());
    let ask = |job| watches.ask(JobId::from_u128(job), Attempt::new(2), &node, &holder);
    let percent = |progress: Option<Progress>| progress.and_then(|it| it.percent).map(Percent::get);
    let mut of_all = watches.listen(&Topic::All).unwrap();
    let lie = async {
        to_tell.recv().await.unwrap();
        watches.hand_out(JobEvent { job: JobId::from_u128(2), ..says("liar", 2, 66.0) });
    };
    assert_eq!(tokio::join!(ask(2), lie).0, None);
    let answer = async {
        to_tell.recv().await.unwrap();
        watches.hand_out(says("liar", 2, 66.0));
        watches.hand_out(says("n", 2, 5.0));
    };
    assert_eq!(
        percent(tokio::join!(ask(1), answer).0),
        Some(5.0),
        "it waits for the node that has the attempt"
    );
    for attempt in [2, 9] {
        watches.hand_out(says("liar", attempt, 66.0));
        assert_eq!(percent(ask(1).await), None, "{attempt}");
        watches.hand_out(says("n", 2, 6.0));
        assert_eq!(percent(ask(1).await), Some(6.0), "{attempt}");
    }
    assert!(heard(&mut of_all).is_empty(), "nobody has looked up whose the attempt is");
    let looked_up = JobEvent { lane: Some(lane()), ..says("n", 2, 7.0) };
    watches.hand_out(looked_up.clone());
    assert_eq!(heard(&mut of_all), [looked_up]);
}

#[test]
fn words_are_read_as_they_were_written() {
    let node = NodeId::parse("n").unwrap();
    let progress = Progress { percent: Percent::new(100.0), note: Some("\u{0}ü\"".to_owned()) };
    for seen in [
        running(1),
        seen(2, JobEventKind::Changed(State::Finished, Some(Outcome::TimedOut))),
        JobEvent { lane: None, node: Some(node), ..seen(3, JobEventKind::Progressed(progress)) },
        seen(4, JobEventKind::Progressed(Progress { percent: None, note: None })),
        seen(5, JobEventKind::Progressed(Progress { percent: Percent::new(33.3), note: None })),
    ] {
        let written = serde_json::to_string(&Notice::of(&seen)).unwrap();
        let Ok(Notice::Event(word)) = serde_json::from_str(&written) else { panic!("{written}") };
        assert_eq!(JobNotice::read(word), Some(seen));
    }
    for topic in [job(7), Topic::Lane(lane()), Topic::All] {
        assert_eq!(Topic::read(&topic.written()), Some(topic));
    }
    for bad in ["", "job", "job x", "lane x", "all ", "everything"] {
        assert_eq!(Topic::read(bad), None, "{bad}");
    }
}

#[test]
fn messages_are_of_a_size_that_the_bus_takes() {
    let me = InstanceId::parse(&"i".repeat(domain::limits::INSTANCE_ID_CHARS_MAX)).unwrap();
    let note = Some("\u{1}".repeat(domain::limits::PROGRESS_NOTE_CHARS_MAX));
    let largest = JobEvent {
        job: JobId::from_u128(u128::MAX),
        attempt: Attempt::new(u32::MAX),
        lane: Some(LaneId::session(&domain::SessionId::parse(&"s".repeat(128)).unwrap())),
        node: Some(NodeId::parse(&"n".repeat(128)).unwrap()),
        kind: JobEventKind::Progressed(Progress { percent: Percent::new(100.0), note }),
    };
    let lane = Topic::Lane(largest.lane.clone().unwrap()).written();
    let want = Notice::Want { topics: vec![lane; exchange::TOPICS_AT_ONCE], ask: None, again: true };
    let words: Vec<_> = (0..99).flat_map(|_| [Notice::of(&largest), want.clone()]).collect();
    let messages = exchange::messages(&me, words.clone().into_iter());
    let sizes: Vec<_> = messages.iter().map(Vec::len).collect();
    assert!(sizes.iter().all(|size| *size <= bus::limits::NOTICE_BYTES_MAX), "{sizes:?}");
    let read = messages.iter().flat_map(|message| exchange::read(message).unwrap().notices);
    assert!(read.eq(words));
}
