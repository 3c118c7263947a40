//! What the URL of a PostgreSQL database says: how its server is reached, which database it is, and which files of TLS are read.

use std::borrow::Cow;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::{Url, form_urlencoded};

use crate::{Error, Result, TlsFile, TlsFiles};

/// The parameters that the driver takes in a URL, as its `PgConnectOptions::parse_from_url` lists them; and `options[NAME]`.
const PARAMETERS: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];
/// Parameters of PostgreSQL's own client library, which providers write into their URLs. The driver does not know them.
const OF_LIBPQ: [&str; 26] = [
    "channel_binding",
    "client_encoding",
    "connect_timeout",
    "fallback_application_name",
    "gssdelegation",
    "gssencmode",
    "gsslib",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "krbsrvname",
    "load_balance_hosts",
    "max_protocol_version",
    "min_protocol_version",
    "require_auth",
    "requirepeer",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcertmode",
    "sslcompression",
    "sslcrl",
    "sslnegotiation",
    "sslsni",
    "target_session_attrs",
    "tcp_user_timeout",
];
/// What each session gets another value of in any case, from the driver or from Fencepost: it is all the same whether a pooler
/// drops it.
const OF_EACH_SESSION: [&str; 11] = [
    "application_name",
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "default_transaction_isolation",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "jit",
    "lock_timeout",
    "statement_timeout",
    "transaction_timeout",
];
/// The folders in which the driver looks for a server's socket if no host is named.
const SOCKET_FOLDERS: [&str; 3] = ["/var/run/postgresql", "/private/tmp", "/tmp"];
/// The host that the driver takes if none of them has one.
const WITHOUT_SOCKET: &str = "localhost";

pub(super) fn connect_options(url: &str) -> Result<PgConnectOptions> {
    let address = |e: sqlx::Error| Error::Address(format!("the database URL cannot be used: {e}"));
    if let Some(wrong) = wrong_parameter(url) {
        return Err(Error::Address(format!("the database URL cannot be used: {wrong}")));
    }
    // Poolers refuse `extra_float_digits` unless they are configured to ignore it; the default of the server is as good.
    let options = PgConnectOptions::from_str(&known_part(url)).map_err(address)?;
    if options.get_host().contains(',') {
        return Err(Error::Address(
            "the database URL cannot be used: it names several hosts, of which the driver takes none; name a proxy, or a name \
             that leads to the primary"
                .to_owned(),
        ));
    }
    Ok(options.extra_float_digits(None).disable_statement_logging())
}

/// A URL without what the driver does not know, which it would log with its value.
fn known_part(url: &str) -> Cow<'_, str> {
    if unused_parameters(url).is_empty() {
        return Cow::Borrowed(url);
    }
    let Some((address, query)) = url.split_once('?') else { return Cow::Borrowed(url) };
    let is_known = |pair: &&str| {
        form_urlencoded::parse(pair.as_bytes()).all(|(name, _)| !OF_LIBPQ.contains(&name.as_ref()))
    };
    let known: Vec<_> = query.split('&').filter(is_known).collect();
    Cow::Owned(format!("{address}?{}", known.join("&")))
}

/// The parameters of a URL that are PostgreSQL's own client library's, and have no effect here.
pub(crate) fn unused_parameters(url: &str) -> Vec<String> {
    let Ok(url) = Url::parse(url) else { return Vec::new() };
    let names = url.query_pairs().map(|(name, _)| name.into_owned());
    names.filter(|name| OF_LIBPQ.contains(&name.as_str())).collect()
}

/// What is wrong with a parameter of a URL: one that the driver would log with its value and ignore, or a mode of TLS that there
/// is not. It quotes no value of the former, and no name where a password that is not escaped may have been cut in two.
fn wrong_parameter(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let query = url.query().unwrap_or_default();
    let is_torn = url.fragment().is_some()
        || query.contains('@')
        || query.split('&').any(|pair| !pair.is_empty() && !pair.contains('='));
    let known = || format!("known: {}, options[NAME]", PARAMETERS.join(", "));
    let mut is_behind_password = false;
    url.query_pairs().find_map(|(name, value)| {
        let was_behind_password = is_behind_password;
        is_behind_password |= name == "password";
        match &*name {
            "sslmode" | "ssl-mode" if PgSslMode::from_str(&value).is_err() => Some(format!(
                "its {name} is {value:?}, and must be disable, allow, prefer, require, verify-ca or verify-full"
            )),
            name if is_known(name) || OF_LIBPQ.contains(&name) => None,
            _ if is_torn => Some(
                "behind its ? is what is no NAME=VALUE; percent-encode @ : / ? # & and = in a password"
                    .to_owned(),
            ),
            _ if was_behind_password => Some(format!(
                "a parameter behind its password is unknown (percent-encode & and = in a password); {}",
                known()
            )),
            name => Some(format!("its parameter {name:?} is unknown; {}", known())),
        }
    })
}

/// Whether the driver takes a parameter of this name.
fn is_known(name: &str) -> bool {
    PARAMETERS.contains(&name) || name.starts_with("options[") && name.ends_with(']')
}

