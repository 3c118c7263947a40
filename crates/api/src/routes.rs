//! The table of all paths: the label of each in metrics, its methods, and the access that it requires. `server` adds the
//! handlers; `gate` and the 405 answer read the table.

use std::sync::LazyLock;

use actix_web::http::Method;

use crate::auth::{Access, Scope};

/// One path of the API.
#[derive(Debug, PartialEq, Eq)]
pub struct Route {
    /// The path, with `{…}` for a segment that varies. The label in metrics and logs.
    pub pattern: &'static str,
    /// The methods it takes, as the header `Allow` lists them.
    pub allow: &'static str,
    /// The access that seeing requires: GET and HEAD.
    pub view: Access,
    /// The access that the other methods that it takes require.
    pub change: Access,
}

impl Route {
    /// The access that a request with this method requires. A method that the path does not take is refused to every caller with
    /// a token alike: no scope would help.
    pub fn access(&self, method: &Method) -> Access {
        match *method {
            _ if self.view == Access::Open => Access::Open,
            _ if !self.takes(method) => Access::Known,
            Method::GET | Method::HEAD => self.view,
            _ => self.change,
        }
    }

    /// Whether a request with this method is a probe, whose answer shows no data and changes nothing.
    pub fn is_probed_by(&self, method: &Method) -> bool {
        matches!(*method, Method::GET | Method::HEAD) && (*self == HEALTH || *self == READY)
    }

    /// Whether the path takes this method.
    pub fn takes(&self, method: &Method) -> bool {
        self.allow.split(", ").any(|taken| taken == method.as_str())
    }
}

const READ: Access = Access::Scope(Scope::Read);
const SUBMIT: Access = Access::Scope(Scope::Submit);
const ADMIN: Access = Access::Scope(Scope::Admin);

macro_rules! routes {
    ($($name:ident = $pattern:literal, $allow:literal, $view:expr, $change:expr;)+) => {
        $(pub static $name: Route = Route { pattern: $pattern, allow: $allow, view: $view, change: $change };)+
        /// Every path.
        pub static ALL: &[&Route] = &[$(&$name),+];
    };
}

