//! The columns that a submit fills, declared once: their names, their types on PostgreSQL, and where each value comes
//! from. Every statement that names them takes the list from here.

use crate::sql::{Id, Rows, Statement};

use super::plan::{New, requires};

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
    retry_of: "uuid" = |new| new.job.retry.map(|retry| Id(retry.of));
    due_at: "timestamptz" = |new| new.due_at;
    node: "text" = |new| new.job.placed.as_ref().map(|placed| placed.node.as_str());
    holder: "text" = |new| new.job.placed.as_ref().map(|placed| placed.holder.as_str());
}

/// The statement with the list in the places that are marked for it:
///
/// - `{given}`: the names; `{given of w}`: the names as columns of `w`;
/// - `{given in w}`: their values in the JSON object `w.value`;
/// - `{given from $5}`: their arrays, as arguments from the fifth on.
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
        Some(("from", first)) => {
            let first: usize = first.trim_start_matches('$').parse().expect("the number of an argument");
            format!("${}::{of_type}[]", first + n)
        }
        _ => panic!("no list has the form {form:?}"),
    };
    GIVEN.iter().enumerate().map(each).collect::<Vec<_>>().join(", ")
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
        let arrays = expand("unnest({given from $3}, x)");
        assert!(arrays.starts_with("unnest($3::uuid[], $4::text[], $5::bigint[], "), "{arrays}");
        assert!(arrays.ends_with(&format!("${}::text[], x)", GIVEN.len() + 2)), "{arrays}");
    }
}
