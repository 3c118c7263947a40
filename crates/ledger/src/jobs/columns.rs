//! The columns that a submit fills, declared once: their names, their types on PostgreSQL, and where each value comes
//! from. Every statement that names them takes the list from here. Below the list is how what was asked of a job is read
//! from them again, the same for both dialects.

use std::collections::BTreeMap;

use domain::job::{Backoff, Metadata, OnRecovery, Priority, Requirements, Route, Spec};
use domain::{JobKind, Label, Language, PoolName, SessionId, TenantId, TraceParent};

use super::plan::{New, requires};
use crate::Result;
use crate::records::{impossible, name, number};
use crate::sql::{Id, Rows, Statement, record};

/// Declares the list, and the function that gives the columns to a statement in the same order.
macro_rules! given {
    ($($name:ident: $type:literal = $value:expr;)+) => {
        /// Names and types.
        const GIVEN: &[(&str, &str)] = &[$((stringify!($name), $type)),+];

        /// Gives new jobs to a statement.
        pub(crate) fn give(rows: &mut Rows<'_, '_, New<'_>>) {
            rows$(.column(stringify!($name), $value))+;
        }
    };
}

given! {
    id: "uuid" = |new| Id(new.job.id);
    lane: "text" = |new| new.lane;
    seq: "bigint" = |new| new.job.seq.unwrap_or(0) as i64;
    session: "text" = |new| new.job.spec.session.as_ref().map(|id| id.as_str());
    client_ref: "text" = |new| new.job.client_ref.as_ref().map(|name| name.as_str());
    tenant: "text" = |new| new.job.spec.tenant.as_ref().map_or("", |id| id.as_str());
    pool: "text" = |new| new.job.spec.needs.pool.as_ref().map_or("", |pool| pool.as_str());
    route_source: "text" = |new| new.job.spec.needs.route.as_ref().map(|route| route.source.as_str());
    route_target: "text" = |new| new.job.spec.needs.route.as_ref().map(|route| route.target.as_str());
    requires: "text" = |new| requires(&new.job.spec.needs);
    priority: "bigint" = |new| i64::from(new.job.spec.priority.get());
    timeout_ms: "bigint" = |new| new.job.spec.timeout_ms as i64;
    max_attempts: "bigint" = |new| i64::from(new.job.spec.max_attempts);
    backoff_initial_ms: "bigint" = |new| new.job.spec.backoff.initial_ms as i64;
    backoff_factor_percent: "bigint" = |new| i64::from(new.job.spec.backoff.factor_percent);
    backoff_max_ms: "bigint" = |new| new.job.spec.backoff.max_ms as i64;
    on_recovery: "text" = |new| new.job.spec.on_recovery.as_str();
    payload: "text" = |new| &*new.job.spec.payload;
    kind: "text" = |new| new.job.spec.kind.as_ref().map(|kind| kind.as_str());
    metadata: "text" = |new| new.job.spec.metadata.strings().map(json);
    stage: "text" = |new| new.job.spec.stage.as_deref();
    traceparent: "text" = |new| new.job.spec.traceparent.map(|parent| parent.to_string());
    retry_of: "uuid" = |new| new.job.retry.map(|retry| Id(retry.of));
    due_at: "timestamptz" = |new| new.due_at;
    node: "text" = |new| new.job.placed.as_ref().map(|placed| placed.node.as_str());
    holder: "text" = |new| new.job.placed.as_ref().map(|placed| placed.holder.as_str());
}

record! {
    /// The columns of what was asked of a job, as a row has them.
    pub(crate) struct SpecRow {
        session: Option<String>,
        tenant: String,
        #[flatten]
        needs: NeedsRow,
        priority: i64,
        timeout_ms: i64,
        max_attempts: i64,
        backoff_initial_ms: i64,
        backoff_factor_percent: i64,
        backoff_max_ms: i64,
        on_recovery: String,
        payload: String,
        kind: Option<String>,
        metadata: Option<String>,
        stage: Option<String>,
        traceparent: Option<String>,
    }
}

