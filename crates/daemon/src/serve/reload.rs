//! What changes while the daemon runs, when it gets SIGHUP and when a file changes: the tokens, by the configuration
//! file, and the certificates, by the files that it names.
//!
//! The whole configuration is read and checked as at the start; only its tokens take effect. A file that is refused
//! changes nothing.

use std::time::Duration;

use domain::AuditEntry;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::watched::Watched;
use super::{tls, tokens};
use crate::config::{AuthToken, Config, Loaded, Sources};
use crate::exit::{Exit, Failure};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Waits for a reason to read files again.
pub struct Reloader {
    sources: Sources,
    config: Config,
    configured: Watched,
    certificates: Watched,
    hangup: Signal,
}

/// Takes SIGHUP over from the system's default, which would end the process.
///
/// # Errors
/// [`Exit::Software`] when the system refuses.
pub fn hangups() -> Result<Signal, Failure> {
    signal(SignalKind::hangup())
        .map_err(|error| Failure::new(Exit::Software, format!("SIGHUP cannot be listened for: {error}")))
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
        let certificates = Watched::new(tls::files(&config));
        Self { sources, config, configured, certificates, hangup }
    }

    /// Reads tokens and certificates again whenever there is a reason.
    pub async fn run(mut self, targets: Targets) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut waits = false;
        loop {
            let (configured, certificates) = tokio::select! {
                Some(()) = self.hangup.recv() => (true, true),
                _ = looks.tick() => (waits || self.configured.is_changed(), self.certificates.is_changed()),
            };
            if configured {
                self.configured.note();
                let reload = self.reload(&targets, waits).await;
                waits = reload == Reload::Waits;
                metrics::counter!("fencepost_token_reload_total", "result" => reload.as_str()).increment(1);
            }
            if certificates {
                self.certificates.note();
                self.reload_certificates(&targets);
            }
        }
    }

    /// New connections get the new certificates; open ones stay.
    fn reload_certificates(&self, targets: &Targets) {
        let listener = targets.tls.as_ref().map(|tls| tls::reload(&self.config, tls));
        let has_files = !tls::files(&self.config).is_empty();
        let peers = has_files.then(|| tls::renew_peers(&self.config, &targets.peers));
        for (of, outcome) in [("listener", listener), ("peers", peers)] {
            let Some(outcome) = outcome else { continue };
            let result = match outcome {
                Ok(()) => {
                    tracing::info!(of, "the certificates are reloaded");
                    "ok"
                }
                Err(refused) => {
                    tracing::error!(
                        of,
                        refused,
                        "the certificates cannot be reloaded; they stay as they are"
                    );
                    "refused"
                }
            };
            metrics::counter!("fencepost_tls_reload_total", "of" => of, "result" => result).increment(1);
        }
    }

    /// Reads the tokens and, once the audit has its entry, puts them in force.
    async fn reload(&mut self, targets: &Targets, has_waited: bool) -> Reload {
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
        if let Err(error) = targets.ledger.audit(&entry(before, after)).await {
            if !has_waited {
                tracing::warn!(%error, "the tokens stay as they are until the audit takes the entry of their reload");
            }
            return Reload::Waits;
        }
        let rest = |config: &Config| Config { auth: crate::config::Auth::default(), ..config.clone() };
        if rest(&self.config) != rest(&loaded.config) {
            tracing::warn!("only tokens are reloaded; other changes of the configuration wait for a restart");
        }
        if !after.is_empty() {
            targets.api.replace_tokens(tokens(&loaded.config));
        }
        tracing::info!(tokens = after.len(), changed = before != after, "the tokens are reloaded");
        self.config.auth = loaded.config.auth;
        Reload::Done
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

/// What is noted of a reload: the tokens that are not as they were, without their secrets. Nobody asked for it over HTTP.
fn entry(before: &[AuthToken], after: &[AuthToken]) -> AuditEntry {
    let others = |of: &[AuthToken], than: &[AuthToken]| {
        let others: Vec<_> = of.iter().filter(|token| !than.contains(token)).map(AuthToken::rights).collect();
        (!others.is_empty()).then(|| others.join("\n"))
    };
    let (before, after) = (others(before, after), others(after, before));
    AuditEntry { before, after, ..AuditEntry::new("", "reload_tokens", "config:tokens") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, secret: &str) -> AuthToken {
        let (token, scopes) = (secret.to_owned(), vec!["submit".to_owned()]);
        AuthToken { name: name.to_owned(), token, scopes, ..AuthToken::default() }
    }

    #[test]
    fn the_entry_of_a_reload_says_what_each_changed_token_might_do_and_may_do_now() {
        let of_signers = AuthToken { signers: Some(vec!["eip155:*".to_owned()]), ..token("relayer", "a") };
        let admin = AuthToken { scopes: vec!["admin".to_owned()], signers: None, ..of_signers.clone() };
        let same = token("same", "s");
        let entry_of = |before: &[AuthToken], after: &[AuthToken]| {
            let AuditEntry { before, after, .. } = entry(before, after);
            (before.unwrap_or_default(), after.unwrap_or_default())
        };
        let (before, after) = entry_of(&[same.clone(), of_signers.clone()], &[same.clone(), admin]);
        assert!(before.contains(r#"signers=["eip155:*"]"#) && before.contains("submit"), "{before}");
        assert!(
            after.contains("relayer") && after.contains("admin") && !after.contains("signers"),
            "{after}"
        );
        assert!(!before.contains("same") && !after.contains("same"));
        // A new secret is seen as such, and neither of the two is told.
        let (before, after) = entry_of(&[token("relayer", "first")], &[token("relayer", "second")]);
        assert!(
            before != after && !before.contains("first") && !after.contains("second"),
            "{before} {after}"
        );
        let gone = AuthToken { expires_at: "2030-01-01T00:00:00Z".to_owned(), ..token("gone", "g") };
        let (before, after) = entry_of(&[gone], &[]);
        assert!(before.contains("2030") && after.is_empty(), "{before}");
    }
}
