//! The layers: file, environment, options. Each is read, checked against the known keys and the
//! ranges, and laid over the one before it.
//!
//! What must never live here: relations between values; they are checked once all layers lie on each
//! other, in `check`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use figment::providers::{Format, Serialized, Toml};
use figment::{Figment, Provider};
use serde_json::{Map, Value};
use url::Url;

use super::check::{check, fits_alone};
use super::problem::{Problem, Refused, allowed};
use super::{AuthToken, Config, Loaded, redact};

/// Variables with a short name of their own.
const SHORT_VARIABLES: [(&str, &str); 3] = [
    ("FENCEPOST_LISTEN", "server.listen"),
    ("FENCEPOST_DATABASE_URL", "ledger.url"),
    ("FENCEPOST_REDIS_URL", "bus.redis_url"),
];
/// Names the file where `--config` does not.
const FILE_VARIABLE: &str = "FENCEPOST_CONFIG";
/// The rest: `FENCEPOST__SECTION__KEY`.
const LONG_PREFIX: &str = "FENCEPOST__";
/// What all names of ours begin with.
const PREFIX: &str = "FENCEPOST_";
/// Variables of the client commands, and those that `fencepost node` gives to its commands.
const OTHER_VARIABLES: [&str; 12] = [
    "FENCEPOST_URL",
    "FENCEPOST_TOKEN",
    "FENCEPOST_CA",
    "FENCEPOST_CERT",
    "FENCEPOST_CERT_KEY",
    "FENCEPOST_JOB",
    "FENCEPOST_ATTEMPT",
    "FENCEPOST_SESSION",
    "FENCEPOST_KIND",
    "FENCEPOST_METADATA",
    "FENCEPOST_TRACEPARENT",
    "FENCEPOST_RETRY_OF",
];
/// The customary name for a filter of logs; `FENCEPOST__LOG__FILTER` beats it.
const RUST_LOG: &str = "RUST_LOG";

/// The options of the command line. With `None`, the layers below decide.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub listen: Option<String>,
    pub advertise: Option<String>,
    pub database_url: Option<String>,
    pub redis_url: Option<String>,
    pub mode: Option<String>,
    pub node_name: Option<String>,
    pub migrate: Option<String>,
}

impl Options {
    fn entries(&self) -> impl Iterator<Item = (&'static str, &'static str, &String)> {
        [
            ("--listen", "server.listen", &self.listen),
            ("--advertise", "server.advertise", &self.advertise),
            ("--database-url", "ledger.url", &self.database_url),
            ("--redis-url", "bus.redis_url", &self.redis_url),
            ("--mode", "mode", &self.mode),
            ("--node-name", "server.node_name", &self.node_name),
            ("--migrate", "ledger.migrate", &self.migrate),
        ]
        .into_iter()
        .filter_map(|(option, key, value)| value.as_ref().map(|value| (option, key, value)))
    }
}

/// Where a configuration comes from. The environment is handed in, so that tests need not touch the
/// process's own.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file that `--config` names.
    pub file: Option<PathBuf>,
    /// The environment; only names of Fencepost's and `RUST_LOG` are looked at.
    pub environment: Vec<(OsString, OsString)>,
    /// The command line.
    pub options: Options,
}

impl Sources {
    /// The process's own environment under these options.
    pub fn of_process(file: Option<PathBuf>, options: Options) -> Self {
        Self { file, environment: std::env::vars_os().collect(), options }
    }

    /// Reads, lays over each other and checks.
    ///
    /// # Errors
    /// [`Refused`], with everything that is wrong.
    pub fn load(&self) -> Result<Loaded, Refused> {
        self.load_for(true)
    }

    /// The same for a command that does not listen: it ignores an address that `serve` would refuse.
    ///
    /// # Errors
    /// As [`Sources::load`].
    pub fn load_without_listening(&self) -> Result<Loaded, Refused> {
        self.load_for(false)
    }