impl SpecRow {
    pub(crate) fn spec(&self) -> Result<Spec> {
        Ok(Spec {
            payload: self.payload.as_str().into(),
            kind: self.kind.as_deref().map(JobKind::parse).transpose().map_err(impossible)?,
            metadata: self.metadata()?,
            session: self.session.as_deref().map(SessionId::parse).transpose().map_err(impossible)?,
            tenant: name(&self.tenant, TenantId::parse)?,
            needs: self.needs.needs()?,
            priority: Priority::new(self.priority).map_err(impossible)?,
            timeout_ms: number(self.timeout_ms)?,
            max_attempts: number(self.max_attempts)?,
            backoff: Backoff {
                initial_ms: number(self.backoff_initial_ms)?,
                factor_percent: number(self.backoff_factor_percent)?,
                max_ms: number(self.backoff_max_ms)?,
            },
            on_recovery: OnRecovery::parse(&self.on_recovery).map_err(impossible)?,
            stage: self.stage.as_deref().map(Into::into),
            // No job fails because of its trace.
            traceparent: self.traceparent.as_deref().and_then(TraceParent::parse),
        })
    }

    fn metadata(&self) -> Result<Metadata> {
        let Some(text) = &self.metadata else { return Ok(Metadata::default()) };
        Metadata::new(serde_json::from_str(text).map_err(impossible)?).map_err(impossible)
    }
}

record! {
    /// What a job, or a session for all of its jobs, needs of the node that runs it.
    pub(crate) struct NeedsRow {
        pool: String,
        route_source: Option<String>,
        route_target: Option<String>,
        requires: String,
    }
}

impl NeedsRow {
    pub(crate) fn needs(&self) -> Result<Requirements> {
        let requires = self.requires.split_ascii_whitespace();
        let route = match (&self.route_source, &self.route_target) {
            (Some(source), Some(target)) => Some(Route {
                source: Language::parse(source).map_err(impossible)?,
                target: Language::parse(target).map_err(impossible)?,
            }),
            _ => None,
        };
        Ok(Requirements {
            pool: name(&self.pool, PoolName::parse)?,
            route,
            requires: requires.map(|label| Label::parse(label).map_err(impossible)).collect::<Result<_>>()?,
        })
    }
}

/// The statement with the list in the places that are marked for it:
///
/// - `{given}`: the names; `{given of w}`: the names as columns of `w`;
/// - `{given in w}`: their values in the JSON object `w.value`;
/// - `{given unnested $5}`: their values, of arrays that are arguments from the fifth on.
pub(crate) fn expanded(statement: Statement) -> Statement {
    // Each is made once for a process.
    let expand = |text: &str| -> &'static str { expand(text).leak() };
    Statement { postgres: expand(statement.postgres), sqlite: expand(statement.sqlite) }
}

fn expand(mut text: &str) -> String {
    const MARK: &str = "{given";
    let mut expanded = String::with_capacity(text.len() * 2);
    while let Some((before, rest)) = text.split_once(MARK) {
        let (form, after) = rest.split_once('}').expect("a mark has an end");
        expanded.push_str(before);
        expanded.push_str(&list(form.trim()));
        text = after;
    }
    expanded + text
}

fn list(form: &str) -> String {
    let each = |(n, (name, of_type)): (usize, &(&str, &str))| match form.split_once(' ') {
        None if form.is_empty() => (*name).to_owned(),
        Some(("of", table)) => format!("{table}.{name}"),
        Some(("in", row)) => format!("{row}.value ->> '{name}'"),
        Some(("unnested", first)) => {
            let first: usize = first.trim_start_matches('$').parse().expect("the number of an argument");
            format!("unnest(${}::{of_type}[]) AS {name}", first + n)
        }
        _ => panic!("no list has the form {form:?}"),
    };
    GIVEN.iter().enumerate().map(each).collect::<Vec<_>>().join(", ")
}

/// Strings by their keys, as they are kept: JSON text.
fn json(strings: &BTreeMap<String, String>) -> String {
    serde_json::to_string(strings).expect("texts always serialise")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_stands_where_a_statement_marks_it() {
        assert_eq!(expand("no mark"), "no mark");
        let names = expand("({given}, more)");
        assert!(names.starts_with("(id, lane, seq,") && names.ends_with(", holder, more)"), "{names}");
        assert!(expand("{given of w}").starts_with("w.id, w.lane, "));
        assert!(expand("{given in w}").starts_with("w.value ->> 'id', w.value ->> 'lane', "));
        let arrays = expand("SELECT {given unnested $3}, x");
        assert!(
            arrays.starts_with("SELECT unnest($3::uuid[]) AS id, unnest($4::text[]) AS lane, "),
            "{arrays}"
        );
        assert!(arrays.ends_with(&format!("unnest(${}::text[]) AS holder, x", GIVEN.len() + 2)), "{arrays}");
    }
}
