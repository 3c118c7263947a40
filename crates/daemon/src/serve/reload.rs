//! Tokens change while the daemon runs: when it gets SIGHUP, and when the configuration file changes.
//!
//! The whole configuration is read and checked as at the start; only its tokens take effect. One that is refused
//! changes nothing.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use domain::AuditEntry;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::tokens;
use crate::config::{Config, Loaded, Sources};
use crate::exit::{Exit, Failure};

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Waits for a reason to read the configuration again.
pub struct Reloader {
    sources: Sources,
    file: Option<PathBuf>,
    config: Config,
    /// The file, as it was when it was read.
    seen: Option<(SystemTime, u64)>,
    hangup: Signal,
}

impl Reloader {
    /// Takes SIGHUP over from the system's default, which would end the process.
    ///
    /// # Errors
    /// [`Exit::Software`] when the system refuses.
    pub fn listen(sources: Sources, loaded: &Loaded) -> Result<Self, Failure> {
        let hangup = signal(SignalKind::hangup()).map_err(|error| {
            Failure::new(Exit::Software, format!("SIGHUP cannot be listened for: {error}"))
        })?;
        let (file, config) = (loaded.file.clone(), loaded.config.clone());
        let mut reloader = Self { sources, file, config, seen: None, hangup };
        reloader.seen = reloader.look();
        Ok(reloader)
    }

    /// Reads the tokens again whenever there is a reason.
    pub async fn run(mut self, api: api::Handle, ledger: ledger::Handle) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(()) = self.hangup.recv() => {}
                _ = looks.tick() => {
                    let found = self.look();
                    // A file that is away for a moment is being replaced.
                    if found.is_none() || found == self.seen {
                        continue;
                    }
                }
            }
            self.seen = self.look();
            let is_reloaded = self.reload(&api);
            if is_reloaded && let Err(error) = ledger.audit(&entry(&self.config)).await {
                tracing::warn!(%error, "the reload of the tokens is not in the audit");
            }
            let result = if is_reloaded { "ok" } else { "refused" };
            metrics::counter!("fencepost_token_reload_total", "result" => result).increment(1);
        }
    }

    fn look(&self) -> Option<(SystemTime, u64)> {
        let file = std::fs::metadata(self.file.as_ref()?).ok()?;
        Some((file.modified().ok()?, file.len()))
    }

    fn reload(&mut self, api: &api::Handle) -> bool {
        let loaded = match self.sources.load() {
            Ok(loaded) => loaded,
            Err(refused) => {
                tracing::error!(%refused, "the configuration cannot be reloaded; the tokens stay as they are");
                return false;
            }
        };
        let (before, after) = (&self.config.auth.tokens, &loaded.config.auth.tokens);
        if before.is_empty() != after.is_empty() {
            tracing::error!(
                "whether there are tokens at all changes with a restart only; the tokens stay as they are"
            );
            return false;
        }
        let rest = |config: &Config| Config { auth: crate::config::Auth::default(), ..config.clone() };
        if rest(&self.config) != rest(&loaded.config) {
            tracing::warn!("only tokens are reloaded; other changes of the configuration wait for a restart");
        }
        if !after.is_empty() {
            api.replace_tokens(tokens(&loaded.config));
        }
        tracing::info!(tokens = after.len(), changed = before != after, "the tokens are reloaded");
        self.config.auth = loaded.config.auth;
        true
    }
}

/// What is noted of a reload. Nobody asked for it over HTTP.
fn entry(config: &Config) -> AuditEntry {
    let names: Vec<_> = config.auth.tokens.iter().map(|token| token.name.as_str()).collect();
    let after = Some(names.join(" "));
    AuditEntry { after, ..AuditEntry::new("", "reload_tokens", "config:tokens") }
}
