//! The command line: names, options and help texts.
//!
//! What must never live here: what a command does; each has a module of its own under `commands`.

mod checked;
pub mod ids;
pub mod jobs;
pub mod length;
pub mod nodes;
pub mod plans;
pub mod recover;
pub mod sessions;
mod words;

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use domain::ResourceKind;
use wire::limits::{
    GRANT_NONCES_MAX, HOLD_MS_MAX, HOLD_MS_MIN, LIST_ITEMS_MAX, MAX_IN_FLIGHT_MAX, NONCE_MAX,
};
use wire::nonces::{OnExpiry, Outcome, Resolution, Status};

use crate::config;
use length::milliseconds;

/// A scheduler for keyed work that two owners must never do twice: transaction nonces, jobs for worker nodes, distributed ids
#[derive(Debug, Parser)]
#[command(name = "fencepost", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon (by default with an embedded ledger, on 127.0.0.1:7070)
    Serve(Serve),
    /// Grant, settle and show nonces
    #[command(subcommand)]
    Nonce(Nonce),
    /// Issue and decode distributed ids; configure segments and sequences
    #[command(subcommand)]
    Id(ids::Id),
    /// Show leases
    #[command(subcommand)]
    Lease(Lease),
    /// Show the live instances
    #[command(subcommand)]
    Cluster(Cluster),
    /// Run a worker node that runs a command for each job: payload on stdin, result from stdout
    Node(jobs::Node),
    /// Submit a job, or many from a file; with --wait, print its result
    Submit(Box<jobs::Submit>),
    /// List, show, await, cancel, retry, dismiss, delete and follow jobs; one by one or in bulk
    #[command(subcommand)]
    Job(jobs::Job),
    /// Open, list, show and close sessions
    #[command(subcommand)]
    Session(sessions::Session),
    /// List, show, drain and explain worker nodes
    #[command(subcommand)]
    Nodes(nodes::Nodes),
    /// Show, set, pause and resume the pools of nodes
    #[command(subcommand)]
    Pool(nodes::Pool),
    /// Create, start, steer, show and await plans; resolve and retry their tasks
    #[command(subcommand)]
    Plan(plans::Plan),
    /// Show tenants, retry their tasks, break their locks
    #[command(subcommand)]
    Tenant(plans::Tenant),
    /// Show jobs, plans and tasks by state, and how fast jobs come and go
    Stats(Statistics),
    /// Follow jobs, nodes and instances on one screen; with --json, or where the output is no terminal, show them once
    Top(Top),
    /// Show what operators changed (scope admin)
    #[command(subcommand)]
    Audit(Audit),
    /// Make a token for the configuration
    #[command(subcommand)]
    Token(Token),
    /// Ask a daemon whether it is running
    Health(Health),
    /// Bring the ledger's tables up to this version and exit
    Migrate(Migrate),
    /// Copy the embedded ledger into a file, also while the daemon runs
    Backup(Backup),
    /// Take a ledger that went back in time (a restored backup) past all that it may have granted since
    Recover(recover::Recover),
    /// Print the configuration that `serve` would use (secrets hidden), or its errors and those of its files of TLS
    CheckConfig(CheckConfig),
    /// Print the script that completes commands and options in a shell
    #[command(after_help = "\
bash   source <(fencepost completions bash)            in ~/.bashrc
zsh    source <(fencepost completions zsh)             in ~/.zshrc, after compinit
fish   fencepost completions fish | source             in ~/.config/fish/config.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Where the configuration comes from.
#[derive(Args, Debug, Default)]
pub struct Configured {
    /// Configuration file (TOML) [default: none] [env: FENCEPOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port to listen on [default: 127.0.0.1:7070] [env: FENCEPOST_LISTEN]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// URL at which other instances and clients reach this instance [default: derived from --listen]
    #[arg(long, value_name = "URL")]
    pub advertise: Option<String>,
    /// sqlite:PATH or postgres://… [default: sqlite:./fencepost-data/ledger.db] [env: FENCEPOST_DATABASE_URL]
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// redis://… [default: a bus within the process] [env: FENCEPOST_REDIS_URL]
    #[arg(long, value_name = "URL")]
    pub redis_url: Option<String>,
    /// How requests find the owner of their key: basic or worker-queue. Sets the first value only; see `GET
    /// /v1/config/mode` [default: worker-queue]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// First part of the instance's id [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// If the ledger's tables are older than this version: auto brings them up to date, check refuses to start
    /// [default: auto]
    #[arg(long, value_name = "auto|check")]
    pub migrate: Option<String>,
}