routes! {
    HEALTH = "/healthz", "GET, HEAD", Access::Open, Access::Open;
    READY = "/readyz", "GET, HEAD", Access::Open, Access::Open;
    NONCES = "/v1/signers/{signer}/nonces", "GET, HEAD, POST", READ, SUBMIT;
    SETTLEMENTS = "/v1/signers/{signer}/settlements", "POST", SUBMIT, SUBMIT;
    CONSUME = "/v1/signers/{signer}/nonces/{nonce}/consume", "POST", SUBMIT, SUBMIT;
    RELEASE = "/v1/signers/{signer}/nonces/{nonce}/release", "POST", SUBMIT, SUBMIT;
    RESOLVE = "/v1/signers/{signer}/nonces/{nonce}/resolve", "POST", ADMIN, ADMIN;
    SIGNER = "/v1/signers/{signer}", "GET, HEAD", READ, SUBMIT;
    POLICY = "/v1/signers/{signer}/policy", "PUT", ADMIN, ADMIN;
    CONFIRM = "/v1/signers/{signer}/confirm", "POST", ADMIN, ADMIN;
    SIGNERS = "/v1/signers", "GET, HEAD", READ, SUBMIT;
    LEASES = "/v1/leases", "GET, HEAD", READ, SUBMIT;
    LEASE = "/v1/leases/{resource}", "GET, HEAD", READ, SUBMIT;
    CLUSTER = "/v1/cluster", "GET, HEAD", READ, SUBMIT;
    OWNER = "/v1/cluster/owner/{resource}", "GET, HEAD", READ, SUBMIT;
    MODE = "/v1/config/mode", "GET, HEAD, PUT", READ, ADMIN;
    JOBS_BATCH = "/v1/jobs/batch", "POST", SUBMIT, SUBMIT;
    JOBS_RETRY = "/v1/jobs/retry", "POST", SUBMIT, SUBMIT;
    JOBS = "/v1/jobs", "GET, HEAD, POST", READ, SUBMIT;
    JOB = "/v1/jobs/{id}", "DELETE, GET, HEAD", READ, SUBMIT;
    JOB_CANCEL = "/v1/jobs/{id}/cancel", "POST", SUBMIT, SUBMIT;
    JOB_RETRY = "/v1/jobs/{id}/retry", "POST", SUBMIT, SUBMIT;
    JOB_DISMISS = "/v1/jobs/{id}/dismiss", "POST", SUBMIT, SUBMIT;
    BULK_CANCEL = "/v1/bulk/{id}/cancel", "POST", SUBMIT, SUBMIT;
    BULK = "/v1/bulk/{id}", "GET, HEAD", READ, SUBMIT;
    BULKS = "/v1/bulk", "GET, HEAD, POST", READ, SUBMIT;
    SESSION_SOCKET = "/v1/sessions/{id}/ws", "GET", READ, SUBMIT;
    SESSION = "/v1/sessions/{id}", "DELETE, GET, HEAD", READ, SUBMIT;
    SESSIONS = "/v1/sessions", "GET, HEAD, POST", READ, SUBMIT;
    JOB_EVENTS = "/v1/jobs/{id}/events", "GET", READ, SUBMIT;
    EVENTS = "/v1/events", "GET", ADMIN, ADMIN;
    PLAN_START = "/v1/plans/{plan}/start", "POST", SUBMIT, SUBMIT;
    PLAN_PAUSE = "/v1/plans/{plan}/pause", "POST", SUBMIT, SUBMIT;
    PLAN_RESUME = "/v1/plans/{plan}/resume", "POST", SUBMIT, SUBMIT;
    PLAN_CANCEL = "/v1/plans/{plan}/cancel", "POST", SUBMIT, SUBMIT;
    PLAN_TASKS = "/v1/plans/{plan}/tasks", "GET, HEAD", READ, SUBMIT;
    PLAN_EVENTS = "/v1/plans/{plan}/events", "GET", READ, SUBMIT;
    PLAN = "/v1/plans/{plan}", "GET, HEAD", READ, SUBMIT;
    PLANS = "/v1/plans", "GET, HEAD, POST", READ, SUBMIT;
    STAGE_RESOLVE = "/v1/tasks/{task}/stages/{stage}/resolve", "POST", ADMIN, ADMIN;
    TASK_PAUSE = "/v1/tasks/{task}/pause", "POST", SUBMIT, SUBMIT;
    TASK_RESUME = "/v1/tasks/{task}/resume", "POST", SUBMIT, SUBMIT;
    TASK_CANCEL = "/v1/tasks/{task}/cancel", "POST", SUBMIT, SUBMIT;
    TASK_RETRY = "/v1/tasks/{task}/retry", "POST", SUBMIT, SUBMIT;
    TASK_CHECKPOINTS = "/v1/tasks/{task}/checkpoints", "GET, HEAD", READ, SUBMIT;
    TASK_EVENTS = "/v1/tasks/{task}/events", "GET", READ, SUBMIT;
    TASK = "/v1/tasks/{task}", "GET, HEAD", READ, SUBMIT;
    TENANT_RETRY = "/v1/tenants/{tenant}/retry", "POST", SUBMIT, SUBMIT;
    TENANT_UNLOCK = "/v1/tenants/{tenant}/unlock", "POST", ADMIN, ADMIN;
    TENANT_TASKS = "/v1/tenants/{tenant}/tasks", "GET, HEAD", READ, SUBMIT;
    TENANT = "/v1/tenants/{tenant}", "GET, HEAD", READ, SUBMIT;
    NODE_SOCKET = "/v1/nodes/ws", "GET", Access::Scope(Scope::Node), Access::Scope(Scope::Node);
    NODE_SELECT = "/v1/nodes/select", "POST", READ, READ;
    NODES = "/v1/nodes", "GET, HEAD", READ, SUBMIT;
    NODE = "/v1/nodes/{id}", "GET, HEAD", READ, SUBMIT;
    NODE_DRAIN = "/v1/nodes/{id}/drain", "POST", ADMIN, ADMIN;
    NODE_UNDRAIN = "/v1/nodes/{id}/undrain", "POST", ADMIN, ADMIN;
    POOLS = "/v1/config/pools", "GET, HEAD, PUT", READ, ADMIN;
    POOL_PAUSE = "/v1/pools/{pool}/pause", "POST", ADMIN, ADMIN;
    POOL_RESUME = "/v1/pools/{pool}/resume", "POST", ADMIN, ADMIN;
    SNOWFLAKES = "/v1/ids/snowflake", "GET", SUBMIT, SUBMIT;
    SNOWFLAKE = "/v1/ids/snowflake/{id}", "GET, HEAD", SUBMIT, SUBMIT;
    SEGMENTS = "/v1/ids/segments", "GET, HEAD", SUBMIT, SUBMIT;
    SEGMENT = "/v1/ids/segments/{tag}", "GET, PUT", SUBMIT, ADMIN;
    SEQUENCE = "/v1/ids/sequences/{name}", "GET, PUT", SUBMIT, ADMIN;
    UUIDS = "/v1/ids/uuid", "GET", SUBMIT, SUBMIT;
    LEAF_SEGMENT = "/api/segment/get/{tag}", "GET", SUBMIT, SUBMIT;
    LEAF_SNOWFLAKE = "/api/snowflake/get/{key}", "GET", SUBMIT, SUBMIT;
    AUDIT = "/v1/audit", "GET, HEAD", ADMIN, ADMIN;
    STATS = "/v1/stats", "GET, HEAD", READ, SUBMIT;
    METRICS = "/metrics", "GET, HEAD", Access::Known, Access::Known;
    DOCUMENT = "/openapi.json", "GET, HEAD", Access::Known, Access::Known;
    WHOAMI = "/v1/whoami", "GET, HEAD", Access::Known, Access::Known;
    PAGE = "/", "GET, HEAD", Access::Open, Access::Open;
    ASSET = "/assets/{file}", "GET, HEAD", Access::Open, Access::Open;
}

