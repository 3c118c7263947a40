//! Which instance to ask about a signer: the ring as one of the instances showed it, so that a request goes
//! directly to the owner. The ring may be out of date; then the instance that gets the request forwards it or
//! names the owner.
//!
//! The ring is looked at anew, in the background, when an answer names another version than the one known, and
//! while an instance keeps a request waiting.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use placement::Ring;
use reqwest::Url;
use reqwest::header::HeaderValue;
use wire::cluster::{Cluster, Mode};

use crate::avoided::Avoided;
use crate::base_url;

/// Between two looks at the ring, at least.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What a client knows about the cluster. Cheap to clone; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    known: ArcSwapOption<Known>,
    looking: AtomicBool,
    looked: Mutex<Option<Instant>>,
    /// The version of a ring that was refused to this client, if the last answer was that.
    refused: ArcSwapOption<HeaderValue>,
    avoided: Mutex<Avoided>,
}

#[derive(Debug)]
struct Known {
    /// The version of the ring and mode, as the instance that showed them states it. Versions can only be
    /// compared for equality.
    version: HeaderValue,
    /// It was shown no sooner than this.
    since: Instant,
    mode: Mode,
    only: Option<Vec<String>>,
    ring: Ring,
    /// Of those on the ring, by their ids.
    urls: HashMap<String, Url>,
    /// Of all that live.
    alive: HashSet<Url>,
}

impl Known {
    fn of(cluster: Cluster, version: Option<HeaderValue>, since: Instant) -> Self {
        let version = version.unwrap_or_else(|| cluster.ring_version.into());
        let (mut urls, mut alive) = (HashMap::new(), HashSet::new());
        for instance in cluster.instances {
            let Ok(url) = base_url::parse(&instance.url) else { continue };
            alive.insert(url.clone());
            if instance.on_ring {
                urls.insert(instance.instance_id, url);
            }
        }
        let ring = Ring::new(urls.keys().cloned());
        Self { version, since, mode: cluster.mode, only: cluster.only, ring, urls, alive }
    }

    /// Whether a signer has an owner that keeps it.
    fn is_kept(&self, resource: &str) -> bool {
        let named = self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == resource));
        named == (self.mode == Mode::WorkerQueue)
    }
}

impl Routes {
    /// The address of a signer's owner, if it is known and not avoided. The caller must send a request there:
    /// see [`Avoided::may_try`].
    pub(crate) fn owner(&self, signer: &str) -> Option<Url> {
        let known = self.inner.known.load();
        let known = known.as_ref()?;
        let resource = format!("signer:{signer}");
        let url = known.urls.get(known.ring.owner(&resource).filter(|_| known.is_kept(&resource))?)?;
        self.avoided().may_try(url, Instant::now()).then(|| url.clone())
    }

    /// The instance at this address is down, or is going.
    pub(crate) fn avoid(&self, url: &Url) {
        self.avoided().failed(url, Instant::now());
    }

    /// The instance at this address answered.
    pub(crate) fn reached(&self, url: &Url) {
        self.avoided().answered(url);
    }

    /// Whether an instance advertised this address when the ring was last looked at.
    pub(crate) fn lives_at(&self, url: &Url) -> bool {
        self.inner.known.load().as_ref().is_some_and(|known| known.alive.contains(url))
    }

    /// Whether the ring was looked at after `since`, and no instance advertised this address any more.
    pub(crate) fn is_gone(&self, url: &Url, since: Instant) -> bool {
        let known = self.inner.known.load();
        known.as_ref().is_some_and(|known| known.since > since && !known.alive.contains(url))
    }

    /// The addresses of all instances that lived when the ring was last looked at.
    pub(crate) fn alive(&self) -> Vec<Url> {
        self.inner.known.load().as_ref().map_or_else(Vec::new, |known| known.alive.iter().cloned().collect())
    }

    /// Whether the ring of this version was read, or was refused.
    pub(crate) fn is_settled(&self, version: &HeaderValue) -> bool {
        self.inner.known.load().as_ref().is_some_and(|known| known.version == *version)
            || self.inner.refused.load().as_ref().is_some_and(|refused| **refused == *version)
    }

    /// Whether the last look was refused. Only another version is worth a further one.
    pub(crate) fn is_refused(&self) -> bool {
        self.inner.refused.load().is_some()
    }

    /// The right to read the ring again, if an answer named another version. The caller reads it, and stores
    /// it with [`Looking`].
    pub(crate) fn is_outdated(&self, version: &HeaderValue) -> Option<Looking> {
        if self.is_settled(version) {
            return None;
        }
        let mut looking = self.look(LOOK_EVERY)?;
        looking.version = Some(version.clone());
        Some(looking)
    }

    /// The right to read the ring, if no other call reads it now or has read it within `every`.
    pub(crate) fn look(&self, every: Duration) -> Option<Looking> {
        let mut looked = self.inner.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_some_and(|at| at.elapsed() < every) || self.inner.looking.swap(true, Ordering::AcqRel) {
            return None;
        }
        let since = Instant::now();
        *looked = Some(since);
        Some(Looking { inner: Arc::clone(&self.inner), since, version: None })
    }