impl Configured {
    /// The sources of the configuration, with these options on top.
    pub fn sources(self) -> config::Sources {
        let Self { config: file, listen, advertise, database_url, redis_url, mode, node_name, migrate } =
            self;
        let options =
            config::Options { listen, advertise, database_url, redis_url, mode, node_name, migrate };
        config::Sources::of_process(file, options)
    }
}

/// `fencepost serve`
#[derive(Args, Debug)]
pub struct Serve {
    #[command(flatten)]
    pub configured: Configured,
}

/// `fencepost check-config`
#[derive(Args, Debug)]
pub struct CheckConfig {
    #[command(flatten)]
    pub configured: Configured,
    /// Print JSON instead of TOML
    #[arg(long)]
    pub json: bool,
}

/// `fencepost migrate`
#[derive(Args, Debug)]
pub struct Migrate {
    /// Configuration file (TOML) [default: none] [env: FENCEPOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// sqlite:PATH or postgres://… [default: sqlite:./fencepost-data/ledger.db] [env: FENCEPOST_DATABASE_URL]
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    /// Change nothing; exit with 78 if the tables are older than this version
    #[arg(long)]
    pub check: bool,
}

/// `fencepost backup`
#[derive(Args, Debug)]
pub struct Backup {
    /// The file to make
    pub file: PathBuf,
    /// Configuration file (TOML) [default: none] [env: FENCEPOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// sqlite:PATH [default: sqlite:./fencepost-data/ledger.db] [env: FENCEPOST_DATABASE_URL]
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
}

/// Where a daemon listens unless it is configured otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// Which daemon to ask, and how to print.
#[derive(Args, Clone, Debug)]
pub struct Remote {
    /// Base URL of a daemon; repeat it (or put commas between) for more daemons, which the client tries in turn
    #[arg(
        long,
        value_name = "URL",
        env = "FENCEPOST_URL",
        value_delimiter = ',',
        default_value = DEFAULT_URL
    )]
    pub url: Vec<String>,
    #[command(flatten)]
    pub bearer: Bearer,
    #[command(flatten)]
    pub tls: Tls,
    /// Print JSON: one document, or for a list one line for each item
    #[arg(long)]
    pub json: bool,
}

/// The bearer token. Of the two options the last one counts, and the file before the variable.
#[derive(Args, Clone, Debug, Default)]
pub struct Bearer {
    /// Bearer token (prefer a file or the environment: process lists show options)
    #[arg(long, value_name = "TOKEN", env = "FENCEPOST_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File with the bearer token, in place of --token and FENCEPOST_TOKEN. A node reads it again for each connection
    #[arg(long, value_name = "FILE", overrides_with = "token")]
    pub token_file: Option<PathBuf>,
}

/// TLS for daemons at https://
#[derive(Args, Clone, Debug, Default)]
pub struct Tls {
    /// PEM file of the authorities to trust for https:// [default: the system's]
    #[arg(long, value_name = "FILE", env = "FENCEPOST_CA")]
    pub ca: Option<PathBuf>,
    /// PEM file of a certificate of one's own, where the daemon demands one
    #[arg(long, value_name = "FILE", env = "FENCEPOST_CERT", requires = "cert_key")]
    pub cert: Option<PathBuf>,
    /// PEM file of the key of --cert
    #[arg(long, value_name = "FILE", env = "FENCEPOST_CERT_KEY", requires = "cert")]
    pub cert_key: Option<PathBuf>,
}

/// Which daemon to ask, how to print, and whether to follow.
#[derive(Args, Clone, Debug)]
pub struct Shown {
    /// Follow what changes: show it again every second, until Ctrl-C or the end of what is shown
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub remote: Remote,
}

impl Bearer {
    /// The token, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or is empty.
    pub fn read(&self) -> client::Result<Option<String>> {
        match &self.token_file {
            Some(file) => client::token_in(file).map(Some),
            None => Ok(self.token.clone().filter(|token| !token.is_empty())),
        }
    }
}

impl Tls {
    /// The same for the client library.
    pub fn options(self) -> client::TlsOptions {
        let pair = self.cert.zip(self.cert_key);
        let pair = pair.map(|(certificate, key)| client::tls::Pair { certificate, key });
        client::TlsOptions { ca_file: self.ca, pair }
    }
}