/// The paths that are served also before the ledger is reached.
static WITHOUT_LEDGER: [&Route; 11] = [
    &HEALTH,
    &READY,
    &SNOWFLAKES,
    &SNOWFLAKE,
    &LEAF_SNOWFLAKE,
    &UUIDS,
    &METRICS,
    &DOCUMENT,
    &WHOAMI,
    &PAGE,
    &ASSET,
];

impl Route {
    /// Whether the path is served also before the ledger is reached.
    pub fn needs_no_ledger(&self) -> bool {
        WITHOUT_LEDGER.contains(&self)
    }
}

/// The paths as [`find`] looks for them, for each request: by their number of slashes; each with its fixed beginning.
static INDEX: LazyLock<Vec<Vec<(&'static str, &'static Route)>>> = LazyLock::new(|| {
    let mut index: Vec<Vec<_>> = Vec::new();
    for route in ALL.iter().copied() {
        let begin = route.pattern.split_once('{').map_or(route.pattern, |(begin, _)| begin);
        let slashes = slashes(route.pattern);
        index.resize_with(index.len().max(slashes + 1), Vec::new);
        index[slashes].push((begin, route));
    }
    index
});

/// The route of a path. Its percent-encoding must be undone exactly as the router does it, or a path could be served under
/// another's access.
pub fn find(path: &str) -> Option<&'static Route> {
    let alike = INDEX.get(slashes(path))?;
    let found = alike.iter().find(|(begin, route)| path.starts_with(begin) && matches(route.pattern, path));
    found.map(|(_, route)| *route)
}