    fn load_for(&self, listening: bool) -> Result<Loaded, Refused> {
        let mut stack = Stack::default();
        let mut problems = Vec::new();
        let environment = self.variables(&mut problems);
        let file = self.file.clone().or_else(|| {
            environment.iter().find(|(name, _)| name == FILE_VARIABLE).map(|(_, path)| PathBuf::from(path))
        });
        if let Some(path) = &file {
            stack.file(path, &mut problems);
        }
        let of_file = |key: &str| stack.values.get(key).cloned();
        let (ledger_of_file, tokens_of_file) = (of_file("ledger.url"), of_file("auth.tokens"));
        stack.environment(&environment, &mut problems);
        for (option, key, value) in self.options.entries() {
            stack.set(key, Value::from(value.as_str()), option, &mut problems);
        }
        if !problems.is_empty() {
            return Err(Refused(problems));
        }
        let config = stack.config()?;
        let is_by_variable = stack.origins.get("ledger.url").is_some_and(|origin| origin.starts_with(PREFIX));
        let overridden_ledger = ledger_of_file
            .and_then(|url| url.as_str().map(str::to_owned))
            .filter(|url| is_by_variable && !name_one_ledger(url, &config.ledger.url));
        let overridden_tokens = tokens_of_file.is_some_and(|of_file| {
            of_file.as_array().is_some_and(|list| !list.is_empty())
                && stack.values.get("auth.tokens") != Some(&of_file)
        });
        let loaded = Loaded { config, file, origins: stack.origins, overridden_ledger, overridden_tokens };
        let problems = check(&loaded, listening);
        if problems.is_empty() { Ok(loaded) } else { Err(Refused(problems)) }
    }

    /// The variables that are set and not empty, readable ones only. (Compose files and unit files
    /// hand over empty variables for what nobody set.)
    fn variables(&self, problems: &mut Vec<Problem>) -> Vec<(String, String)> {
        let mut variables = Vec::new();
        for (name, value) in &self.environment {
            let Some(name) = name.to_str() else { continue };
            if is_unknown(name, value) && !value.is_empty() {
                problems.push(Problem::new(name, None, None, known_variables()));
                continue;
            }
            if !is_read(name) || value.is_empty() {
                continue;
            }
            match value.to_str() {
                Some(value) => variables.push((name.to_owned(), value.to_owned())),
                None => problems.push(Problem::new(name, None, None, "UTF-8 text")),
            }
        }
        variables.sort();
        variables
    }
}

/// Whether two URLs name one ledger: one database of one PostgreSQL, whatever role and password each has, or one text.
fn name_one_ledger(one: &str, other: &str) -> bool {
    one == other || database(one).is_some_and(|of_one| database(other) == Some(of_one))
}

/// The server and the database that a PostgreSQL URL names.
fn database(url: &str) -> Option<String> {
    let mut url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "postgres" | "postgresql"))?;
    // Stands for the role that the URL or the environment names.
    url.query_pairs_mut().append_pair("user", "anybody");
    ledger::address(url.as_str()).ok()
}

/// Whether the daemon reads a variable of this name.
fn is_read(name: &str) -> bool {
    name.starts_with(LONG_PREFIX)
        || name == FILE_VARIABLE
        || name == RUST_LOG
        || SHORT_VARIABLES.iter().any(|(short, _)| *short == name)
}

/// Whether a variable has a name of ours that nothing reads: a slip of the pen, which would pass unnoticed.
fn is_unknown(name: &str, value: &OsStr) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    !is_read(name) && !OTHER_VARIABLES.contains(&name) && !is_of_orchestrator(rest, value)
}

