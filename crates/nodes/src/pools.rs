//! The pools as they are configured: which nodes belong together, and which jobs each set of them serves.

use std::collections::HashSet;

use domain::job::Route;
use domain::limits::{POOL_ROUTES_MAX, POOL_WEIGHT_MAX, POOLS_MAX};
use domain::{Invalid, Label, PoolName};
use serde::{Deserialize, Serialize};

use crate::limits::POOL_LABELS_MAX;
use crate::record::Profile;

/// The pool that all nodes are in as long as none is configured.
pub const DEFAULT_POOL: &str = "default";

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// The routes that it is there for. Without any it serves a route by those of its nodes that hear the source
    /// language and speak the target language. Jobs without a route are served by every pool.
    pub routes: Vec<Route>,
    /// The labels that a node must have to belong to it.
    pub requires: Vec<Label>,
    /// How often it is tried first, compared with others that serve the same job.
    pub weight: u32,
}

impl Pool {
    /// Whether this node belongs to it.
    #[must_use]
    pub fn admits(&self, profile: &Profile) -> bool {
        profile.pools.as_ref().is_none_or(|only| only.contains(&self.name))
            && self.requires.iter().all(|label| profile.has(label))
    }
}

/// All pools, at one version of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    version: u64,
    list: Vec<Pool>,
}

/// A pool as the ledger keeps it.
#[derive(Serialize, Deserialize)]
struct PoolForm {
    name: String,
    #[serde(default)]
    routes: Vec<String>,
    #[serde(default)]
    requires: Vec<String>,
    weight: u32,
}

impl Pools {
    /// Whether there is such a pool. Without configured ones there is `default` alone.
    #[must_use]
    pub fn has(&self, name: &PoolName) -> bool {
        match self.list.is_empty() {
            true => name.as_str() == DEFAULT_POOL,
            false => self.list.iter().any(|pool| pool.name == *name),
        }
    }

    /// None configured: all nodes are in `default`, whatever pools they limit themselves to.
    #[must_use]
    pub const fn unconfigured() -> Self {
        Self { version: 0, list: Vec::new() }
    }

    /// Checks a configuration. An empty one is as good as none.
    ///
    /// # Errors
    /// [`Invalid`], naming what is wrong and what is allowed.
    pub fn new(version: u64, list: Vec<Pool>) -> Result<Self, Invalid> {
        let invalid = |what, expected| Err(Invalid { what, expected });
        if list.len() > POOLS_MAX {
            return invalid("pools", format!("a list of at most {POOLS_MAX}"));
        }
        let mut names = HashSet::new();
        for Pool { name, routes, requires, weight } in &list {
            if !names.insert(name) {
                return invalid("pools", format!("each named once, and {name} is not"));
            }
            if routes.len() > POOL_ROUTES_MAX {
                return invalid(
                    "routes",
                    format!("at most {POOL_ROUTES_MAX} for each pool, {name} included"),
                );
            }
            if let Some(twice) = repeated(routes) {
                return invalid("routes", format!("each listed once, and {twice} of pool {name} is not"));
            }
            if requires.len() > POOL_LABELS_MAX {
                return invalid(
                    "requires",
                    format!("at most {POOL_LABELS_MAX} labels for each pool, {name} included"),
                );
            }
            if let Some(twice) = repeated(requires) {
                return invalid("requires", format!("each label once, and {twice} of pool {name} is not"));
            }
            if !(1..=POOL_WEIGHT_MAX).contains(weight) {
                return invalid("weight", format!("1 to {POOL_WEIGHT_MAX} for each pool, {name} included"));
            }
        }
        Ok(Self { version, list })
    }

    /// The version of the configuration; 0 when there never was one.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The configured ones, in their order.
    #[must_use]
    pub fn configured(&self) -> &[Pool] {
        &self.list
    }

    /// The list as JSON, the form in which it is kept.
    #[must_use]
    pub fn to_json(&self) -> String {
        let form = |pool: &Pool| PoolForm {
            name: pool.name.to_string(),
            routes: pool.routes.iter().map(ToString::to_string).collect(),
            requires: pool.requires.iter().map(ToString::to_string).collect(),
            weight: pool.weight,
        };
        let list: Vec<_> = self.list.iter().map(form).collect();
        serde_json::to_string(&list).expect("texts and numbers can be written")
    }

    /// Reads the list that was kept at that version.
    ///
    /// # Errors
    /// [`Invalid`] when it is no such list.
    pub fn from_json(version: u64, json: &str) -> Result<Self, Invalid> {
        let forms: Vec<PoolForm> = serde_json::from_str(json)
            .map_err(|error| Invalid { what: "pools", expected: format!("a list of pools: {error}") })?;
        let read = |form: PoolForm| {
            Ok(Pool {
                name: PoolName::parse(&form.name)?,
                routes: form.routes.iter().map(|text| Route::parse(text)).collect::<Result<_, _>>()?,
                requires: form.requires.iter().map(|text| Label::parse(text)).collect::<Result<_, _>>()?,
                weight: form.weight,
            })
        };
        Self::new(version, forms.into_iter().map(read).collect::<Result<_, Invalid>>()?)
    }
}

fn repeated<T: Eq + std::hash::Hash>(items: &[T]) -> Option<&T> {
    let mut seen = HashSet::new();
    items.iter().find(|item| !seen.insert(*item))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str) -> Pool {
        Pool {
            name: PoolName::parse(name).unwrap(),
            routes: vec![Route::parse("zh:en").unwrap()],
            requires: vec![Label::parse("asr:zh").unwrap()],
            weight: 1,
        }
    }

    #[test]
    fn a_list_reads_back_as_it_was_kept() {
        let bare = Pool { routes: vec![], requires: vec![], ..pool("b") };
        let pools = Pools::new(3, vec![pool("a"), bare]).unwrap();
        assert_eq!(Pools::from_json(3, &pools.to_json()), Ok(pools));
        assert_eq!(Pools::from_json(0, "[]"), Ok(Pools::unconfigured()));
        for bad in ["", "{}", r#"[{"name":"a b","weight":1}]"#, r#"[{"name":"a","weight":0}]"#] {
            assert!(Pools::from_json(1, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_list_is_said_by_name() {
        let good = pool("a");
        let label = |n: usize| Label::parse(&format!("l{n}")).unwrap();
        let route = |n: usize| Route::parse(&format!("a:b{n}")).unwrap();
        let table = [
            (vec![good.clone(), good.clone()], "a is not"),
            (vec![Pool { weight: 0, ..good.clone() }], "1 to 1000"),
            (vec![Pool { weight: POOL_WEIGHT_MAX + 1, ..good.clone() }], "1 to 1000"),
            (vec![Pool { routes: vec![route(1), route(1)], ..good.clone() }], "a:b1 of pool a"),
            (
                vec![Pool { routes: (0..=POOL_ROUTES_MAX).map(route).collect(), ..good.clone() }],
                "at most 256",
            ),
            (vec![Pool { requires: vec![label(1), label(1)], ..good.clone() }], "l1 of pool a"),
            (vec![Pool { requires: (0..=POOL_LABELS_MAX).map(label).collect(), ..good }], "at most 16"),
            ((0..=POOLS_MAX).map(|n| pool(&format!("p{n}"))).collect(), "at most 1000"),
        ];
        for (list, words) in table {
            let refusal = Pools::new(1, list).unwrap_err().to_string();
            assert!(refusal.contains(words), "{refusal}");
        }
    }
}
