//! `fencepost pool …`: shows, sets, pauses and resumes the pools of nodes.

use std::fmt;

use client::Error;
use client::wire::nodes::{PauseRequest, Pool as Shown, PoolPause, PoolsRequest, PoolsSetting};
use client::wire::{Code, Object, Problem};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::look::Look;
use super::{confirm, connect, json_file, shown};
use crate::cli::nodes::Pool;
use crate::exit::{Exit, Failure};

/// The pools as `pool show --json` prints them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u64,
    pools: Vec<Shown>,
    /// Pauses are no part of the setting: `pool pause` and `pool resume` change them.
    #[serde(default, rename = "paused")]
    _paused: Option<IgnoredAny>,
}

/// The pools as the daemon has them. A field of a pool that is unknown here is an error, since the new pools would lack it.
#[derive(Deserialize)]
struct Present {
    version: u64,
    pools: Vec<Shown>,
}

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; wrong usage for a file that holds no pools, and where a question was not
/// answered with yes.
pub async fn run(command: Pool) -> Result<(), Failure> {
    match command {
        Pool::Show { shown } => {
            let client = connect(&shown.remote)?;
            Look::one(people).run(&shown, async || client.nodes().pools().await).await
        }
        Pool::Pause { pool, reason, length, yes: _, remote } => {
            let for_ms = length.map(|length| u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
            let answer = connect(&remote)?.nodes().pause_pool(&pool, &PauseRequest { reason, for_ms }).await;
            shown::answered(remote.json, answer, |pause| {
                format!("pool {} is {}\n", pause.pool, paused(pause))
            })
        }
        Pool::Resume { pool, remote } => {
            let answer = connect(&remote)?.nodes().resume_pool(&pool).await;
            shown::answered(remote.json, answer, |_| format!("pool {pool} is resumed\n"))
        }
        Pool::Set { file, dry_run, yes, remote } => {
            let Object(Written { version, pools, .. }) = json_file::read(&file)?;
            let request = PoolsRequest { version, pools };
            let client = connect(&remote)?;
            let now = client.nodes().pools_as_written().await;
            let now = now.and_then(|now| now.read::<Present>().map_err(|error| would_be_lost(&error)));
            let now = now.map_err(|error| shown::failure(remote.json, error))?;
            if now.version != request.version {
                let detail = format!(
                    "the file replaces version {}, but the pools have version {} now, so nothing was changed",
                    request.version, now.version
                );
                return Err(match remote.json {
                    // As the daemon refuses it where the version changes after this look.
                    true => {
                        shown::failure(true, Error::Refused(Box::new(Problem::new(Code::Conflict, detail))))
                    }
                    false => Failure::new(
                        Exit::Refused,
                        format!("{detail}\n  `fencepost pool show --json` prints them as they are"),
                    ),
                });
            }
            if dry_run {
                let changes = changes(&now.pools, &request.pools);
                shown::answer(remote.json, &request, |_| changes + "nothing was changed\n");
                return Ok(());
            }
            let dropped = dropped(&now.pools, &request.pools);
            if !dropped.is_empty() && !yes {
                let names = dropped.join(", ");
                confirm::ask(&format!("Jobs for these pools would wait for ever: {names}. Drop the pools?"))?;
            }
            if are_the_first(&now.pools, &request.pools) {
                confirm::ask_at_terminal(yes, || {
                    "All nodes are in the pool default now. One that no pool of the file takes gets no job. Set the pools?"
                        .to_owned()
                })?;
            }
            let answer = client.nodes().set_pools(&request).await;
            shown::answered(remote.json, answer, people)
        }
    }
}

/// The failure where the pools of the daemon have what this command does not know.
fn would_be_lost(unknown: &impl fmt::Display) -> Error {
    Error::Unusable(format!(
        "nothing was changed: the pools have what this command does not know, and would lose it ({unknown}); use the \
         `fencepost` of the daemon's release"
    ))
}

fn people(setting: &PoolsSetting) -> String {
    let pauses: String =
        setting.paused.iter().map(|pause| format!("{} is {}\n", pause.pool, paused(pause))).collect();
    if setting.pools.is_empty() {
        return format!("version {}; all nodes are in the pool default\n", setting.version) + &pauses;
    }
    let rows = setting.pools.iter().map(|pool| {
        [
            pool.name.clone(),
            pool.weight.to_string(),
            shown::joined(&pool.routes, ","),
            shown::joined(&pool.requires, ","),
        ]
    });
    let table = shown::table(["POOL", "WEIGHT", "ROUTES", "REQUIRES"], rows);
    format!("version {}\n", setting.version) + &table + &pauses
}

/// A pause in words.
fn paused(pause: &PoolPause) -> String {
    let by = if pause.by.is_empty() { String::new() } else { format!(" by {}", pause.by) };
    let until = pause
        .until
        .as_ref()
        .map_or_else(|| "until somebody resumes it".to_owned(), |at| format!("until {at}"));
    shown::one_line(&format!("paused since {}{by}, {until}: {}", pause.since, pause.reason))
}

/// The names of the pools that are there before and not after.
fn dropped(before: &[Shown], after: &[Shown]) -> Vec<String> {
    let is_kept = |pool: &&Shown| after.iter().any(|kept| kept.name == pool.name);
    before.iter().filter(|pool| !is_kept(pool)).map(|pool| pool.name.clone()).collect()
}

/// Whether no pools were configured before. Then all nodes were in one pool, and none can be sure to be in a new one.
const fn are_the_first(before: &[Shown], after: &[Shown]) -> bool {
    before.is_empty() && !after.is_empty()
}

/// What becomes of each pool, one a line.
fn changes(before: &[Shown], after: &[Shown]) -> String {
    let dropped = dropped(before, after).into_iter().map(|name| format!("dropped    {name}\n"));
    let others = after.iter().map(|pool| {
        let what = match before.iter().find(|old| old.name == pool.name) {
            Some(old) if old == pool => "unchanged",
            Some(_) => "changed",
            None => "added",
        };
        format!("{what:9}  {}\n", pool.name)
    });
    dropped.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_shown_with_its_reason_and_its_end() {
        let setting = |text| people(&serde_json::from_str::<PoolsSetting>(text).unwrap());
        let paused = setting(
            r#"{"version":2,"pools":[{"name":"a"}],"paused":[{"pool":"a","reason":"re\npair","by":"op","since":"s","until":"u"}]}"#,
        );
        assert!(paused.ends_with("a is paused since s by op, until u: re pair\n"), "{paused}");
        let endless = setting(
            r#"{"version":1,"pools":[],"paused":[{"pool":"default","reason":"r","by":"","since":"s","until":null}]}"#,
        );
        assert!(endless.ends_with("default is paused since s, until somebody resumes it: r\n"), "{endless}");
    }

    #[test]
    fn a_change_of_pools_names_what_is_dropped_added_and_changed() {
        let pools = |text| serde_json::from_str::<Vec<Shown>>(text).unwrap();
        let before = pools(r#"[{"name":"a"},{"name":"b"},{"name":"c"}]"#);
        let after = pools(r#"[{"name":"b","weight":2},{"name":"c"},{"name":"d"}]"#);
        let expected = "dropped    a\nchanged    b\nunchanged  c\nadded      d\n";
        assert_eq!(changes(&before, &after), expected);
        assert_eq!(dropped(&before, &after), ["a"]);
    }

    #[test]
    fn the_first_pools_are_those_before_which_there_were_none() {
        let pools = |text| serde_json::from_str::<Vec<Shown>>(text).unwrap();
        let (none, some) = (pools("[]"), pools(r#"[{"name":"a"}]"#));
        let are_so = [(&none, &some), (&none, &none), (&some, &none), (&some, &some)]
            .map(|(before, after)| are_the_first(before, after));
        assert_eq!(are_so, [true, false, false, false]);
    }
}
