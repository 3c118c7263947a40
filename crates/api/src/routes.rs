//! The table of all paths: the label of each in metrics, its methods with the access that each requires, and what else all
//! requests for it have in common. `gate`, `visibility`, `shared_reads`, `openapi` and the 405 answer read the table.
//! Handlers use some of these, so they cannot stand in it: `server` adds them.

use std::sync::LazyLock;

use actix_web::http::Method;

use crate::auth::{Access, Scope};

/// What the table says of a path.
struct Row {
    /// The path, with `{…}` for a segment that varies.
    pattern: &'static str,
    /// The access that GET requires, and HEAD where the path takes that; `None` where it takes neither.
    get: Option<Access>,
    takes_head: bool,
    /// The access that this method requires; `None` where the path does not take it. So it is with the next two.
    post: Option<Access>,
    put: Option<Access>,
    delete: Option<Access>,
    is_shared: bool,
    is_for_all: bool,
    needs_no_ledger: bool,
}

/// A path that takes no method yet.
const fn at(pattern: &'static str) -> Row {
    Row {
        pattern,
        get: None,
        takes_head: false,
        post: None,
        put: None,
        delete: None,
        is_shared: false,
        is_for_all: false,
        needs_no_ledger: false,
    }
}

impl Row {
    /// The path takes GET and HEAD.
    const fn get(self, access: Access) -> Self {
        Self { get: Some(access), takes_head: true, ..self }
    }

    /// The path takes GET and no HEAD: it opens a stream or a socket, or it hands out ids, which nobody would get.
    const fn get_alone(self, access: Access) -> Self {
        Self { get: Some(access), ..self }
    }

    /// The path takes POST.
    const fn post(self, access: Access) -> Self {
        Self { post: Some(access), ..self }
    }

    /// The path takes PUT.
    const fn put(self, access: Access) -> Self {
        Self { put: Some(access), ..self }
    }

    /// The path takes DELETE.
    const fn delete(self, access: Access) -> Self {
        Self { delete: Some(access), ..self }
    }

    /// Callers who accept it share an answer to GET: the dashboard polls the path.
    const fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// What the path shows or changes belongs to all: a token with patterns is refused.
    const fn for_all(self) -> Self {
        Self { is_for_all: true, ..self }
    }

    /// The path is served also before the ledger is reached.
    const fn without_ledger(self) -> Self {
        Self { needs_no_ledger: true, ..self }
    }
}

const OPEN: Access = Access::Open;
const KNOWN: Access = Access::Known;
const READ: Access = Access::Scope(Scope::Read);
const SUBMIT: Access = Access::Scope(Scope::Submit);
const NODE: Access = Access::Scope(Scope::Node);
const ADMIN: Access = Access::Scope(Scope::Admin);

macro_rules! routes {
    ($($name:ident = $row:expr;)+) => {
        /// One path of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Route {
            $($name),+
        }

        impl Route {
            /// Every path.
            pub const ALL: &[Self] = &[$(Self::$name),+];
        }

        /// What the table says of each, in the order of [`Route::ALL`].
        static ROWS: [Row; Route::ALL.len()] = [$($row),+];
    };
}