    fn avoided(&self) -> std::sync::MutexGuard<'_, Avoided> {
        self.inner.avoided()
    }
}

impl Inner {
    fn avoided(&self) -> std::sync::MutexGuard<'_, Avoided> {
        // Nothing under it panics half-way through a change.
        self.avoided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to read the ring; one call has it at a time.
pub(crate) struct Looking {
    inner: Arc<Inner>,
    since: Instant,
    /// What an answer called it, if that is why it is read.
    version: Option<HeaderValue>,
}

impl Looking {
    /// It was found to be this, and called by this version.
    pub(crate) fn found(self, cluster: Cluster, version: Option<HeaderValue>) {
        let known = Known::of(cluster, version, self.since);
        self.inner.avoided().keep(|url| known.alive.contains(url));
        self.inner.known.store(Some(Arc::new(known)));
        self.inner.refused.store(None);
    }

    /// It may not be read, and is not asked for again under this version.
    pub(crate) fn refused(mut self) {
        if let Some(version) = self.version.take() {
            self.inner.refused.store(Some(Arc::new(version)));
        }
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
            bus: None,
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
        routes.look(Duration::ZERO).unwrap().found(cluster, None);
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
            routes.reached(&url);
            assert_eq!(routes.owner(signer), Some(url));
        }
    }

    #[test]
    fn in_basic_mode_any_instance_will_do() {
        assert_eq!(routes(cluster(&["a"], Mode::Basic, None)).owner("x"), None);
        let canary = routes(cluster(&["a"], Mode::WorkerQueue, Some("signer:x")));
        assert!(canary.owner("x").is_some() && canary.owner("y").is_none());
        let but_one = routes(cluster(&["a"], Mode::Basic, Some("signer:x")));
        assert!(but_one.owner("x").is_none() && but_one.owner("y").is_some());
        // None of the named ones is shown to a token that sees none of them.
        let others = |mode| routes(Cluster { only: Some(Vec::new()), ..cluster(&["a"], mode, None) });
        assert!(others(Mode::WorkerQueue).owner("y").is_none() && others(Mode::Basic).owner("y").is_some());
        assert_eq!(Routes::default().owner("x"), None);
    }

    #[test]
    fn another_version_is_looked_at_once_at_a_time() {
        let version = |text| HeaderValue::from_static(text);
        let routes = Routes::default();
        let time_passes = |routes: &Routes| *routes.inner.looked.lock().unwrap() = None;
        let shown = cluster(&["a", "b"], Mode::WorkerQueue, None);
        routes.look(Duration::ZERO).unwrap().found(shown.clone(), Some(version("7-1")));
        time_passes(&routes);
        assert!(routes.is_outdated(&version("7-1")).is_none());
        let looking = routes.is_outdated(&version("7-2")).expect("the mode may have changed, the ring not");
        time_passes(&routes);
        assert!(routes.is_outdated(&version("7-2")).is_none(), "somebody looks");
        looking.found(Cluster { mode: Mode::Basic, ..shown }, Some(version("7-2")));
        assert!(routes.owner("x").is_none());
        time_passes(&routes);
        assert!(routes.is_outdated(&version("7-2")).is_none(), "it is what was shown");
        drop(routes.is_outdated(&version("7-3")).unwrap());
        assert!(routes.is_outdated(&version("7-3")).is_none(), "not again so soon");
        time_passes(&routes);
        assert!(routes.is_outdated(&version("7-3")).is_some(), "who gave up lets others look");
    }

    #[test]
    fn a_ring_that_was_refused_is_not_read_before_it_changes() {
        let [first, second] = ["7-1", "7-2"].map(HeaderValue::from_static);
        let routes = Routes::default();
        let time_passes = || *routes.inner.looked.lock().unwrap() = None;
        routes.is_outdated(&first).unwrap().refused();
        time_passes();
        assert!(routes.is_outdated(&first).is_none() && routes.is_refused());
        let looking = routes.is_outdated(&second).expect("it has changed");
        looking.found(cluster(&["a"], Mode::WorkerQueue, None), Some(second.clone()));
        assert!(!routes.is_refused() && routes.owner("x").is_some());
        time_passes();
        assert!(routes.is_outdated(&second).is_none() && routes.is_outdated(&first).is_some());
    }

    #[test]
    fn an_instance_is_gone_when_a_later_look_does_not_show_it() {
        let routes = routes(cluster(&["a", "newcomer"], Mode::WorkerQueue, None));
        let [a, newcomer] =
            ["http://a:7070", "http://newcomer:7070"].map(|url| base_url::parse(url).unwrap());
        assert!(routes.lives_at(&a) && routes.lives_at(&newcomer));
        let sent_at = Instant::now();
        let stranger = base_url::parse("http://stranger").unwrap();
        assert!(!routes.is_gone(&stranger, sent_at), "that look was earlier");
        let shown = cluster(&["b", "newcomer"], Mode::WorkerQueue, None);
        routes.look(Duration::ZERO).unwrap().found(shown, None);
        assert!(routes.is_gone(&a, sent_at) && routes.is_gone(&stranger, sent_at));
        assert!(!routes.is_gone(&newcomer, sent_at), "it lives, on the ring or not");
    }
}
