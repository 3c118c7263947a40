//! The table of metrics against the source that records them, against the page that explains them, and its rules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use domain::job::{Outcome, Revoked, State};
use domain::plan::{PlanStatus, StageStatus, TaskStatus};

use super::super::reload::Reload;
use super::table::METRICS;
use super::*;

/// A place that records a metric: which kind, and its labels, each with its value where that is written there.
#[derive(Debug)]
struct Recorded {
    place: String,
    kind: &'static str,
    name: String,
    labels: Vec<(String, Option<String>)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The text between quotes at the beginning, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    text.trim_start().strip_prefix('"')?.split_once('"')
}

/// Where an argument ends: at a comma or a bracket that is not its own.
fn end_of_argument(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            ',' | ')' if depth == 0 => return at,
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
    }
    panic!("a call does not end: {text}")
}

/// What a file records. Calls whose name is no text are left out: they are of the recorder itself.
fn recorded_in(place: &str, text: &str) -> Vec<Recorded> {
    let mut found = Vec::new();
    for (kind, call) in [("counter", "counter!("), ("gauge", "gauge!("), ("histogram", "histogram!(")] {
        for (at, _) in text.match_indices(&format!("metrics::{call}")) {
            let arguments = &text[at + "metrics::".len() + call.len()..];
            let Some((name, mut rest)) = quoted(arguments) else { continue };
            let mut labels = Vec::new();
            while let Some((label, after)) = rest.trim_start().strip_prefix(',').and_then(quoted) {
                let value = after.trim_start().strip_prefix("=>").expect("a label has a value");
                let literal = quoted(value).map(|(literal, _)| literal.to_owned());
                labels.push((label.to_owned(), literal));
                rest = &value[end_of_argument(value)..];
            }
            found.push(Recorded { place: place.to_owned(), kind, name: name.to_owned(), labels });
        }
    }
    found
}

fn recorded() -> Vec<Recorded> {
    let mut files = Vec::new();
    for member in std::fs::read_dir(root().join("crates")).unwrap() {
        sources(&member.unwrap().path().join("src"), &mut files);
    }
    files.retain(|file| file.file_name().is_some_and(|name| name != "tests.rs"));
    let read =
        |file: &PathBuf| recorded_in(&file.display().to_string(), &std::fs::read_to_string(file).unwrap());
    files.iter().flat_map(read).collect()
}

const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    }
}

