//! Requests for an instance that is not reached.

use cluster::KeyOwner;
use domain::{Resource, SignerId, Timestamp};
use ledger::{Lease, Peer};
use wire::Code;

use super::*;
use crate::forwarder::ForwardedRequest;

/// A live instance that has been on the ring for long.
fn peer(id: &InstanceId, url: &str) -> Peer {
    let lease = Lease {
        resource: Resource::instance(id),
        owner: Some(id.clone()),
        token: domain::Token::new(1),
        acquired_at: Timestamp::from_micros(0),
        renewed_at: Timestamp::from_micros(0),
        expires_in_ms: 60_000,
    };
    Peer { id: id.clone(), url: url.to_owned(), lease, age_ms: 60_000 }
}

#[actix_web::test]
async fn an_instance_that_a_request_for_it_does_not_reach_is_avoided_and_its_address_is_told() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    let incarnation = state.incarnation();
    let (me, view) = (&incarnation.identity, &incarnation.cluster_view);
    // Nobody listens there, and nobody renews what is known of the instances.
    let (away, url) = (InstanceId::parse("away-1").unwrap(), "http://127.0.0.1:1");
    view.saw(vec![peer(&me.id, &me.url), peer(&away, url)]);
    let keys = (0..).map(|number| Resource::signer(&SignerId::parse(&format!("signer-{number}")).unwrap()));
    let theirs = keys.take(1_000).find(|key| view.owner_of(key) != KeyOwner::Here).unwrap();

    let request = ForwardedRequest::own(&state.settings.auth.named("").unwrap(), "r-1");
    let Err(refusal) = forwarder(&state).to_instance(&request, &away).await else {
        panic!("it was answered")
    };
    assert_eq!(refusal.code(), Code::NotOwner, "{refusal}");
    assert!(refusal.to_string().contains("could not be reached from here"), "{refusal}");
    assert_eq!(refusal.owner_and_url(), (Some(away.to_string()), Some(url.to_owned())));
    assert_eq!(view.owner_of(&theirs), KeyOwner::Here);
}