// Of two paths that a request matches, the first one counts: here, and in the router, which gets them in this order.
routes! {
    Health = at("/healthz").get(OPEN).without_ledger();
    Ready = at("/readyz").get(OPEN).without_ledger();
    Nonces = at("/v1/signers/{signer}/nonces").get(READ).post(SUBMIT).shared();
    Settlements = at("/v1/signers/{signer}/settlements").post(SUBMIT);
    Consume = at("/v1/signers/{signer}/nonces/{nonce}/consume").post(SUBMIT);
    Release = at("/v1/signers/{signer}/nonces/{nonce}/release").post(SUBMIT);
    Resolve = at("/v1/signers/{signer}/nonces/{nonce}/resolve").post(ADMIN);
    Signer = at("/v1/signers/{signer}").get(READ).shared();
    Policy = at("/v1/signers/{signer}/policy").put(ADMIN);
    Confirm = at("/v1/signers/{signer}/confirm").post(ADMIN);
    Signers = at("/v1/signers").get(READ).shared();
    Leases = at("/v1/leases").get(READ).shared();
    Lease = at("/v1/leases/{resource}").get(READ).shared();
    Cluster = at("/v1/cluster").get(READ).shared();
    Owner = at("/v1/cluster/owner/{resource}").get(READ).shared();
    Mode = at("/v1/config/mode").get(READ).put(ADMIN).shared().for_all();
    JobsBatch = at("/v1/jobs/batch").post(SUBMIT);
    JobsRetry = at("/v1/jobs/retry").post(SUBMIT);
    Jobs = at("/v1/jobs").get(READ).post(SUBMIT).shared();
    Job = at("/v1/jobs/{id}").get(READ).delete(SUBMIT).shared();
    JobCancel = at("/v1/jobs/{id}/cancel").post(SUBMIT);
    JobDismiss = at("/v1/jobs/{id}/dismiss").post(SUBMIT);
    JobRetry = at("/v1/jobs/{id}/retry").post(SUBMIT);
    BulkCancel = at("/v1/bulk/{id}/cancel").post(SUBMIT);
    Bulk = at("/v1/bulk/{id}").get(READ).shared();
    Bulks = at("/v1/bulk").get(READ).post(SUBMIT).shared();
    SessionSocket = at("/v1/sessions/{id}/ws").get_alone(READ);
    Session = at("/v1/sessions/{id}").get(READ).delete(SUBMIT).shared();
    Sessions = at("/v1/sessions").get(READ).post(SUBMIT).shared();
    JobEvents = at("/v1/jobs/{id}/events").get_alone(READ);
    Events = at("/v1/events").get_alone(ADMIN).for_all();
    PlanStart = at("/v1/plans/{plan}/start").post(SUBMIT);
    PlanPause = at("/v1/plans/{plan}/pause").post(SUBMIT);
    PlanResume = at("/v1/plans/{plan}/resume").post(SUBMIT);
    PlanCancel = at("/v1/plans/{plan}/cancel").post(SUBMIT);
    PlanTasks = at("/v1/plans/{plan}/tasks").get(READ).shared();
    PlanEvents = at("/v1/plans/{plan}/events").get_alone(READ);
    Plan = at("/v1/plans/{plan}").get(READ).shared();
    Plans = at("/v1/plans").get(READ).post(SUBMIT).shared();
    StageResolve = at("/v1/tasks/{task}/stages/{stage}/resolve").post(ADMIN);
    TaskPause = at("/v1/tasks/{task}/pause").post(SUBMIT);
    TaskResume = at("/v1/tasks/{task}/resume").post(SUBMIT);
    TaskCancel = at("/v1/tasks/{task}/cancel").post(SUBMIT);
    TaskRetry = at("/v1/tasks/{task}/retry").post(SUBMIT);
    TaskStages = at("/v1/tasks/{task}/stages").get(READ);
    TaskCheckpoints = at("/v1/tasks/{task}/checkpoints").get(READ).shared();
    TaskEvents = at("/v1/tasks/{task}/events").get_alone(READ);
    Task = at("/v1/tasks/{task}").get(READ).shared();
    TenantRetry = at("/v1/tenants/{tenant}/retry").post(SUBMIT);
    TenantUnlock = at("/v1/tenants/{tenant}/unlock").post(ADMIN);
    TenantTasks = at("/v1/tenants/{tenant}/tasks").get(READ).shared();
    Tenant = at("/v1/tenants/{tenant}").get(READ).shared();
    NodeSocket = at("/v1/nodes/ws").get_alone(NODE);
    NodeSelect = at("/v1/nodes/select").post(READ).for_all();
    Nodes = at("/v1/nodes").get(READ);
    Node = at("/v1/nodes/{id}").get(READ);
    NodeDrain = at("/v1/nodes/{id}/drain").post(ADMIN);
    NodeUndrain = at("/v1/nodes/{id}/undrain").post(ADMIN);
    Pools = at("/v1/config/pools").get(READ).put(ADMIN).shared();
    PoolPause = at("/v1/pools/{pool}/pause").post(ADMIN);
    PoolResume = at("/v1/pools/{pool}/resume").post(ADMIN);
    Snowflakes = at("/v1/ids/snowflake").get_alone(SUBMIT).without_ledger();
    Uuids = at("/v1/ids/uuid").get_alone(SUBMIT).without_ledger();
    Segments = at("/v1/ids/segments").get(SUBMIT).shared();
    Segment = at("/v1/ids/segments/{tag}").get_alone(SUBMIT).put(ADMIN);
    Sequences = at("/v1/ids/sequences").get(SUBMIT);
    Sequence = at("/v1/ids/sequences/{name}").get_alone(SUBMIT).put(ADMIN);
    Snowflake = at("/v1/ids/snowflake/{id}").get(SUBMIT).without_ledger();
    LeafSegment = at("/api/segment/get/{tag}").get_alone(SUBMIT);
    LeafSnowflake = at("/api/snowflake/get/{key}").get_alone(SUBMIT).without_ledger();
    Audit = at("/v1/audit").get(ADMIN).shared().for_all();
    Stats = at("/v1/stats").get(READ).shared().for_all();
    Metrics = at("/metrics").get(KNOWN).for_all().without_ledger();
    Document = at("/openapi.json").get(KNOWN).without_ledger();
    Whoami = at("/v1/whoami").get(KNOWN).without_ledger();
    Page = at("/").get(OPEN).without_ledger();
    Asset = at("/assets/{file}").get(OPEN).without_ledger();
}