/// Whether an orchestrator has put the variable into the environment of every container beside a service that is called
/// `fencepost`, or `fencepost-…`: `FENCEPOST_SERVICE_HOST`, `FENCEPOST_PORT=tcp://…`, `FENCEPOST_PORT_7070_TCP_ADDR`.
fn is_of_orchestrator(rest: &str, value: &OsStr) -> bool {
    let rest = format!("_{rest}");
    let is_port_number =
        |(_, behind): (&str, &str)| behind.split('_').next().is_some_and(|port| port.parse::<u16>().is_ok());
    rest.ends_with("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.split_once("_PORT_").is_some_and(is_port_number)
        || rest.ends_with("_PORT") && value.to_str().is_some_and(|value| value.contains("://"))
}

/// The names that the daemon reads.
fn known_variables() -> String {
    let short: Vec<_> = SHORT_VARIABLES.iter().map(|(name, _)| *name).collect();
    format!("{FILE_VARIABLE}, {}, and {LONG_PREFIX}SECTION__KEY for every key of the file", short.join(", "))
}

/// The problem with two variables that give one key different values.
fn in_conflict(key: &str, one: &str, other: &str) -> Problem {
    Problem::refused(key, Some(&format!("{one} and {other}")), "variables that set it must agree")
}

/// Layers laid over each other.
#[derive(Default)]
struct Stack {
    values: BTreeMap<String, Value>,
    origins: BTreeMap<String, String>,
}

impl Stack {
    /// Lays one value over what is there, if key, type and range allow, and refuses a wrong text that it covers.
    fn set(&mut self, key: &str, value: Value, origin: &str, problems: &mut Vec<Problem>) {
        let known = known_keys();
        let Some(default) = known.get(key) else {
            problems.push(unknown_key(key, &value, origin, &known));
            return;
        };
        let fits = match default {
            Value::Number(_) => value.as_u64().is_some_and(|number| {
                super::limits::range_of(key).is_none_or(|r| (r.min..=r.max).contains(&number))
            }),
            Value::String(_) => value.is_string(),
            Value::Array(_) => value.is_array(),
            Value::Bool(_) => value.is_boolean(),
            _ => true,
        };
        if !fits {
            problems.push(Problem::new(key, Some(redact::value(key, &value)), Some(origin), allowed(key)));
            return;
        }
        let is_same = self.values.get(key) == Some(&value);
        let beneath = self.values.insert(key.to_owned(), value);
        let beneath_origin = self.origins.insert(key.to_owned(), origin.to_owned());
        // What counts in the end is checked with all else.
        if let Some(Value::String(text)) = beneath
            && !is_same
            && !fits_alone(key, &text)
        {
            let shown = redact::value(key, &Value::String(text));
            problems.push(Problem::new(key, Some(shown), beneath_origin.as_deref(), allowed(key)));
        }
    }

    fn file(&mut self, path: &Path, problems: &mut Vec<Problem>) {
        let shown = path.display().to_string();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                problems.push(Problem::of_file(&shown, format!("cannot be read: {error}")));
                return;
            }
        };
        match toml(&text) {
            Ok(layer) => {
                let known = known_keys();
                // A section without a key, as where all its lines are comments, sets nothing.
                let is_empty = |key: &str, value: &Value| value.is_object() && is_section(key, &known);
                for (key, value) in leaves(&layer).into_iter().filter(|(key, value)| !is_empty(key, value)) {
                    self.set(&key, value, &shown, problems);
                }
            }
            Err(message) => {
                let problem = number_too_large(&text, &message, &shown);
                problems.push(problem.unwrap_or_else(|| Problem::of_file(&shown, message)));
            }
        }
    }

    fn environment(&mut self, variables: &[(String, String)], problems: &mut Vec<Problem>) {
        let named = |wanted: &str| variables.iter().find(|(name, _)| name == wanted);
        if let Some((name, filter)) = named(RUST_LOG) {
            self.set("log.filter", Value::from(filter.as_str()), name, problems);
        }
        let mut names = BTreeMap::new();
        for (name, text) in variables {
            let Some(path) = name.strip_prefix(LONG_PREFIX) else { continue };
            let key = path.to_ascii_lowercase().replace("__", ".");
            if let Some((other, _)) =
                names.insert(key.clone(), (name, text)).filter(|(_, said)| *said != text)
            {
                problems.push(in_conflict(&key, other, name));
                continue;
            }
            let value = match known_keys().get(&key) {
                Some(Value::Number(_)) => {
                    text.parse::<u64>().map_or_else(|_| Value::from(text.as_str()), Value::from)
                }
                Some(Value::Array(_)) => match tokens(text) {
                    Ok(tokens) => tokens,
                    Err(why) => {
                        let what = format!("{key}: {why}");
                        problems.push(Problem::new(&what, None, Some(name.as_str()), allowed(&key)));
                        continue;
                    }
                },
                Some(Value::Bool(_)) => {
                    text.parse::<bool>().map_or_else(|_| Value::from(text.as_str()), Value::from)
                }
                _ => Value::from(text.as_str()),
            };
            self.set(&key, value, name, problems);
        }
        for (short, key) in SHORT_VARIABLES {
            if let Some((name, value)) = named(short) {
                if let Some((other, _)) = names.get(key).filter(|(_, said)| *said != value) {
                    problems.push(in_conflict(key, other, name));
                }
                self.set(key, Value::from(value.as_str()), name, problems);
            }
        }
    }

    /// The values over the defaults. Only the inside of `auth.tokens` can still be of a wrong shape.
    fn config(&self) -> Result<Config, Refused> {
        let mut figment = Figment::from(Serialized::defaults(Config::default()));
        for (key, value) in &self.values {
            figment = figment.merge(Serialized::default(key, value));
        }
        figment.extract().map_err(|error| {
            Refused(
                error
                    .into_iter()
                    .map(|error| {
                        let key = place(&error.path);
                        let key = if key.is_empty() { "auth.tokens".to_owned() } else { key };
                        let top = if key.starts_with("auth") { "auth.tokens" } else { &key };
                        let what = match error.kind {
                            figment::error::Kind::UnknownField(field, _) => {
                                format!("{key} has the unknown key {field}")
                            }
                            figment::error::Kind::MissingField(field) => format!("{key}.{field} is missing"),
                            _ => key.clone(),
                        };
                        Problem::new(&what, None, self.origins.get(top).map(String::as_str), allowed(top))
                    })
                    .collect(),
            )
        })
    }
}

