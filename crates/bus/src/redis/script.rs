//! Lua scripts: each is a file under `lua`, and is sent by its digest alone once a server knows it.

use std::sync::OnceLock;

use redis::{Cmd, cmd};
use sha1::{Digest, Sha1};

/// One script.
pub(super) struct Script {
    /// The file's name, for the metric.
    pub(super) name: &'static str,
    text: &'static str,
    digest: OnceLock<String>,
}

impl Script {
    pub(super) const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, digest: OnceLock::new() }
    }

    /// A call of a script that the server is thought to know. Arguments come after it.
    pub(super) fn by_digest(&self, keys: &[String]) -> Cmd {
        let digest = || Sha1::digest(self.text).iter().map(|byte| format!("{byte:02x}")).collect();
        call("EVALSHA", self.digest.get_or_init(digest), keys)
    }

    /// The same, and the server knows it from then on.
    pub(super) fn by_text(&self, keys: &[String]) -> Cmd {
        call("EVAL", self.text, keys)
    }
}

fn call(name: &str, script: &str, keys: &[String]) -> Cmd {
    let mut command = cmd(name);
    command.arg(script).arg(keys.len()).arg(keys);
    command
}

/// The script in `lua/NAME.lua`, after the ones that it begins with.
macro_rules! script {
    ($name:literal $(after $first:literal)*) => {
        $crate::redis::script::Script::new(
            $name,
            concat!(
                $(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $first, ".lua")), "\n",)*
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $name, ".lua")),
            ),
        )
    };
}

pub(super) use script;
