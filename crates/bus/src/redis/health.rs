//! What a server tells of itself, and what of it is dangerous.

/// The warnings that one server's `INFO` gives cause for.
pub(super) fn warnings(server: &str, info: &str) -> Vec<String> {
    let field = |name: &str| {
        let value =
            |line: &str| line.strip_prefix(name)?.strip_prefix(':').map(|value| value.trim().to_owned());
        info.lines().find_map(value)
    };
    let number = |name: &str| field(name).and_then(|text| text.parse::<u64>().ok());
    let mut warnings = Vec::new();
    let max = number("maxmemory").unwrap_or_default();
    if max > 0 {
        let policy = field("maxmemory_policy").unwrap_or_default();
        if policy.starts_with("allkeys-") || policy.starts_with("volatile-") {
            warnings.push(format!(
                "Redis {server}: maxmemory-policy is {policy}, under which it drops what it was given; should be \
                 noeviction"
            ));
        }
        let used = number("used_memory").unwrap_or_default();
        if used >= max {
            warnings.push(format!("Redis {server}: {used} bytes of memory are in use, maxmemory is {max}"));
        }
    }
    if field("role").is_some_and(|role| role == "slave") {
        warnings.push(format!("Redis {server} is a replica and takes no writes; should be a master"));
    }
    if field("loading").is_some_and(|loading| loading == "1") {
        warnings.push(format!("Redis {server} is still loading its data"));
    }
    // One that was taken out of its Cluster knows no other server and no slots, which says nothing of the Cluster.
    let has_left = number("cluster_known_nodes") == Some(1) && number("cluster_slots_assigned") == Some(0);
    if !has_left && field("cluster_state").is_some_and(|state| state != "ok") {
        warnings
            .push(format!("Redis {server}: the Cluster's state is not ok, part of the keys are not served"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dangerous_is_warned_of_and_nothing_else() {
        let info = |policy: &str, used: u64, max: u64, role: &str| {
            format!(
                "# Memory\r\nused_memory:{used}\r\nused_memory_human:1K\r\nmaxmemory:{max}\r\n\
                 maxmemory_human:0B\r\nmaxmemory_policy:{policy}\r\n# Replication\r\nrole:{role}\r\n"
            )
        };
        let seen = |policy, used, max, role| warnings("h:1", &info(policy, used, max, role)).join("\n");
        assert_eq!(seen("noeviction", 5, 10, "master"), "");
        assert_eq!(seen("allkeys-lru", 5, 0, "master"), "", "without a limit nothing is evicted");
        assert!(seen("allkeys-lru", 5, 10, "master").contains("allkeys-lru"));
        assert!(seen("volatile-ttl", 5, 10, "master").contains("should be noeviction"));
        assert!(seen("noeviction", 10, 10, "master").contains("maxmemory is 10"));
        assert!(seen("noeviction", 5, 10, "slave").contains("replica"));
        assert_eq!(warnings("h:1", "cluster_state:fail\r\nloading:1\r\n").len(), 2);
        let of_cluster = |slots, known| {
            let info = format!(
                "cluster_state:fail\r\ncluster_slots_assigned:{slots}\r\ncluster_known_nodes:{known}\r\n"
            );
            warnings("h:1", &info).len()
        };
        assert_eq!(of_cluster(0, 1), 0, "it has left its Cluster");
        assert_eq!([of_cluster(0, 2), of_cluster(9, 1)], [1, 1]);
        assert!(warnings("h:1", "").is_empty());
    }
}