impl Route {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The path, with `{…}` for a segment that varies. The label in metrics and logs.
    pub fn pattern(self) -> &'static str {
        self.row().pattern
    }

    /// The access that a request with this method requires. A method that the path does not take is refused to every caller with
    /// a token alike: no scope would help.
    pub fn access(self, method: &Method) -> Access {
        match self.taken(method) {
            Some(access) => access,
            None if self.row().get == Some(Access::Open) => Access::Open,
            None => Access::Known,
        }
    }

    /// The access that this method requires; `None` if the path does not take it.
    fn taken(self, method: &Method) -> Option<Access> {
        let row = self.row();
        match *method {
            Method::GET => row.get,
            Method::HEAD if row.takes_head => row.get,
            Method::POST => row.post,
            Method::PUT => row.put,
            Method::DELETE => row.delete,
            _ => None,
        }
    }

    /// Whether the path takes this method.
    pub fn takes(self, method: &Method) -> bool {
        self.taken(method).is_some()
    }

    /// The methods that the path takes, in the order of their names.
    pub fn methods(self) -> impl Iterator<Item = Method> {
        let known = [Method::DELETE, Method::GET, Method::HEAD, Method::POST, Method::PUT];
        known.into_iter().filter(move |method| self.takes(method))
    }

    /// The same, as the header `Allow` lists them.
    pub fn allow(self) -> &'static str {
        static ALLOW: LazyLock<Vec<String>> = LazyLock::new(|| {
            let names = |route: &Route| route.methods().map(|method| method.to_string()).collect::<Vec<_>>();
            Route::ALL.iter().map(|route| names(route).join(", ")).collect()
        });
        &ALLOW[self as usize]
    }

    /// The paths of probes.
    pub const PROBES: [Self; 2] = [Self::Health, Self::Ready];

    /// Whether a request with this method is a probe, whose answer shows no data and changes nothing.
    pub fn is_probed_by(self, method: &Method) -> bool {
        matches!(*method, Method::GET | Method::HEAD) && Self::PROBES.contains(&self)
    }

    /// Whether callers who accept it share an answer to GET.
    pub fn is_shared(self) -> bool {
        self.row().is_shared
    }

    /// Whether the path shows or changes what belongs to all.
    pub fn is_for_all(self) -> bool {
        self.row().is_for_all
    }

    /// Whether the path is served also before the ledger is reached.
    pub fn needs_no_ledger(self) -> bool {
        self.row().needs_no_ledger
    }
}

