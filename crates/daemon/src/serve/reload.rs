//! What changes while the daemon runs, when it gets SIGHUP and when a file changes: the tokens, by the configuration
//! file, and the certificates, by the files that it names.
//!
//! The whole configuration is read and checked as at the start; only its tokens take effect. A file that is refused
//! changes nothing.

use std::time::Duration;

use domain::AuditEntry;
use panic_guard::{guarded, guarded_call, pause};
use tokio::signal::unix::Signal;

use super::watched::Watched;
use super::{settings, tls};
use crate::config::{AuthToken, Config, Loaded, Sources, changed_keys, other_tokens};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Waits for a reason to read files again.
pub struct Reloader {
    sources: Sources,
    config: Config,
    configured: Watched,
    /// The listener's certificate and key.
    listener: Watched,
    /// The files of the connections to other instances.
    peers: Watched,
    hangup: Signal,
    /// The tokens are to be read once more: the audit did not take the entry, or a defect interrupted that.
    waits: bool,
    audited: Audited,
}

/// Where what was read takes effect.
pub struct Targets {
    pub api: api::Handle,
    /// For the audit.
    pub ledger: ledger::Handle,
    /// The listener's TLS, if it has any.
    pub tls: Option<api::Tls>,
    pub peers: client::Peers,
}

impl Reloader {
    /// Waits for `hangup`, and for changes of the files that this configuration names.
    pub fn new(hangup: Signal, sources: Sources, loaded: &Loaded) -> Self {
        let config = loaded.config.clone();
        let configured = Watched::new(loaded.file.iter().cloned().collect());
        let listener = Watched::new(tls::listener_files(&config));
        let peers = Watched::new(tls::peer_files(&config));
        let (waits, audited) = (false, Audited::default());
        Self { sources, config, configured, listener, peers, hangup, waits, audited }
    }

    /// Reads tokens and certificates again whenever there is a reason.
    pub async fn run(mut self, targets: Targets) {
        while guarded("the looks at the files", self.look_always(&targets)).await.is_none() {
            pause().await;
        }
    }

    async fn look_always(&mut self, targets: &Targets) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let (configured, listener, peers) = tokio::select! {
                Some(()) = self.hangup.recv() => (true, true, true),
                _ = looks.tick() => {
                    let configured = self.configured.is_changed() || self.waits;
                    (configured, self.listener.is_changed(), self.peers.is_changed())
                }
            };
            if self.configured.has_turned() {
                if self.configured.is_away() {
                    tracing::warn!("the configuration file is gone; what was read of it stays in force");
                } else {
                    tracing::warn!("the configuration file is back");
                }
            }
            tell_away("listener", &mut self.listener);
            tell_away("peers", &mut self.peers);
            if configured {
                self.configured.note();
                let reload = guarded("the reload of the tokens", self.reload(targets)).await;
                // After a panic it is tried again: a token that was removed must not stay in force.
                self.waits = reload.is_none_or(|reload| reload == Reload::Waits);
                if let Some(reload) = reload {
                    show_refused("tokens", reload == Reload::Refused);
                    let result = reload.as_str();
                    metrics::counter!("fencepost_token_reload_total", "result" => result).increment(1);
                }
            }
            if listener {
                self.listener.note();
                // New connections get the new certificates; open ones stay.
                if let Some(listener) = &targets.tls {
                    let renew = || tls::reload(&self.config, listener);
                    if let Some(outcome) = guarded_call("the reload of certificates", renew) {
                        tell_certificates("listener", outcome);
                    }
                }
            }
            if peers {
                self.peers.note();
                if !tls::peer_files(&self.config).is_empty() {
                    let renew = || tls::renew_peers(&self.config, &targets.peers);
                    if let Some(outcome) = guarded_call("the reload of certificates", renew) {
                        tell_certificates("peers", outcome);
                    }
                }
            }
        }
    }

    /// Reads the tokens and, once the audit has its entry, puts them in force.
    async fn reload(&mut self, targets: &Targets) -> Reload {
        let loaded = match self.sources.load() {
            Ok(loaded) => loaded,
            Err(refused) => {
                tracing::error!(%refused, "the configuration cannot be reloaded; the tokens stay as they are");
                return Reload::Refused;
            }
        };
        let (before, after) = (&self.config.auth.tokens, &loaded.config.auth.tokens);
        if before.is_empty() != after.is_empty() {
            tracing::error!(
                "whether there are tokens at all changes with a restart only; the tokens stay as they are"
            );
            return Reload::Refused;
        }
        let changes = entry(before, after);
        if let Some(changes) = &changes
            && let Err(error) = self.audited.note(&targets.ledger, changes).await
        {
            if !self.waits {
                tracing::warn!(%error, "the tokens stay as they are until the audit takes the entry of their reload");
            }
            return Reload::Waits;
        }
        let mut keys = changed_keys(&self.config, &loaded.config);
        keys.retain(|key| key != "auth.tokens");
        if !keys.is_empty() {
            let keys = keys.join(", ");
            tracing::warn!(
                keys,
                "only tokens are reloaded; other changes of the configuration wait for a restart"
            );
        }
        if let Some(warning) = other_tokens(&loaded) {
            tracing::warn!(warning, "the tokens are others than those of the configuration file");
        }
        if !after.is_empty() {
            targets.api.replace_tokens(settings::tokens(&loaded.config));
        }
        match changes {
            Some(_) => tracing::info!(tokens = after.len(), "the tokens are reloaded"),
            None => {
                tracing::info!(tokens = after.len(), "the configuration was read again; no token has changed")
            }
        }
        self.config.auth = loaded.config.auth;
        self.audited = Audited::default();
        Reload::Done
    }
}