/// The name of what lies there, as `check` names it: `auth.tokens[0].scopes`.
fn place(path: &[String]) -> String {
    let part = |(at, part): (usize, &String)| match part.parse::<usize>() {
        Ok(_) => format!("[{part}]"),
        Err(_) if at == 0 => part.clone(),
        Err(_) => format!(".{part}"),
    };
    path.iter().enumerate().map(part).collect()
}

/// Every key there is, as `section.key`, with its default.
pub(super) fn known_keys() -> BTreeMap<String, Value> {
    let defaults = serde_json::to_value(Config::default()).expect("a configuration is plain data");
    leaves(&defaults).into_iter().collect()
}

/// The keys whose values are not the same, as `section.key`.
pub fn changed_keys(before: &Config, after: &Config) -> Vec<String> {
    let values =
        |config: &Config| leaves(&serde_json::to_value(config).expect("a configuration is plain data"));
    let both = values(before).into_iter().zip(values(after));
    both.filter(|(before, after)| before != after).map(|((key, _), _)| key).collect()
}

/// Whether there are keys in a section of this name.
fn is_section(name: &str, known: &BTreeMap<String, Value>) -> bool {
    known.keys().any(|key| key.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The keys in a section, without its name.
fn keys_of<'a>(section: &str, known: &'a BTreeMap<String, Value>) -> Vec<&'a str> {
    known.keys().filter_map(|key| key.strip_prefix(section)?.strip_prefix('.')).collect()
}

/// `section.key` and value of everything in a layer, top-level keys and empty sections by their name alone.
fn leaves(layer: &Value) -> Vec<(String, Value)> {
    let empty = Map::new();
    let mut found = Vec::new();
    for (name, value) in layer.as_object().unwrap_or(&empty) {
        match value {
            Value::Object(section) if !section.is_empty() => {
                found.extend(section.iter().map(|(key, value)| (format!("{name}.{key}"), value.clone())));
            }
            plain => found.push((name.clone(), plain.clone())),
        }
    }
    found
}