#[test]
fn labels_are_read_however_a_call_is_broken_into_lines() {
    let text =
        "metrics::counter!(\n  \"a_total\", \"x\" => y.kind().as_str(), \"z\" => \"w\"\n).increment(1);
        metrics::gauge!(\"b\").set(1.0); metrics::histogram!(name, labels);";
    let found = recorded_in("here", text);
    assert_eq!(found.len(), 2, "{found:?}");
    let labels = [("x".to_owned(), None), ("z".to_owned(), Some("w".to_owned()))];
    assert_eq!((found[0].name.as_str(), &*found[0].labels), ("a_total", &labels[..]));
    assert_eq!((found[1].name.as_str(), found[1].labels.len()), ("b", 0));
}

#[test]
fn the_source_records_what_the_table_has_and_nothing_else() {
    let table: BTreeMap<_, _> = METRICS.iter().map(|metric| (metric.name, metric)).collect();
    assert_eq!(table.len(), METRICS.len(), "a name is there twice");
    let mut dead: BTreeSet<_> = table.keys().copied().collect();
    let all = recorded();
    assert!(all.len() > table.len(), "{}", all.len());
    for Recorded { place, kind, name, labels } in &all {
        let metric =
            table.get(name.as_str()).unwrap_or_else(|| panic!("{place}: {name} is not in the table"));
        assert_eq!(word(metric.kind), *kind, "{place}: {name}");
        let names: Vec<_> = labels.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(metric.labels, names, "{place}: the labels of {name}");
        for (at, value) in
            labels.iter().enumerate().filter_map(|(at, (_, value))| Some((at, value.as_ref()?)))
        {
            let mut known = metric.combinations().into_iter().map(|values| values[at]);
            assert!(
                metric.series.is_empty() || known.any(|known| known == value),
                "{place}: {name} has {value:?}, which is not there from the start"
            );
        }
        dead.remove(name.as_str());
    }
    assert!(dead.is_empty(), "nothing records {dead:?}");
}

#[test]
fn each_metric_is_explained_and_named_by_its_unit() {
    for metric in METRICS {
        let Metric { name, kind, help, .. } = metric;
        assert!(name.starts_with("fencepost_") || name.starts_with("process_"), "{name}");
        assert!(help.len() > 10 && !help.ends_with('.'), "{name}: {help}");
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        if let Kind::Histogram(buckets) = kind {
            assert!(name.ends_with("_seconds") || name.ends_with("_size"), "{name}");
            assert!(buckets.is_sorted_by(|one, next| one < next), "{name}");
        }
        for words in ["_ms", "_micros", "_minutes", "_kb", "_milliseconds"] {
            assert!(!name.contains(words), "{name} has another unit than seconds or bytes");
        }
    }
}

#[test]
fn no_label_is_an_id() {
    // Each has few values, which do not grow with what the daemon serves.
    let few = [
        "kind",
        "result",
        "reason",
        "op",
        "of",
        "pool",
        "state",
        "outcome",
        "stage",
        "status",
        "command",
        "route",
        "method",
        "version",
        "direction",
        "what",
        "why",
    ];
    for metric in METRICS {
        for label in metric.labels {
            assert!(few.contains(label), "{} has the label {label}", metric.name);
        }
        let width = |values: &Vec<&str>| values.len() == metric.labels.len();
        assert!(metric.combinations().iter().all(width), "{}", metric.name);
    }
}

#[test]
fn buckets_begin_and_end_where_their_metric_has_its_values() {
    for (name, first, last) in [
        ("fencepost_node_select_seconds", 1e-7, 1e-2),
        ("fencepost_commit_train_seconds", 1e-4, 10.0),
        ("fencepost_actor_queue_seconds", 1e-4, 3_600.0),
        ("fencepost_job_seconds", 1e-4, 3_600.0),
        ("fencepost_redis_command_seconds", 5e-5, 5.0),
        ("fencepost_http_request_seconds", 2.5e-4, 60.0),
    ] {
        let kind = METRICS.iter().find(|metric| metric.name == name).map(|metric| metric.kind);
        let Some(Kind::Histogram(buckets)) = kind else { panic!("{name} is a histogram") };
        assert_eq!((buckets[0], buckets[buckets.len() - 1]), (first, last), "{name}");
    }
}

#[test]
fn the_values_from_the_start_are_all_that_there_are() {
    let values = |name: &str, at: usize| -> BTreeSet<&str> {
        let metric = METRICS.iter().find(|metric| metric.name == name).unwrap();
        metric.combinations().into_iter().map(|values| values[at]).collect()
    };
    let states = State::ALL.iter().map(|state| state.as_str()).collect();
    assert_eq!(values("fencepost_jobs_total", 0), states);
    let outcomes: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    assert_eq!(values("fencepost_stage_seconds", 0), outcomes.iter().copied().collect());
    assert_eq!(values("fencepost_jobs_total", 1), outcomes.into_iter().chain([""]).collect());
    let reasons = Revoked::ALL.map(Revoked::as_str);
    assert_eq!(values("fencepost_dispatch_revoked_total", 0), BTreeSet::from(reasons));
    let reloads = [Reload::Done, Reload::Refused, Reload::Waits].map(Reload::as_str);
    assert_eq!(values("fencepost_token_reload_total", 0), BTreeSet::from(reloads));
    let statuses = PlanStatus::ALL.iter().map(|status| status.as_str()).collect();
    assert_eq!(values("fencepost_plans", 0), statuses);
    let statuses = TaskStatus::ALL.iter().map(|status| status.as_str());
    let statuses = statuses.chain([StageStatus::Unknown.as_str()]).collect();
    assert_eq!(values("fencepost_plan_tasks", 0), statuses);
    let mut leases: BTreeSet<_> = domain::ResourceKind::ALL.iter().map(|kind| kind.as_str()).collect();
    for name in ["fencepost_lease_acquire_total", "fencepost_lease_renew_total"] {
        assert_eq!(values(name, 0), leases, "{name}");
    }
    // A tenant's lock stays the task's when the owner of its plan dies.
    leases.remove("tenant");
    assert_eq!(values("fencepost_lease_takeover_total", 0), leases);
}

#[test]
fn what_comes_of_a_forwarded_request_is_counted_from_the_start() {
    let metric = METRICS.iter().find(|metric| metric.name == "fencepost_forward_total").unwrap();
    let source = std::fs::read_to_string(root().join("crates/api/src/forwarder.rs")).unwrap();
    // Each result stands before what it means for the caller.
    let named =
        source.split("(\"").skip(1).filter_map(|rest| rest.split_once("\", Asked::")).map(|(name, _)| name);
    let named: BTreeSet<_> = named.filter(|name| !name.contains('"')).collect();
    assert!(named.contains("distrusted") && named.len() > 5, "{named:?}");
    for name in named {
        assert!(metric.combinations().contains(&vec![name]), "{name} is not there from the start");
    }
}

#[test]
fn a_write_of_a_lane_that_is_fenced_is_counted_under_a_name_that_is_there_from_the_start() {
    let metric = METRICS.iter().find(|metric| metric.name == "fencepost_fence_reject_total").unwrap();
    let mut named = BTreeSet::new();
    for file in ["lane.rs", "lane/effects.rs", "lane/reads.rs"] {
        let source = std::fs::read_to_string(root().join("crates/actors/src/jobs").join(file)).unwrap();
        let calls = source.lines().filter(|line| line.contains("fenced(") || line.contains("outcome("));
        // The name is the last argument.
        let names = calls.filter_map(|call| call.rsplit_once("\")")?.0.rsplit_once('"'));
        named.extend(names.map(|(_, name)| name.to_owned()));
    }
    for known in ["jobs", "hold_jobs", "close_session", "promote_jobs"] {
        assert!(named.contains(known), "{known} is not found where it is written: {named:?}");
    }
    for name in &named {
        assert!(metric.combinations().contains(&vec![name.as_str()]), "{name} is not there from the start");
    }
}

#[test]
fn a_purge_that_fails_is_counted_under_a_name_that_is_there_from_the_start() {
    let metric = METRICS.iter().find(|metric| metric.name == "fencepost_purge_failures_total").unwrap();
    let mut files = Vec::new();
    for of in ["actors", "api"] {
        sources(&root().join("crates").join(of).join("src"), &mut files);
    }
    let texts: Vec<_> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let watches = texts.iter().flat_map(|text| text.split("PurgeWatch::new(\"").skip(1));
    let named: BTreeSet<_> =
        watches.filter_map(|watch| watch.split_once('"')).map(|(name, _)| name).collect();
    let known: BTreeSet<_> = metric.combinations().into_iter().map(|values| values[0]).collect();
    assert_eq!(named, known);
}

#[test]
fn the_page_explains_every_metric_with_its_labels_and_no_other() {
    let page = std::fs::read_to_string(root().join("docs/monitoring.md")).unwrap();
    let (_, watched) = page.split_once("## What to watch").unwrap();
    let cells = watched.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let mut explained = BTreeSet::new();
    for cell in cells {
        let names =
            cell.split('`').filter(|text| text.starts_with("fencepost_") || text.starts_with("process_"));
        explained.extend(names.map(str::to_owned));
    }
    let shown = |metric: &Metric| match metric.labels {
        [] => metric.name.to_owned(),
        labels => format!("{}{{{}}}", metric.name, labels.join(",")),
    };
    let expected: BTreeSet<_> = METRICS.iter().map(shown).collect();
    let (missing, unknown): (Vec<_>, Vec<_>) =
        (expected.difference(&explained).collect(), explained.difference(&expected).collect());
    assert!(missing.is_empty() && unknown.is_empty(), "missing: {missing:#?}\nunknown: {unknown:#?}");
}

#[test]
fn the_offset_is_the_machines_clock_minus_the_databases() {
    let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
    for (asked, answered, database_ms, offset) in [
        (1_000, 1_000, 1_000, 0.0),
        (1_000, 1_200, 1_100, 0.0),
        (5_000, 5_000, 3_000, 2.0),
        (1_000, 1_000, 1_500, -0.5),
    ] {
        let found = offset_seconds(at(asked), at(answered), database_ms);
        assert!((found - offset).abs() < 1e-9, "{asked} {answered} {database_ms}: {found}");
    }
}

#[test]
fn the_kernel_tells_about_this_process() {
    let recorder = with_buckets().unwrap().build_recorder();
    metrics::with_local_recorder(&recorder, process::show).unwrap();
    let text = recorder.handle().render();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing in\n{text}")).parse().unwrap()
    };
    let since = UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - value("process_start_time_seconds");
    assert!((-2.0..86_400.0).contains(&since), "started {since} s ago");
    assert!(
        value("process_open_fds") >= 3.0 && value("process_open_fds") <= value("process_max_fds"),
        "{text}"
    );
    assert!(value("process_resident_memory_bytes") > 1e6, "{text}");
    assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"), "{text}");
    assert!(value("process_virtual_memory_max_bytes") >= value("process_virtual_memory_bytes"), "{text}");
    assert!(value("process_threads") >= 1.0 && value("process_cpu_seconds_total") >= 0.0, "{text}");
}

#[test]
fn what_is_rendered_has_help_type_and_zeros_from_the_start() {
    let recorder = with_buckets().unwrap().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, show_from_the_start);
    let text = handle.render();
    for metric in METRICS {
        let name = metric.name;
        let is_shown = !metric.series.is_empty() || name == "fencepost_build_info";
        assert_eq!(text.contains(&format!("# HELP {name} {}\n", metric.help)), is_shown, "{name}\n{text}");
        assert_eq!(text.contains(&format!("# TYPE {name} {}\n", word(metric.kind))), is_shown, "{name}");
        for values in metric.combinations() {
            let labels: Vec<_> = metric
                .labels
                .iter()
                .zip(values)
                .map(|(label, value)| format!("{label}=\"{value}\""))
                .collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let suffix = if let Kind::Histogram(_) = metric.kind { "_count" } else { "" };
            let line = format!("{name}{suffix}{labels} 0");
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in\n{text}");
        }
    }
    assert!(text.contains(&format!("fencepost_build_info{{version=\"{}\"}} 1", version())), "{text}");
}