/// The paths as [`find`] looks for them, for each request: by their number of slashes; each with its fixed beginning.
static INDEX: LazyLock<Vec<Vec<(&'static str, Route)>>> = LazyLock::new(|| {
    let mut index: Vec<Vec<_>> = Vec::new();
    for route in Route::ALL.iter().copied() {
        let pattern = route.pattern();
        let begin = pattern.split_once('{').map_or(pattern, |(begin, _)| begin);
        let slashes = slashes(pattern);
        index.resize_with(index.len().max(slashes + 1), Vec::new);
        index[slashes].push((begin, route));
    }
    index
});

/// The route of a path. Its percent-encoding must be undone exactly as the router does it, or a path could be served under
/// another's access.
pub fn find(path: &str) -> Option<Route> {
    let alike = INDEX.get(slashes(path))?;
    let found = alike.iter().find(|(begin, route)| path.starts_with(begin) && matches(route.pattern(), path));
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
        for route in Route::ALL {
            let segments: Vec<&str> = route.pattern().split('/').collect();
            for at in 0..segments.len() {
                for word in words {
                    let mut other = segments.clone();
                    other[at] = word;
                    paths.push(other.join("/"));
                }
            }
            paths.push(format!("{}/x", route.pattern()));
        }
        for path in paths {
            let looked = Route::ALL.iter().copied().find(|route| matches(route.pattern(), &path));
            assert_eq!(find(&path), looked, "{path}");
        }
    }

    #[test]
    fn a_method_that_a_path_does_not_take_needs_a_token_and_no_scope() {
        for (route, method, access) in [
            (Route::Leases, Method::GET, READ),
            (Route::Leases, Method::HEAD, READ),
            (Route::Leases, Method::POST, Access::Known),
            (Route::Leases, Method::DELETE, Access::Known),
            (Route::Settlements, Method::GET, Access::Known),
            (Route::Settlements, Method::POST, SUBMIT),
            (Route::Mode, Method::PUT, ADMIN),
            (Route::Mode, Method::DELETE, Access::Known),
            (Route::Job, Method::DELETE, SUBMIT),
            (Route::Events, Method::HEAD, Access::Known),
            (Route::Signer, Method::from_bytes(b"GE").unwrap(), Access::Known),
            (Route::Health, Method::GET, Access::Open),
            (Route::Health, Method::POST, Access::Open),
        ] {
            assert_eq!(route.access(&method), access, "{method} {}", route.pattern());
        }
    }

    #[test]
    fn only_health_and_readiness_are_probed() {
        let probed: Vec<_> = Route::ALL.iter().filter(|route| route.is_probed_by(&Method::GET)).collect();
        assert_eq!(probed, [&Route::Health, &Route::Ready]);
        assert!(Route::Ready.is_probed_by(&Method::HEAD) && !Route::Ready.is_probed_by(&Method::POST));
    }

    #[test]
    fn paths_find_their_route_and_no_other() {
        for (path, route) in [
            ("/", Some(Route::Page)),
            ("/healthz", Some(Route::Health)),
            ("/healthz/", None),
            ("/v1/signers", Some(Route::Signers)),
            ("/v1/signers/", None),
            ("/v1/signers/eip155:1:0xab", Some(Route::Signer)),
            ("/v1/signers/x/nonces", Some(Route::Nonces)),
            ("/v1/signers//nonces", None),
            ("/v1/signers/x/nonces/0/resolve", Some(Route::Resolve)),
            ("/v1/signers/x/nonces/0/resolve/", None),
            ("/v1/signers/x/nonces/0", None),
            ("/v1/ids/segments", Some(Route::Segments)),
            ("/v1/ids/segments/order", Some(Route::Segment)),
            ("/v1/ids/sequences", Some(Route::Sequences)),
            ("/v1/ids/sequences/order", Some(Route::Sequence)),
            ("/api/segment/get/order", Some(Route::LeafSegment)),
            ("/api/segment/get/", None),
            ("/v2/signers", None),
            ("", None),
        ] {
            assert_eq!(find(path), route, "{path}");
        }
    }
}