/// A page of a list.
#[derive(Args, Clone, Debug)]
pub struct Paged {
    /// Number of items, at most [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(LIST_ITEMS_MAX)))]
    pub limit: Option<u32>,
    /// Where to continue: the cursor that the page before printed
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<String>,
}

/// `fencepost nonce …`
#[derive(Debug, Subcommand)]
pub enum Nonce {
    /// Grant nonces of a signer, the lowest hole first
    Grant {
        /// The signer, such as eip155:1:0xab…
        signer: String,
        /// Number of nonces [default: 1]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=GRANT_NONCES_MAX))]
        count: Option<u64>,
        /// Length of each hold, in milliseconds or such as 60s [default: from the signer's policy]
        #[arg(long, value_name = "MS", value_parser = milliseconds(HOLD_MS_MIN..=HOLD_MS_MAX))]
        hold_ms: Option<u64>,
        /// Idempotency key: the same request under the same key gets the same nonces
        #[arg(long, value_name = "KEY", value_parser = checked::key)]
        key: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Settle a granted nonce
    Settle {
        /// The signer
        signer: String,
        /// The nonce
        #[arg(value_parser = nonce())]
        nonce: u64,
        /// The hold's id, from the grant
        #[arg(long, value_name = "HOLD")]
        hold: String,
        /// The outcome
        #[arg(long, value_parser = words(Outcome::ALL, Outcome::as_str))]
        outcome: Outcome,
        /// The transaction that used it (with --outcome consumed)
        #[arg(long, value_name = "HASH")]
        tx_hash: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show a signer, or one of its nonces
    Show {
        /// The signer
        signer: String,
        /// The nonce [default: show the signer: counts, owner, policy]
        #[arg(value_parser = nonce())]
        nonce: Option<u64>,
        #[command(flatten)]
        shown: Shown,
    },
    /// List signers, or the nonces of one
    List {
        /// The signer [default: list the signers]
        signer: Option<String>,
        /// Only nonces in this state
        #[arg(long, requires = "signer", ignore_case = true, value_parser = words(Status::ALL, Status::as_str))]
        status: Option<Status>,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Change a signer's policy (scope admin); options that are not given keep their values
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
    Policy {
        /// The signer
        signer: String,
        /// The first nonce; only before the first grant
        #[arg(long, value_name = "NONCE", group = "change", value_parser = nonce())]
        first_nonce: Option<u64>,
        /// Length of a hold when the request sets none, in milliseconds or such as 60s
        #[arg(long, value_name = "MS", group = "change", value_parser = milliseconds(HOLD_MS_MIN..=HOLD_MS_MAX))]
        hold_ms: Option<u64>,
        /// What happens to a nonce when its hold expires
        #[arg(long, group = "change", value_parser = words(OnExpiry::ALL, OnExpiry::as_str))]
        on_expiry: Option<OnExpiry>,
        /// The largest number of nonces held or quarantined at once, or `none`
        #[arg(long, value_name = "N|none", group = "change", value_parser = window)]
        max_in_flight: Option<Window>,
        /// Whether an idempotency key is one key for all tokens; otherwise each token has its own
        #[arg(long, value_name = "true|false", group = "change")]
        shared_keys: Option<bool>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Decide about a quarantined nonce (scope admin)
    Resolve {
        /// The signer
        signer: String,
        /// The nonce
        #[arg(value_parser = nonce())]
        nonce: u64,
        /// The outcome
        #[arg(long, value_parser = words(Resolution::ALL, Resolution::as_str))]
        outcome: Resolution,
        /// Only decide if this is still the nonce's last hold
        #[arg(long)]
        hold: Option<String>,
        /// The transaction that used it (with --outcome consumed)
        #[arg(long, value_name = "HASH")]
        tx_hash: Option<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Confirm a signer's next nonce, or those of many, after the ledger was recovered (scope admin)
    Confirm {
        /// The signer
        #[arg(required_unless_present = "file")]
        signer: Option<String>,
        /// The nonce of the account's next transaction: above pending ones, and above all nonces that senders had
        #[arg(required_unless_present = "file", value_parser = nonce())]
        next_nonce: Option<u64>,
        /// Confirm the signers of this file, each on a line `SIGNER NONCE`; `-` reads standard input. To repeat it is harmless
        #[arg(short, long, value_name = "FILE", conflicts_with_all = ["signer", "next_nonce"])]
        file: Option<PathBuf>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
}

/// `fencepost lease …`
#[derive(Debug, Subcommand)]
pub enum Lease {
    /// List leases
    List {
        /// Only leases of this kind
        #[arg(long, value_parser = words(ResourceKind::ALL, ResourceKind::as_str))]
        kind: Option<ResourceKind>,
        /// Only leases of this instance
        #[arg(long, value_name = "INSTANCE")]
        owner: Option<String>,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show one lease
    Show {
        /// The resource, such as signer:eip155:1:0xab…
        resource: String,
        #[command(flatten)]
        shown: Shown,
    },
}

/// `fencepost cluster …`
#[derive(Debug, Subcommand)]
pub enum Cluster {
    /// Show the live instances
    Show {
        #[command(flatten)]
        shown: Shown,
    },
}

/// `fencepost stats`
#[derive(Args, Debug)]
pub struct Statistics {
    #[command(flatten)]
    pub shown: Shown,
}

/// `fencepost top`
#[derive(Args, Debug)]
pub struct Top {
    #[command(flatten)]
    pub remote: Remote,
}

/// `fencepost audit`
#[derive(Debug, Subcommand)]
pub enum Audit {
    /// List changes, the newest first (scope admin)
    List {
        /// Only by this token's name
        #[arg(long, value_name = "NAME")]
        principal: Option<String>,
        /// Only this action, such as set_policy
        #[arg(long)]
        action: Option<String>,
        /// Only about this, such as signer:eip155:1:0xab
        #[arg(long)]
        subject: Option<String>,
        /// Only from this time on, such as 2026-11-24T00:00:00Z
        #[arg(long, value_name = "TIME", value_parser = checked::time)]
        since: Option<String>,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
}

/// `fencepost token`
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Print a new secret, which is for the caller, and its entry for the configuration of the daemon
    New {
        /// The caller's name, for the log and the audit
        #[arg(value_parser = config::token_name)]
        name: String,
        /// What the caller may do: read, submit, node or admin [default: submit]
        #[arg(long = "scope", value_name = "SCOPE", value_parser = PossibleValuesParser::new(config::SCOPES))]
        scopes: Vec<String>,
        /// Tenants that the caller sees, with * for any characters [default: all]
        #[arg(long = "tenant", value_name = "PATTERN", value_parser = pattern)]
        tenants: Vec<String>,
        /// Signers that the caller sees [default: all]
        #[arg(long = "signer", value_name = "PATTERN", value_parser = pattern)]
        signers: Vec<String>,
        /// Pools that the caller sees [default: all]
        #[arg(long = "pool", value_name = "PATTERN", value_parser = pattern)]
        pools: Vec<String>,
        /// Nodes that the caller sees, and may connect [default: all]
        #[arg(long = "node", value_name = "PATTERN", value_parser = pattern)]
        nodes: Vec<String>,
        /// When it expires, such as 2027-01-31T00:00:00Z [default: never]
        #[arg(long, value_name = "TIME")]
        expires_at: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn pattern(text: &str) -> Result<String, domain::Invalid> {
    domain::Pattern::parse(text).map(|_| text.to_owned())
}

/// `fencepost health`
#[derive(Args, Debug)]
pub struct Health {
    /// Ask whether the daemon can serve, including its ledger, and not only whether its process runs
    #[arg(long)]
    pub ready: bool,
    #[command(flatten)]
    pub remote: Remote,
}

/// A window, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(pub Option<u64>);

fn window(text: &str) -> Result<Window, String> {
    match text {
        "none" => Ok(Window(None)),
        number => number
            .parse()
            .ok()
            .filter(|number| (1..=MAX_IN_FLIGHT_MAX).contains(number))
            .map(|number| Window(Some(number)))
            .ok_or_else(|| format!("1 to {MAX_IN_FLIGHT_MAX}, or none")),
    }
}

fn nonce() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(0..=NONCE_MAX)
}

/// One of a fixed set of names.
fn words<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|word| name(*word)))
        .try_map(move |text| named(all, name, &text).ok_or("unknown name"))
}

/// The one of this name, in whatever case.
fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, text: &str) -> Option<T> {
    all.iter().copied().find(|word| name(*word).eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests;
