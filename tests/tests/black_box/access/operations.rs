//! All operations of the API, from the document that the daemon serves, and requests for them.

use serde_json::{Value, json};

/// One method of one path.
#[derive(Clone, Debug)]
pub struct Operation {
    pub id: String,
    /// In capitals.
    pub method: String,
    pub pattern: String,
    /// The scope that the document names; `None` where any token does.
    pub scope: Option<String>,
    /// Whether a request needs no token.
    pub is_open: bool,
    needs_body: bool,
}

/// What the requests of a test are about.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub signer: String,
    /// The hold of the signer's nonce 0.
    pub hold: String,
    pub job: String,
    pub session: String,
    pub plan: String,
    pub task: String,
    pub tenant: String,
    pub pool: String,
    pub node: String,
    /// The token of the tenant's lock.
    pub lock: u64,
}

impl Names {
    /// Names of nothing that exists.
    pub fn of_nothing() -> Self {
        Self {
            signer: "nobody".to_owned(),
            hold: "h".to_owned(),
            job: "1".to_owned(),
            session: "nowhere".to_owned(),
            plan: "1".to_owned(),
            task: "1".to_owned(),
            tenant: "nobody".to_owned(),
            pool: "nowhere".to_owned(),
            node: "nobody".to_owned(),
            lock: 1,
        }
    }
}

/// Every operation of a daemon's document.
pub fn all(document: &Value) -> Vec<Operation> {
    let mut found = Vec::new();
    for (pattern, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let scope = operation["x-required-scope"].as_str();
            found.push(Operation {
                id: operation["operationId"].as_str().unwrap().to_owned(),
                method: method.to_uppercase(),
                pattern: pattern.clone(),
                scope: scope.map(ToOwned::to_owned),
                is_open: operation["security"] == serde_json::json!([]),
                needs_body: operation["requestBody"]["required"] == true,
            });
        }
    }
    assert!(found.len() > 70, "the document is read as it is written: {found:?}");
    found
}

impl Operation {
    /// Whether the path names something that belongs to a tenant, a signer or a node.
    pub fn names_something(&self) -> bool {
        self.pattern.contains('{') && !self.is_about_ids() && !self.is_open
    }

    /// Ids belong to nobody.
    pub fn is_about_ids(&self) -> bool {
        self.pattern.starts_with("/v1/ids/") || self.pattern.starts_with("/api/")
    }

    pub fn is_socket(&self) -> bool {
        self.pattern.ends_with("/ws")
    }

    /// The path about these.
    pub fn path(&self, names: &Names) -> String {
        let (mut path, mut before) = (String::new(), "");
        for part in self.pattern.split('/').skip(1) {
            path.push('/');
            if part.starts_with('{') {
                let signer = format!("signer:{}", names.signer);
                path.push_str(match before {
                    "signers" => &names.signer,
                    "nonces" => "0",
                    "jobs" => &names.job,
                    "sessions" => &names.session,
                    "plans" => &names.plan,
                    "tasks" => &names.task,
                    "stages" => "1",
                    "tenants" => &names.tenant,
                    "nodes" => &names.node,
                    "pools" => &names.pool,
                    "bulk" => &names.job,
                    "leases" | "owner" => &signer,
                    "snowflake" => "1",
                    "segments" => "order",
                    "sequences" => "invoice",
                    "get" => "order",
                    "assets" => "app.js",
                    other => panic!("{}: give a name for what follows {other:?}", self.pattern),
                });
            } else {
                path.push_str(part);
            }
            before = part;
        }
        path
    }

    /// A body that the operation takes, about these.
    pub fn body(&self, names: &Names) -> Option<Value> {
        if matches!(self.method.as_str(), "GET" | "DELETE") {
            return None;
        }
        let Names { hold, job, tenant, pool, .. } = names;
        Some(match self.id.as_str() {
            "settle" => json!({"settlements": [{"nonce": 0, "hold": hold, "outcome": "never_sent"}]}),
            "consume" => json!({ "hold": hold }),
            "release" => json!({"hold": hold, "outcome": "unknown"}),
            "resolve" => json!({"outcome": "never_sent"}),
            "set_policy" => json!({"max_in_flight": 9}),
            "confirm_signer" => json!({"next_nonce": 1}),
            "change_mode" => json!({"version": 1, "mode": "basic"}),
            "change_pools" => json!({"version": 1, "pools": []}),
            "change_segment" => json!({"step": 100}),
            "submit_job" => json!({"payload": 1, "tenant": tenant, "pool": pool, "delay_ms": 600_000}),
            "submit_jobs" => {
                json!({"jobs": [{"payload": 1, "tenant": tenant, "pool": pool, "delay_ms": 600_000}]})
            }
            "begin_bulk" => json!({"action": "cancel", "filter": {"tenant": tenant}, "dry_run": true}),
            "pause_pool" => json!({"reason": "repair"}),
            "retry_jobs" => json!({ "ids": [job] }),
            "open_session" => json!({"tenant": tenant, "pool": pool}),
            "create_plan" => {
                let stage = json!({"name": "s0", "payload": 1, "pool": pool});
                json!({"start": false, "tasks": [{"tenant": tenant, "stages": [stage]}]})
            }
            "resolve_stage" => json!({"outcome": "not_done", "reason": "looked"}),
            "retry_task" | "retry_tenant" => json!({"from": "start", "reason": "again"}),
            "unlock_tenant" => json!({"token": names.lock, "reason": "gone"}),
            "grant" | "change_sequence" | "select_node" => json!({}),
            other if self.needs_body => panic!("give a body of {other} ({})", self.pattern),
            _ => json!({}),
        })
    }
}