/// The settings that sessions are to have by the options of the URL and by `PGOPTIONS`, each with its last value. Those that each
/// session gets another value of are left out.
pub(super) fn session_settings(connect: &PgConnectOptions) -> Vec<(String, String)> {
    let mut words = words_of(connect.get_options().unwrap_or_default()).into_iter();
    let mut settings = Vec::<(String, String)>::new();
    while let Some(word) = words.next() {
        let setting = match word.strip_prefix("--").or_else(|| word.strip_prefix("-c")) {
            Some("") => words.next().unwrap_or_default(),
            Some(setting) => setting.to_owned(),
            None => continue,
        };
        let Some((name, value)) = setting.split_once('=') else { continue };
        let name = name.replace('-', "_");
        settings.retain(|(earlier, _)| !earlier.eq_ignore_ascii_case(&name));
        if !OF_EACH_SESSION.iter().any(|other| other.eq_ignore_ascii_case(&name)) {
            settings.push((name, value.to_owned()));
        }
    }
    settings
}

/// The words of options, as the server splits them: at blanks that have no backslash before them.
fn words_of(options: &str) -> Vec<String> {
    let (mut words, mut is_escaped) = (vec![String::new()], false);
    for letter in options.chars() {
        let word = words.last_mut().expect("there is one at least");
        match letter {
            '\\' if !is_escaped => is_escaped = true,
            _ if letter.is_ascii_whitespace() && !is_escaped => words.push(String::new()),
            _ => {
                word.push(letter);
                is_escaped = false;
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a server is on this machine, or is reached by TLS that verifies it. What the URL leaves open, the environment
/// of PostgreSQL's own clients decides (`PGHOST`, `PGSSLMODE`), as for the connection itself.
pub(crate) fn is_private(url: &str) -> Result<bool> {
    let options = connect_options(url)?;
    let host = options.get_host();
    let is_here = options.get_socket().is_some()
        || host.starts_with('/')
        || host.eq_ignore_ascii_case("localhost")
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|at| at.to_canonical().is_loopback());
    Ok(is_here || matches!(options.get_ssl_mode(), PgSslMode::VerifyFull))
}

/// The files that the driver reads for a connection by this URL.
pub(crate) fn tls_files(url: &str) -> Result<TlsFiles> {
    let mode = connect_options(url)?.get_ssl_mode();
    let url = Url::parse(url).map_err(|e| Error::Address(format!("the database URL cannot be used: {e}")))?;
    let named = |parameters: &[&str], variable: &str| {
        let of_url = url.query_pairs().filter(|(name, _)| parameters.contains(&name.as_ref())).last();
        if let Some((name, file)) = of_url {
            let file = Some(PathBuf::from(file.into_owned()));
            return Some(TlsFile { named_by: name.into_owned(), file });
        }
        let text = std::env::var(variable).ok()?;
        let file = (!is_pem(&text)).then(|| PathBuf::from(text));
        Some(TlsFile { named_by: variable.to_owned(), file })
    };
    let (is_encrypted, is_verified) = match mode {
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => (false, false),
        PgSslMode::Require => (true, false),
        PgSslMode::VerifyCa | PgSslMode::VerifyFull => (true, true),
    };
    let read = |is_read: bool, file| if is_read { file } else { None };
    let authorities = named(&["sslrootcert", "ssl-root-cert", "ssl-ca"], "PGSSLROOTCERT");
    let is_without_use = is_encrypted && !is_verified;
    Ok(TlsFiles {
        authorities: read(is_verified, authorities.clone()),
        unread_authorities: read(is_without_use, authorities),
        certificate: read(is_encrypted, named(&["sslcert", "ssl-cert"], "PGSSLCERT")),
        key: read(is_encrypted, named(&["sslkey", "ssl-key"], "PGSSLKEY")),
    })
}

/// Whether the driver takes the value of a variable for the text of a file, and for no file's name.
fn is_pem(value: &str) -> bool {
    let text = value.trim();
    text.starts_with("-----BEGIN") && text.ends_with("-----")
}

/// Where the database is. The role and its settings may decide the schema. What the URL leaves open, the environment decides.
pub(crate) fn address(url: &str) -> Result<String> {
    Ok(address_of(&connect_options(url)?))
}

fn address_of(options: &PgConnectOptions) -> String {
    let server = (named_host(options), options.get_port(), options.get_socket());
    let schema = (options.get_database(), options.get_username(), options.get_options());
    format!("postgres {server:?} {schema:?}")
}

/// The host, as an address has it: the same whether the server runs or not. Where neither the URL nor the environment names
/// one, the driver looks for a socket, which a server that is stopped does not have. It does so for a URL with a socket, too,
/// and then uses that one.
fn named_host(options: &PgConnectOptions) -> Option<&str> {
    let host = options.get_host();
    match options.get_socket() {
        Some(_) => None,
        None if SOCKET_FOLDERS.contains(&host) => Some(WITHOUT_SOCKET),
        None => Some(host),
    }
}

#[cfg(test)]
mod tests;
