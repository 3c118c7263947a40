//! Files with secrets that other users of the machine can read: a warning for each, for the log.
//!
//! What must never live here: a look at what a file says. Its mode is all that is asked of it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Loaded, redact};

/// The right to read, of users who are neither the owner nor in the file's group.
const BY_OTHERS: u32 = 0o004;
/// The same, of the file's group.
const BY_GROUP: u32 = 0o040;

/// Warns of a configuration file with secrets that all users can read, and of a key of TLS that its group or all users can read.
/// A configuration file of which only the group can read is customary: it belongs to root, and to the group of the daemon's user.
pub fn exposed_files(loaded: &Loaded) -> Vec<String> {
    let (server, cluster) = (&loaded.config.server, &loaded.config.cluster);
    let configured = loaded.file.as_deref().filter(|file| has_secrets(loaded, file));
    let configured = configured.map(|file| ("the configuration file", file, BY_OTHERS));
    let keys = [("server.tls_key", &server.tls_key), ("cluster.key", &cluster.key)];
    let keys = keys.into_iter().filter(|(_, file)| !file.is_empty());
    let keys = keys.map(|(key, file)| (key, Path::new(file), BY_OTHERS | BY_GROUP));
    let warned = configured.into_iter().chain(keys).filter_map(|(what, file, readers)| {
        // A file that cannot be looked at is refused elsewhere, if it is needed.
        let found = std::fs::metadata(file).ok()?;
        let (mode, is_roots) = (found.mode() & 0o7777, found.uid() == 0);
        // A key of root's may be for the group of the daemon's user alone, as PostgreSQL has it, too.
        let readers = if is_roots { BY_OTHERS } else { readers };
        let file = file.display();
        (mode & readers != 0)
            .then(|| format!("{what} {file} has a secret and the mode {mode:04o}: others can read it"))
    });
    warned.collect()
}

/// Whether secrets are from the configuration file. The SHA-256 of a token is none.
fn has_secrets(loaded: &Loaded, file: &Path) -> bool {
    let config = &loaded.config;
    let file = file.display().to_string();
    let has_password = |url: &str| redact::url(url).contains(redact::HIDDEN);
    let secrets = [
        ("auth.tokens", config.auth.tokens.iter().any(|entry| !entry.token.is_empty())),
        ("ledger.url", has_password(&config.ledger.url)),
        ("bus.redis_url", has_password(&config.bus.redis_url)),
        ("cluster.secret", !config.cluster.secret.0.is_empty()),
        ("traces.otlp_url", has_password(&config.traces.otlp_url)),
        ("ids.scramble_key", !config.ids.scramble_key.0.is_empty()),
    ];
    let is_of_file = |key: &str| loaded.origin(key) == Some(file.as_str());
    secrets.into_iter().any(|(key, is_secret)| is_secret && is_of_file(key))
        || loaded.overridden_ledger.as_deref().is_some_and(has_password)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::Sources;

    const TOKEN: &str =
        "[[auth.tokens]]\nname = \"a\"\nscopes = [\"read\"]\ntoken = \"hunter2hunter2hunter2hunter2\"\n";
    const URL: &str = "[ledger]\nurl = \"postgres://u:hunter2@localhost/f\"\n";
    const BUS: &str = "[bus]\nredis_url = \"redis://:hunter2@localhost\"\n";
    const TRACES: &str = "[traces]\notlp_url = \"https://localhost/v1/traces?api-key=hunter2\"\n";
    const CLUSTER: &str = "[cluster]\nsecret = \"hunter2hunter2hunter2hunter2hunter2\"\n";

    #[test]
    fn a_file_with_a_secret_that_others_can_read_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let file = folder.path().join(name);
            write(&file, text).unwrap();
            set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            file
        };
        let warned = |text: &str, mode: u32, variables: &[(&str, &str)]| {
            let file = file("fencepost.toml", text, mode);
            let environment = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
            let sources = Sources { file: Some(file), environment, ..Sources::default() };
            exposed_files(&sources.load().unwrap())
        };
        let digest = format!(
            "[[auth.tokens]]\nname = \"a\"\nscopes = [\"read\"]\nsha256 = \"{}\"\n[lease]\nsigner_ms = 20000\n",
            "0a".repeat(32)
        );
        for secret in [TOKEN, URL, BUS, CLUSTER, TRACES] {
            let warnings = warned(secret, 0o644, &[]);
            let [warning] = &warnings[..] else { panic!("{secret}: {warnings:?}") };
            for part in ["the configuration file ", "/fencepost.toml ", " 0644"] {
                assert!(warning.contains(part), "{part:?} is not in: {warning}");
            }
            assert!(!warning.contains("hunter2"), "{warning}");
            for mode in [0o600, 0o640] {
                assert_eq!(warned(secret, mode, &[]), Vec::<String>::new(), "{secret} {mode:o}");
            }
        }
        assert_eq!(warned(&digest, 0o644, &[]), Vec::<String>::new(), "a digest is no secret");
        let elsewhere = ("FENCEPOST_DATABASE_URL", "postgres://u:hunter2@localhost/f");
        assert_eq!(warned("[log]\nformat = \"json\"\n", 0o644, &[elsewhere]), Vec::<String>::new());
        let is_root = std::fs::metadata(folder.path()).unwrap().uid() == 0;
        for (mode, is_exposed) in [(0o600, false), (0o640, !is_root), (0o604, true)] {
            let key = file("key.pem", "", mode);
            let key = key.to_str().unwrap();
            let given =
                [("FENCEPOST__SERVER__TLS_CERTIFICATE", "c.pem"), ("FENCEPOST__SERVER__TLS_KEY", key)];
            let warnings = warned("", 0o644, &given);
            assert_eq!(warnings.len(), usize::from(is_exposed), "{mode:o}: {warnings:?}");
            let mode = format!("{mode:04o}");
            let is_named = |told: &String| {
                told.starts_with("server.tls_key ") && told.contains(key) && told.contains(&mode)
            };
            assert!(warnings.iter().all(is_named), "{warnings:?}");
        }
    }
}
