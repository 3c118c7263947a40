//! Exhaustive searches, of any of the models.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path, Property};

/// Threads per search; each test runs one.
const THREADS: usize = 2;

/// Searches every run, holds all promises against each moment of it, and finds all that must be possible.
#[track_caller]
pub fn holds_in_every_run<M>(model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    every_run(model).assert_properties();
}

/// The same within bounds that are too narrow for all that must be possible.
#[track_caller]
pub fn keeps_every_promise<M>(model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    keeps_every_promise_and_shows(model, &[]);
}

/// The same within bounds that are wide enough for these of all that must be possible.
#[track_caller]
pub fn keeps_every_promise_and_shows<M>(model: M, shown: &[&'static str])
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let promises =
        model.properties().into_iter().filter(|property| property.expectation == Expectation::Always);
    let promises: Vec<_> = promises.map(|property| property.name).collect();
    let checker = every_run(model);
    for promise in promises {
        checker.assert_no_discovery(promise);
    }
    for name in shown {
        checker.assert_any_discovery(name);
    }
}

#[track_caller]
fn every_run<M>(model: M) -> impl Checker<M>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let started = Instant::now();
    let checker = model.checker().threads(THREADS).spawn_bfs().join();
    println!(
        "{} unique states, {} reached, the farthest after {} steps, in {:?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth() - 1,
        started.elapsed(),
    );
    assert!(checker.is_done(), "the search did not visit every state");
    checker
}

/// Searches for each promise that the open trap must break until it is broken, and prints how. With the trap shut the
/// same search must visit every state and find none of them broken.
#[track_caller]
pub fn is_caught<M>(trap: &str, breaks: &[&'static str], shut: M, open: M)
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    assert!(!breaks.is_empty(), "{trap} is to break something");
    let checker = shut.checker().threads(THREADS).spawn_bfs().join();
    assert!(checker.is_done(), "the search did not visit every state");
    for name in breaks {
        checker.assert_no_discovery(name);
    }

    for name in breaks {
        let checker = open
            .clone()
            .checker()
            .threads(THREADS)
            .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([*name])))
            .spawn_bfs()
            .join();
        let Some(path) = checker.discovery(name) else {
            panic!("{trap} is open, and yet {name}");
        };
        let steps = steps_until_broken(&open, name, path);
        println!("{trap}: not any more after {} steps: {name}", steps.len());
        for step in steps {
            println!("    {step:?}");
        }
    }
}

/// Searches every run with the trap open: no promise is broken but those that the trap must break.
#[track_caller]
pub fn breaks_nothing_else<M>(trap: &str, breaks: &[&'static str], open: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = open.checker().threads(THREADS).spawn_bfs().join();
    assert!(checker.is_done(), "the search did not visit every state");
    let promises = checker.model().properties().into_iter();
    for promise in promises.filter(|property| property.expectation == Expectation::Always) {
        let is_broken = checker.discovery(promise.name).is_some();
        assert_eq!(is_broken, breaks.contains(&promise.name), "{trap} is open: {}", promise.name);
    }
}

/// Each promise is one that an open trap breaks, as `is_broken` says by its name: nothing else shows that it could fail.
#[track_caller]
pub fn every_promise_can_be_broken<M: Model>(
    properties: Vec<Property<M>>,
    is_broken: impl Fn(&'static str) -> bool,
) {
    for property in properties {
        let is_promise = property.expectation == Expectation::Always;
        assert!(
            !is_promise || is_broken(property.name),
            "nothing shows that this could fail: {}",
            property.name
        );
    }
}

/// The steps of a path up to the first moment that breaks the property; the checker may report a later one.
fn steps_until_broken<M: Model>(
    model: &M,
    name: &'static str,
    path: Path<M::State, M::Action>,
) -> Vec<M::Action>
where
    M::State: PartialEq,
    M::Action: PartialEq,
{
    let property = model.property(name);
    path.into_vec()
        .into_iter()
        .take_while(|(state, _)| (property.condition)(model, state))
        .filter_map(|(_, step)| step)
        .collect()
}
