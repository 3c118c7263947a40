//! Which instance to ask about a signer: the ring as one of the instances showed it, so that a request goes
//! straight to the owner. A guess that saves a hop: where it is wrong, the instance asked knows better.
//!
//! The ring is looked at anew, in the background, when an answer names another version than the one known.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use placement::Ring;
use reqwest::Url;
use wire::cluster::{Cluster, Mode};

use crate::transport::base;

/// Between two looks at the ring, at least.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// For so long an instance that could not be asked is not gone to straight.
const AVOIDED_FOR: Duration = Duration::from_secs(2);

/// What a client knows of the cluster. Cheap to clone; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    known: ArcSwapOption<Known>,
    looking: AtomicBool,
    looked: Mutex<Option<Instant>>,
    avoided: Mutex<HashMap<Url, Instant>>,
}

#[derive(Debug)]
struct Known {
    version: u64,
    mode: Mode,
    only: Option<Vec<String>>,
    ring: Ring,
    urls: HashMap<String, Url>,
}

impl Known {
    fn of(cluster: Cluster) -> Self {
        let on_ring = cluster.instances.into_iter().filter(|instance| instance.on_ring);
        let urls: HashMap<_, _> =
            on_ring.filter_map(|instance| Some((instance.instance_id, base(&instance.url).ok()?))).collect();
        let ring = Ring::new(urls.keys().cloned());
        Self { version: cluster.ring_version, mode: cluster.mode, only: cluster.only, ring, urls }
    }

    /// Whether a signer has an owner that keeps it.
    fn is_kept(&self, resource: &str) -> bool {
        let named = self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == resource));
        named == (self.mode == Mode::WorkerQueue)
    }
}

impl Routes {
    /// Where the owner of a signer is reached, as far as is known.
    pub(crate) fn owner(&self, signer: &str) -> Option<Url> {
        let known = self.inner.known.load();
        let known = known.as_ref()?;
        let resource = format!("signer:{signer}");
        let url = known.urls.get(known.ring.owner(&resource).filter(|_| known.is_kept(&resource))?)?;
        let avoided = self.avoided();
        (avoided.is_empty() || avoided.get(url).is_none_or(|until| Instant::now() >= *until))
            .then(|| url.clone())
    }

    /// This instance could not be asked.
    pub(crate) fn avoid(&self, url: &Url) {
        let mut avoided = self.avoided();
        let now = Instant::now();
        avoided.retain(|_, until| now < *until);
        avoided.insert(url.clone(), now + AVOIDED_FOR);
    }

    /// Whether it is time to look at the ring again: an answer named another version. Whoever is told so
    /// looks, and says so with [`Looking`].
    pub(crate) fn is_outdated(&self, version: u64) -> Option<Looking> {
        if self.inner.known.load().as_ref().is_some_and(|known| known.version == version) {
            return None;
        }
        let mut looked = self.inner.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_some_and(|at| at.elapsed() < LOOK_EVERY)
            || self.inner.looking.swap(true, Ordering::AcqRel)
        {
            return None;
        }
        *looked = Some(Instant::now());
        Some(Looking { inner: Arc::clone(&self.inner) })
    }

    fn avoided(&self) -> std::sync::MutexGuard<'_, HashMap<Url, Instant>> {
        // Nothing under it panics half-way through a change.
        self.inner.avoided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to look at the ring; one has it at a time.
pub(crate) struct Looking {
    inner: Arc<Inner>,
}

impl Looking {
    /// It was found to be this.
    pub(crate) fn found(self, cluster: Cluster) {
        self.inner.known.store(Some(Arc::new(Known::of(cluster))));
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.inner.looking.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use wire::cluster::Instance;

    use super::*;

    fn cluster(names: &[&str], mode: Mode, only: Option<&str>) -> Cluster {
        let instance = |name: &&str| Instance {
            instance_id: (*name).to_owned(),
            url: format!("http://{name}:7070"),
            started_at: String::new(),
            hostname: String::new(),
            pid: 1,
            version: String::new(),
            bus_up: None,
            resources: 0,
            on_ring: *name != "newcomer",
        };
        Cluster {
            instance: names[0].to_owned(),
            mode,
            only: only.map(|name| vec![name.to_owned()]),
            ring_version: Ring::new(names.iter().copied()).version(),
            instances: names.iter().map(instance).collect(),
        }
    }

    fn routes(cluster: Cluster) -> Routes {
        let routes = Routes::default();
        routes.is_outdated(cluster.ring_version).unwrap().found(cluster);
        routes
    }

    #[test]
    fn a_signer_is_sought_where_the_ring_puts_it() {
        let routes = routes(cluster(&["a", "b", "newcomer"], Mode::WorkerQueue, None));
        let ring = Ring::new(["a", "b"]);
        for signer in ["x", "y", "eip155:1:0xab"] {
            let owner = ring.owner(&format!("signer:{signer}")).unwrap();
            let url = routes.owner(signer).unwrap();
            assert_eq!(url.as_str(), format!("http://{owner}:7070/"));
            routes.avoid(&url);
            assert_eq!(routes.owner(signer), None);
            routes.avoided().clear();
        }
    }

    #[test]
    fn in_basic_mode_any_instance_will_do() {
        assert_eq!(routes(cluster(&["a"], Mode::Basic, None)).owner("x"), None);
        let canary = routes(cluster(&["a"], Mode::WorkerQueue, Some("signer:x")));
        assert!(canary.owner("x").is_some() && canary.owner("y").is_none());
        let but_one = routes(cluster(&["a"], Mode::Basic, Some("signer:x")));
        assert!(but_one.owner("x").is_none() && but_one.owner("y").is_some());
        assert_eq!(Routes::default().owner("x"), None);
    }

    #[test]
    fn another_version_is_looked_at_once_at_a_time() {
        let shown = cluster(&["a", "b"], Mode::WorkerQueue, None);
        let version = shown.ring_version;
        let routes = routes(shown);
        assert!(routes.is_outdated(version).is_none());
        assert!(routes.is_outdated(version + 1).is_none(), "not again so soon");
        *routes.inner.looked.lock().unwrap() = None;
        let looking = routes.is_outdated(version + 1).unwrap();
        *routes.inner.looked.lock().unwrap() = None;
        assert!(routes.is_outdated(version + 1).is_none(), "somebody looks");
        drop(looking);
        assert!(routes.is_outdated(version + 1).is_some(), "who gave up lets others look");
    }
}