/// The entry of a reload that the audit has taken while the tokens are not in force yet: a defect may come between the two.
#[derive(Default)]
struct Audited(Option<AuditEntry>);

impl Audited {
    /// Has the audit take an entry, once for as long as this is remembered.
    async fn note(&mut self, ledger: &ledger::Handle, entry: &AuditEntry) -> ledger::Result<()> {
        if self.0.as_ref() != Some(entry) {
            ledger.audit(entry).await?;
            self.0 = Some(entry.clone());
        }
        Ok(())
    }
}

/// What became of a reload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reload {
    Done,
    /// The configuration was refused.
    Refused,
    /// The audit did not take the entry, so the reload is tried again.
    Waits,
}

impl Reload {
    /// The label in metrics.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "ok",
            Self::Refused => "refused",
            Self::Waits => "waits",
        }
    }
}

/// Tells of files of certificates that are gone, and of their return, once each.
fn tell_away(of: &'static str, files: &mut Watched) {
    if !files.has_turned() {
        return;
    }
    if files.is_away() {
        let file = files.missing().map(|file| file.display().to_string());
        tracing::warn!(of, file, "a file of certificates is gone; what was read of it stays in force");
    } else {
        tracing::warn!(of, "the files of certificates are back");
    }
}

/// Whether the files of this use are refused as they were read last.
fn show_refused(of: &'static str, is_refused: bool) {
    metrics::gauge!("fencepost_file_refused", "of" => of).set(f64::from(is_refused));
}

/// What became of certificates that were read again.
fn tell_certificates(of: &'static str, outcome: Result<Option<String>, String>) {
    show_refused(of, outcome.is_err());
    let result = match outcome {
        Ok(warning) => {
            if let Some(warning) = warning {
                tracing::warn!(of, warning, "the certificate is taken, but others may refuse it");
            }
            tracing::info!(of, "the certificates are reloaded");
            "ok"
        }
        Err(refused) => {
            tracing::error!(of, refused, "the certificates cannot be reloaded; they stay as they are");
            "refused"
        }
    };
    metrics::counter!("fencepost_tls_reload_total", "of" => of, "result" => result).increment(1);
}

/// What is noted of a reload: the tokens that are not as they were, without their secrets. `None` if all are. Nobody asked for it
/// over HTTP.
fn entry(before: &[AuthToken], after: &[AuthToken]) -> Option<AuditEntry> {
    let others = |of: &[AuthToken], than: &[AuthToken]| {
        let others: Vec<_> = of.iter().filter(|token| !than.contains(token)).map(AuthToken::rights).collect();
        (!others.is_empty()).then(|| others.join("\n"))
    };
    let (before, after) = (others(before, after), others(after, before));
    let is_changed = before.is_some() || after.is_some();
    is_changed.then(|| AuditEntry { before, after, ..AuditEntry::new("", "reload_tokens", "config:tokens") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, secret: &str) -> AuthToken {
        let (token, scopes) = (secret.to_owned(), vec!["submit".to_owned()]);
        AuthToken { name: name.to_owned(), token, scopes, ..AuthToken::default() }
    }

    #[tokio::test]
    async fn an_entry_of_which_the_tokens_are_not_in_force_yet_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let options = ledger::Options {
            url: format!("sqlite:{}", folder.path().join("ledger.db").display()),
            connections_max: 2,
            connect_timeout_ms: 1_000,
            call_timeout_ms: 60_000,
            expected_id: None,
        };
        let ledger = ledger::open(&options).await.unwrap();
        let [one, other] = ["one", "other"].map(|name| entry(&[], &[token(name, "s")]).unwrap());
        let mut audited = Audited::default();
        for entry in [&one, &one, &other] {
            audited.note(&ledger, entry).await.unwrap();
        }
        let filter = ledger::AuditFilter { limit: 10, ..ledger::AuditFilter::default() };
        let noted = ledger.audits(&filter).await.unwrap();
        let noted: Vec<_> = noted.into_iter().map(|noted| noted.after).collect();
        assert_eq!(noted, [other.after, one.after], "the newest first");
    }

    #[test]
    fn the_entry_of_a_reload_says_what_each_changed_token_might_do_and_may_do_now() {
        let of_signers = AuthToken { signers: Some(vec!["eip155:*".to_owned()]), ..token("relayer", "a") };
        let admin = AuthToken { scopes: vec!["admin".to_owned()], signers: None, ..of_signers.clone() };
        let same = token("same", "s");
        let entry_of = |before: &[AuthToken], after: &[AuthToken]| {
            let AuditEntry { before, after, .. } = entry(before, after).expect("something has changed");
            (before.unwrap_or_default(), after.unwrap_or_default())
        };
        let (before, after) = entry_of(&[same.clone(), of_signers.clone()], &[same.clone(), admin]);
        assert!(before.contains(r#"signers=["eip155:*"]"#) && before.contains("submit"), "{before}");
        assert!(
            after.contains("relayer") && after.contains("admin") && !after.contains("signers"),
            "{after}"
        );
        assert!(!before.contains("same") && !after.contains("same"));
        // The entry says that the secret is new, and names neither of the two.
        let (before, after) = entry_of(&[token("relayer", "first")], &[token("relayer", "second")]);
        assert!(
            before != after && !before.contains("first") && !after.contains("second"),
            "{before} {after}"
        );
        let gone = AuthToken { expires_at: "2030-01-01T00:00:00Z".to_owned(), ..token("gone", "g") };
        let (before, after) = entry_of(&[gone], &[]);
        assert!(before.contains("2030") && after.is_empty(), "{before}");
        let (one, other) = (token("one", "1"), token("other", "2"));
        assert!(entry(&[one.clone(), other.clone()], &[other, one]).is_none(), "no token has changed");
    }
}