/// Reads TOML. The message leaves out the lines that the parser quotes: one may hold a password.
fn toml(text: &str) -> Result<Value, String> {
    let quoted = |line: &str| {
        line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|')
    };
    Toml::string(text)
        .data()
        .map_err(|error| {
            let message = error.to_string();
            message.lines().filter(|line| !quoted(line)).collect::<Vec<_>>().join(": ")
        })
        .and_then(|mut profiles| {
            let dict = profiles.remove(&figment::Profile::Default).unwrap_or_default();
            serde_json::to_value(dict).map_err(|error| error.to_string())
        })
}

/// What is wrong with a whole number that is too large for TOML, which its parser refuses by its line alone. `None` for any
/// other error of the parser.
fn number_too_large(text: &str, message: &str, origin: &str) -> Option<Problem> {
    let number: usize = message.split_once(" at line ")?.1.split(',').next()?.parse().ok()?;
    let before: Vec<&str> = text.lines().take(number).map(str::trim).collect();
    let (name, value) = before.last()?.split_once('=')?;
    let value = value.split('#').next()?.trim().replace('_', "");
    let digits = value.strip_prefix(['+', '-']).unwrap_or(&value);
    let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_whole || value.parse::<i64>().is_ok() {
        return None;
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-. ".contains(c);
    let section = before.iter().rev().find_map(|line| Some(line.strip_prefix('[')?.split_once(']')?.0));
    let key = match section.filter(|section| section.chars().all(is_name)) {
        Some(section) => format!("{}.{}", section.trim(), name.trim()),
        None => name.trim().to_owned(),
    };
    known_keys().get(&key)?;
    let shown = redact::value(&key, &Value::from(value.as_str()));
    Some(Problem::new(&key, Some(shown.trim_matches('"').to_owned()), Some(origin), allowed(&key)))
}

/// The tokens in a variable, as JSON or TOML, or why they cannot be read. The reason quotes only names of keys: the text may
/// hold a secret.
fn tokens(text: &str) -> Result<Value, String> {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => match serde_json::from_str::<Vec<AuthToken>>(text) {
            // What reads well as a value has a key twice, of which a value keeps the last.
            Err(error) if serde_json::from_value::<Vec<AuthToken>>(value.clone()).is_ok() => {
                Err(error.to_string())
            }
            _ => Ok(value),
        },
        Err(of_json) => {
            let of_toml = match toml(&format!("tokens = {text}")) {
                Ok(layer) => return Ok(layer["tokens"].clone()),
                Err(message) => message,
            };
            // Its place is that in another text.
            let of_toml = of_toml.split_once(": ").map_or(of_toml.as_str(), |(_, what)| what);
            Err(format!("neither JSON ({of_json}) nor TOML ({of_toml})"))
        }
    }
}

fn unknown_key(key: &str, value: &Value, origin: &str, known: &BTreeMap<String, Value>) -> Problem {
    if is_section(key, known) {
        let keys = keys_of(key, known).join(", ");
        let allowed = format!("the section [{key}], whose keys are set one by one: {keys}");
        return Problem::new(key, redact::unknown(key, value), Some(origin), allowed);
    }
    let (place, beside): (_, Vec<&str>) = match key.split_once('.') {
        Some((section, _)) if is_section(section, known) => {
            (format!("known in [{section}]: "), keys_of(section, known))
        }
        _ => {
            let mut tops: Vec<&str> = known.keys().map(|k| k.split('.').next().unwrap_or(k)).collect();
            tops.dedup();
            ("known: ".to_owned(), tops)
        }
    };
    Problem::unknown(key, redact::unknown(key, value), origin, format!("{place}{}", beside.join(", ")))
}
