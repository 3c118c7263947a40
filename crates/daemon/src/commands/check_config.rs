//! `fencepost check-config`: the configuration that `serve` would use, or its errors and those of the files that a start reads.

use std::fmt::Write as _;

use serde_json::Value;

use super::shown;
use crate::cli::CheckConfig;
use crate::config::{
    Loaded, exposed_files, other_ledger, other_tokens, redact, short_keys, unused_parameters, weak_tokens,
};
use crate::exit::Failure;
use crate::serve::{check_files, check_ids_file, check_witness, file_warnings};

/// Runs the command.
///
/// # Errors
/// Everything that is wrong with the configuration; or else with the first file that `serve` could not use.
pub fn run(command: CheckConfig) -> Result<(), Failure> {
    let loaded = command.configured.sources().load()?;
    check_files(&loaded.config)?;
    check_witness(&loaded.config)?;
    check_ids_file(&loaded.config)?;
    let others = other_ledger(&loaded).into_iter().chain(other_tokens(&loaded));
    let others = others.chain(unused_parameters(&loaded)).chain(file_warnings(&loaded.config));
    let others = others.chain(exposed_files(&loaded)).chain(short_keys(&loaded.config));
    let others = others.chain(ledger::place_warning(&loaded.config.ledger.url));
    for warning in weak_tokens(&loaded.config).into_iter().chain(others) {
        shown::note(&format!("warning: {warning}\n"));
    }
    shown::answer(command.json, &redact::config(&loaded.config), |_| toml(&loaded));
    Ok(())
}

/// The configuration as TOML, secrets hidden, each value that is not a default with where it is from.
fn toml(loaded: &Loaded) -> String {
    let shown = serde_json::to_value(redact::config(&loaded.config)).expect("a configuration is plain data");
    let (mut top, mut sections) = (String::new(), String::new());
    for (name, value) in shown.as_object().into_iter().flatten() {
        match value {
            Value::Object(keys) => {
                let _ = write!(sections, "\n[{name}]\n");
                for (key, value) in keys {
                    line(&mut sections, key, value, loaded.origin(&format!("{name}.{key}")));
                }
            }
            plain => line(&mut top, name, plain, loaded.origin(name)),
        }
    }
    top + &sections
}

fn line(text: &mut String, key: &str, value: &Value, origin: Option<&str>) {
    let origin = origin.map(|origin| format!("  # {origin}")).unwrap_or_default();
    let _ = writeln!(text, "{key} = {}{origin}", inline(value));
}

/// A value on one line. What JSON escapes in a text TOML escapes alike.
fn inline(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key} = {}", inline(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn what_is_printed_reads_back_as_the_same_configuration_without_its_secrets() {
        let variables = [
            ("FENCEPOST_DATABASE_URL", "postgres://u:hunter2@localhost/d"),
            ("FENCEPOST__SERVER__NODE_NAME", "a:b@c"),
            (
                "FENCEPOST__AUTH__TOKENS",
                r#"[{"name":"a \"b\"","token":"hunter2","scopes":["admin","node"]}]"#,
            ),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let loaded = Sources { environment: variables.to_vec(), ..Sources::default() }.load().unwrap();
        let text = toml(&loaded);
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("url = \"postgres://u:***@localhost/d\"  # FENCEPOST_DATABASE_URL"), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("printed.toml");
        std::fs::write(&file, &text).unwrap();
        let read_back = Sources { file: Some(file), ..Sources::default() }.load().unwrap();
        assert_eq!(read_back.config, redact::config(&loaded.config));
    }
}
