//! Where requests go: the instances, and which of them last served each signer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use testkit::http::Client;

/// No instance is known to serve the signer.
const NOBODY: u16 = u16::MAX;
/// How often the instances' list is read anew.
const REFRESH: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Host {
    /// `ADDR:PORT`.
    address: Arc<str>,
    /// The instance's id, once it is known.
    instance: Option<String>,
    up: AtomicBool,
}

/// The instances. Indexes stay what they are; one that left is only marked.
#[derive(Debug, Default)]
pub struct Targets {
    hosts: RwLock<Vec<Host>>,
    served_by: Vec<AtomicU16>,
}

impl Targets {
    /// For requests about this many signers.
    #[must_use]
    pub fn new(urls: &[String], signers: usize) -> Self {
        let targets = Self {
            hosts: RwLock::default(),
            served_by: (0..signers).map(|_| AtomicU16::new(NOBODY)).collect(),
        };
        urls.iter().for_each(|url| {
            targets.index_of(url);
        });
        targets
    }

    /// The index of the instance at `url`, added if it is new; from now on it is asked.
    pub fn index_of(&self, url: &str) -> u16 {
        let address = address_of(url);
        let mut hosts = self.hosts.write();
        if let Some(at) = hosts.iter().position(|host| &*host.address == address) {
            hosts[at].up.store(true, Ordering::Relaxed);
            return at as u16;
        }
        hosts.push(Host { address: address.into(), instance: None, up: AtomicBool::new(true) });
        (hosts.len() - 1) as u16
    }

    /// The instance at `url` is not asked any more.
    pub fn leave(&self, url: &str) {
        let hosts = self.hosts.read();
        for host in hosts.iter().filter(|host| &*host.address == address_of(url)) {
            host.up.store(false, Ordering::Relaxed);
        }
    }

    /// `ADDR:PORT` of one.
    pub(super) fn address(&self, host: u16) -> Arc<str> {
        Arc::clone(&self.hosts.read()[host as usize].address)
    }

    /// Any of those that are up, by a number drawn.
    pub(super) fn any(&self, drawn: usize) -> u16 {
        let hosts = self.hosts.read();
        let up = || (0..hosts.len()).filter(|at| hosts[*at].up.load(Ordering::Relaxed));
        up().nth(drawn % up().count().max(1)).unwrap_or(0) as u16
    }

    /// Who served this signer last.
    pub(super) fn owner(&self, signer: u32) -> Option<u16> {
        let owner = self.served_by.get(signer as usize)?.load(Ordering::Relaxed);
        (owner != NOBODY).then_some(owner)
    }

    pub(super) fn served(&self, signer: u32, host: u16) {
        if let Some(owner) = self.served_by.get(signer as usize) {
            owner.store(host, Ordering::Relaxed);
        }
    }

    pub(super) fn forget(&self, signer: u32) {
        self.served(signer, NOBODY);
    }

    /// The host of an instance named by its id, where that is known.
    pub(super) fn host_of(&self, instance: &str) -> Option<u16> {
        let hosts = self.hosts.read();
        let at = hosts
            .iter()
            .position(|host| host.instance.as_deref() == Some(instance) && host.up.load(Ordering::Relaxed))?;
        Some(at as u16)
    }

    fn name(&self, url: &str, instance: &str) {
        let mut hosts = self.hosts.write();
        if let Some(host) = hosts.iter_mut().find(|host| &*host.address == address_of(url)) {
            host.instance = Some(instance.to_owned());
        }
    }

    /// Learns again and again which instance has which id, so that an answer's `owner` says where to ask
    /// next. Runs until it is aborted.
    pub(super) async fn keep_learning(self: Arc<Self>, client: Client) {
        for turn in 0.. {
            let url = format!("http://{}/v1/cluster", self.address(self.any(turn)));
            if let Ok(cluster) = client.get(&url).await {
                for one in cluster["instances"].as_array().into_iter().flatten() {
                    if let (Some(id), Some(url)) = (one["instance_id"].as_str(), one["url"].as_str()) {
                        self.name(url, id);
                    }
                }
            }
            tokio::time::sleep(REFRESH).await;
        }
    }
}

fn address_of(url: &str) -> &str {
    url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_left_is_not_asked_and_keeps_its_place() {
        let targets = Targets::new(&["http://a:1".to_owned(), "http://b:2/".to_owned()], 3);
        assert_eq!(&*targets.address(1), "b:2");
        targets.leave("http://a:1");
        assert!((0..5).all(|drawn| targets.any(drawn) == 1));
        assert_eq!(targets.index_of("http://c:3"), 2);
        targets.name("http://b:2", "bee");
        targets.served(1, 2);
        assert_eq!((targets.owner(1), targets.owner(0), targets.host_of("bee")), (Some(2), None, Some(1)));
        targets.forget(1);
        assert_eq!((targets.owner(1), targets.index_of("http://a:1")), (None, 0));
        assert_eq!([targets.any(0), targets.any(1), targets.any(2)], [0, 1, 2]);
    }
}
