//! The drain of a node whose socket is gone.

use bus::{Epoch, NodeState, Version};
use domain::NodeId;
use ledger::AuditFilter;
use nodes::{Load, Profile, Record, Stamp, Status};

use super::*;

#[actix_web::test]
async fn the_drain_of_a_node_whose_socket_is_gone_is_refused_and_not_noted() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    let service = init_service(app(&forwarder(&state))).await;
    let incarnation = state.incarnation();
    let profile = Profile::new(NodeId::parse("n").unwrap(), incarnation.identity.id.clone(), 2_000);
    let record = Record {
        stamp: Stamp { epoch: Epoch::new(1), version: Version::new(1) },
        profile: Arc::new(profile),
        status: Status { capacity: 1, used: 0, is_complete: true, state: NodeState::Accepting },
        load: Load::default(),
    };
    incarnation.registry.recorded(record, Instant::now());
    let shown = TestRequest::get().insert_header(LOCAL).uri("/v1/nodes/n").to_request();
    assert_eq!(call_service(&service, shown).await.status(), StatusCode::OK, "its record is still there");
    for path in ["/v1/nodes/n/drain", "/v1/nodes/n/undrain"] {
        let request = TestRequest::post().insert_header(LOCAL).uri(path).to_request();
        let answer = call_service(&service, request).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let noted = state.ledger.audits(&AuditFilter { limit: 10, ..AuditFilter::default() }).await.unwrap();
    assert!(noted.is_empty(), "{noted:?}");
}
