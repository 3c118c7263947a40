//! What may be left of jobs that are all done: nothing. And who must be back: every node.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;
use testkit::fault_nodes::FaultNodes;
use testkit::fleet::Fleet;
use testkit::http::Client;

/// Lines of the logs that are shown of one job.
const LINES_SHOWN: usize = 60;

/// What was left for a while.
#[derive(Default)]
pub(super) struct Remains {
    /// When the time was over. Empty is what we want.
    pub(super) for_good: Vec<String>,
    /// At the last look that found anything.
    pub(super) last: Vec<String>,
}

/// The nodes that one instance shows.
struct Shown<'f> {
    url: &'f str,
    /// No bus joins the instance with the others, so that it shows its own nodes alone.
    is_island: bool,
    nodes: Vec<Value>,
}

/// Waits until nothing is left that should not be and the nodes are back, or the time is over.
pub(super) async fn until_none(
    fleet: &Arc<Fleet>,
    client: &Client,
    nodes: &[&FaultNodes],
    since: Instant,
    limit: Duration,
) -> Result<Remains> {
    let mut remains = Remains::default();
    loop {
        remains.last = match all_of(fleet, client, nodes).await {
            Ok(left) if left.is_empty() => return Ok(remains),
            Ok(left) => left,
            Err(error) => vec![format!("{error:#}")],
        };
        if since.elapsed() >= limit {
            let say = |left: &String| format!("{limit:?} after the last fault: {left}");
            remains.for_good = remains.last.iter().map(say).collect();
            return Ok(remains);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

async fn all_of(fleet: &Arc<Fleet>, client: &Client, nodes: &[&FaultNodes]) -> Result<Vec<String>> {
    let mut expected = Vec::new();
    for nodes in nodes {
        expected.extend(nodes.awake().await);
    }
    let mut left = Vec::new();
    let mut alive = Vec::new();
    let mut shown = Vec::new();
    for (index, url) in fleet.urls().iter().enumerate() {
        client.get(&format!("{url}/readyz")).await?;
        let nodes = client.list(&format!("{url}/v1/nodes")).await?;
        let taken = nodes.iter().filter(|node| node["used"] != 0);
        left.extend(taken.map(|node| format!("{url} shows {node}")));
        shown.push(Shown { url, is_island: fleet.is_island(index), nodes });
        let cluster = client.get(&format!("{url}/v1/cluster")).await?;
        let instances = cluster["instances"].as_array().context("a cluster has instances")?;
        if instances.len() != fleet.urls().len() {
            left.push(format!("{url} knows {cluster}"));
        }
        if !fleet.is_island(index) {
            // Those that it shares the Redis with.
            let own = cluster["instances"].as_array().into_iter().flatten().find(|one| one["url"] == **url);
            let bus = own.map_or(&Value::Null, |own| &own["bus"]);
            let joined = instances.iter().filter(|one| one["bus"] == *bus);
            alive.extend(joined.filter_map(|one| Some(one["instance_id"].as_str()?.to_owned())));
        }
    }
    left.extend(not_back(&expected, &shown));
    let of = Arc::clone(fleet);
    let beside = tokio::task::spawn_blocking(move || {
        let mut left = unfinished(&of)?;
        left.extend(in_redis(&of, &alive)?);
        anyhow::Ok(left)
    });
    left.extend(beside.await??);
    if !left.is_empty() {
        left.extend(nodes_shown(fleet.urls(), client).await?);
    }
    Ok(left)
}

/// Which of these nodes get no work yet. Each must be online on one instance at least; and where a bus joins that one with
/// others, on all of them.
fn not_back(expected: &[String], shown: &[Shown<'_>]) -> Vec<String> {
    let mut missing = Vec::new();
    for name in expected {
        let is_online =
            |of: &&Shown<'_>| of.nodes.iter().any(|node| node["id"] == *name && node["state"] == "online");
        let (there, elsewhere): (Vec<_>, Vec<_>) = shown.iter().partition(is_online);
        if there.is_empty() {
            missing.push(format!("{name} is not back"));
        } else if there.iter().any(|of| !of.is_island) {
            let ignorant = elsewhere.iter().filter(|of| !of.is_island);
            missing.extend(ignorant.map(|of| format!("{} does not show that {name} is back", of.url)));
        }
    }
    missing
}

/// Which instance holds the socket of each node, as each instance knows it.
async fn nodes_shown(urls: &[String], client: &Client) -> Result<Vec<String>> {
    let mut shown = Vec::new();
    for url in urls {
        let nodes = client.list(&format!("{url}/v1/nodes")).await?;
        let of = |node: &Value| format!("{} {} at {}", node["id"], node["state"], node["instance"]);
        shown.push(format!("{url} shows {}", nodes.iter().map(of).collect::<Vec<_>>().join(", ")));
    }
    Ok(shown)
}

fn unfinished(fleet: &Fleet) -> Result<Vec<String>> {
    let sql = "select id, state, attempt, lane, node, holder, due_at, now() from job order by id limit 20";
    let rows = fleet.database().query(sql)?;
    let mut left: Vec<_> = rows.into_iter().map(|row| format!("unfinished: {}", row.join(" "))).collect();
    // A task that is over keeps its lock until no attempt of it can be under way any more, and that is looked at every few
    // seconds.
    let sql = "select resource, owner, status from lease join plan_task on owner = 'task:' || plan_task.id \
               where status in ('SUCCEEDED', 'CANCELLED') limit 20";
    let rows = fleet.database().query(sql)?;
    left.extend(rows.into_iter().map(|row| format!("locked by a task that is over: {}", row.join(" "))));
    Ok(left)
}

/// Slots that are taken, messages that nobody has read, and inboxes of instances that are gone.
fn in_redis(fleet: &Fleet, alive: &[String]) -> Result<Vec<String>> {
    let redis = fleet.redis()?;
    let keys =
        |pattern: &str| anyhow::Ok(redis.command(&["KEYS", pattern])?.lines().map(str::to_owned).collect());
    let mut left: Vec<String> = keys("*{node:*}:*:reserved")?;
    for slots in keys("*{node:*}:*:slots")?.iter().filter(|key: &&String| !key.is_empty()) {
        let taken = redis.command(&["HGETALL", slots])?;
        left.push(format!("{slots}: {}", taken.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    let inboxes: Vec<String> = keys("*{instance:*}:inbox")?;
    for inbox in &inboxes {
        let entries = redis.command(&["XLEN", inbox])?;
        if entries.trim() != "0" || !alive.iter().any(|id| inbox.contains(id)) {
            left.push(format!("{inbox}, with {} entries", entries.trim()));
        }
    }
    // Without one, nothing that others send to it arrives.
    let has_inbox = |id: &&String| inboxes.iter().any(|inbox| inbox.contains(id.as_str()));
    left.extend(alive.iter().filter(|id| !has_inbox(id)).map(|id| format!("{id} has no inbox")));
    left.retain(|key| !key.is_empty());
    Ok(left)
}

/// Whether the ledger has each accepted job once, and nothing else but stages of plans.
pub(super) async fn rows(fleet: &Arc<Fleet>, accepted: usize) -> Result<Option<String>> {
    let fleet = Arc::clone(fleet);
    tokio::task::spawn_blocking(move || {
        let rows =
            fleet.database().query("select (select count(*) from job where stage is null) + count(*) from job_finished where stage is null")?;
        let count: usize = rows[0][0].parse()?;
        Ok((count != accepted).then(|| format!("{accepted} jobs were accepted, and the ledger has {count}")))
    })
    .await?
}

/// What the instances have logged of a job.
pub(super) async fn logged_of(fleet: &Fleet, id: &str) -> String {
    let mut lines = Vec::new();
    for index in 0..fleet.urls().len() {
        let log = fleet.instance(index).await.whole_log();
        let of = log.lines().filter(|line| line.contains(id));
        lines.extend(of.map(|line| format!("instance {index}: {line}")));
    }
    lines.truncate(LINES_SHOWN);
    format!("logged of {id}:\n    {}", lines.join("\n    "))
}

/// Keeps all that the instances have logged.
pub(super) async fn keep_logs(fleet: &Fleet, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    for index in 0..fleet.urls().len() {
        let log = fleet.instance(index).await.whole_log();
        std::fs::write(dir.join(format!("instance-{index}.log")), log)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What instances show: two that a bus joins, and an island.
    fn shown(nodes: [&[(&str, &str)]; 3]) -> Vec<Shown<'static>> {
        let node = |(id, state): &(&str, &str)| json!({ "id": id, "state": state });
        let of = |nodes: &[(&str, &str)]| nodes.iter().map(node).collect();
        let [one, other, island] = nodes.map(of);
        vec![
            Shown { url: "one", is_island: false, nodes: one },
            Shown { url: "other", is_island: false, nodes: other },
            Shown { url: "island", is_island: true, nodes: island },
        ]
    }

    fn missing(nodes: [&[(&str, &str)]; 3]) -> Vec<String> {
        not_back(&["a".to_owned(), "b".to_owned()], &shown(nodes))
    }

    #[test]
    fn a_node_that_is_nowhere_or_gets_no_work_is_not_back() {
        let a = &[("a", "online")][..];
        assert_eq!(missing([a, a, &[]]), ["b is not back"]);
        for state in ["unhealthy", "draining", "offline"] {
            let with_b = &[("a", "online"), ("b", state)][..];
            assert_eq!(missing([with_b, with_b, &[("b", state)]]), ["b is not back"], "{state}");
        }
        assert_eq!(missing([&[], &[], &[]]), ["a is not back", "b is not back"]);
    }

    #[test]
    fn all_instances_that_a_bus_joins_show_a_node_that_is_back_and_an_island_shows_its_own() {
        let (a, both) = (&[("a", "online")][..], &[("a", "online"), ("b", "online")][..]);
        assert_eq!(missing([both, both, &[]]), [""; 0]);
        assert_eq!(missing([a, a, &[("b", "online")]]), [""; 0], "it is connected to the island");
        assert_eq!(missing([a, both, &[]]), ["one does not show that b is back"]);
        let late = &[("a", "online"), ("b", "unhealthy")][..];
        assert_eq!(missing([both, late, a]), ["other does not show that b is back"]);
        assert_eq!(missing([a, &[], &[("b", "online")]]), ["other does not show that a is back"]);
    }
}