fn slashes(path: &str) -> usize {
    path.bytes().filter(|byte| *byte == b'/').count()
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut expected, mut given) = (pattern.split('/'), path.split('/'));
    loop {
        match (expected.next(), given.next()) {
            (None, None) => return true,
            (Some(expected), Some(given)) if expected.starts_with('{') => {
                if given.is_empty() {
                    return false;
                }
            }
            (Some(expected), Some(given)) if expected == given => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_finds_what_a_look_at_every_path_finds() {
        let words = ["v1", "api", "x", "batch", "ws", "nonces", "signers", "", "{id}", "segments", "get"];
        let mut paths: Vec<String> = vec![String::new(), "/".to_owned()];
        for route in ALL {
            let segments: Vec<&str> = route.pattern.split('/').collect();
            for at in 0..segments.len() {
                for word in words {
                    let mut other = segments.clone();
                    other[at] = word;
                    paths.push(other.join("/"));
                }
            }
            paths.push(format!("{}/x", route.pattern));
        }
        for path in paths {
            let looked = ALL.iter().copied().find(|route| matches(route.pattern, &path));
            assert_eq!(find(&path), looked, "{path}");
        }
    }

    #[test]
    fn a_method_that_a_path_does_not_take_needs_a_token_and_no_scope() {
        for (route, method, access) in [
            (&LEASES, Method::GET, READ),
            (&LEASES, Method::HEAD, READ),
            (&LEASES, Method::POST, Access::Known),
            (&LEASES, Method::DELETE, Access::Known),
            (&SETTLEMENTS, Method::GET, Access::Known),
            (&SETTLEMENTS, Method::POST, SUBMIT),
            (&MODE, Method::PUT, ADMIN),
            (&MODE, Method::DELETE, Access::Known),
            (&JOB, Method::DELETE, SUBMIT),
            (&EVENTS, Method::HEAD, Access::Known),
            (&SIGNER, Method::from_bytes(b"GE").unwrap(), Access::Known),
            (&HEALTH, Method::GET, Access::Open),
            (&HEALTH, Method::POST, Access::Open),
        ] {
            assert_eq!(route.access(&method), access, "{method} {}", route.pattern);
        }
        for route in ALL {
            assert_eq!(route.view == Access::Open, route.change == Access::Open, "{}", route.pattern);
        }
    }

    #[test]
    fn only_health_and_readiness_are_probed() {
        let probed: Vec<_> = ALL.iter().filter(|route| route.is_probed_by(&Method::GET)).collect();
        assert_eq!(probed, [&&HEALTH, &&READY]);
        assert!(READY.is_probed_by(&Method::HEAD) && !READY.is_probed_by(&Method::POST));
    }

    #[test]
    fn paths_find_their_route_and_no_other() {
        for (path, route) in [
            ("/", Some(&PAGE)),
            ("/healthz", Some(&HEALTH)),
            ("/healthz/", None),
            ("/v1/signers", Some(&SIGNERS)),
            ("/v1/signers/", None),
            ("/v1/signers/eip155:1:0xab", Some(&SIGNER)),
            ("/v1/signers/x/nonces", Some(&NONCES)),
            ("/v1/signers//nonces", None),
            ("/v1/signers/x/nonces/0/resolve", Some(&RESOLVE)),
            ("/v1/signers/x/nonces/0/resolve/", None),
            ("/v1/signers/x/nonces/0", None),
            ("/v1/ids/segments", Some(&SEGMENTS)),
            ("/v1/ids/segments/order", Some(&SEGMENT)),
            ("/api/segment/get/order", Some(&LEAF_SEGMENT)),
            ("/api/segment/get/", None),
            ("/v2/signers", None),
            ("", None),
        ] {
            assert_eq!(find(path), route, "{path}");
        }
    }
}
