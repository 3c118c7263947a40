//! Bulk operations, as an instance takes them that works on as many as it may.

use std::time::Instant;

use domain::BulkId;
use ledger::{BulkAction, BulkMade, JobFilter, NewBulk};

use super::*;
use crate::bulk::runner::{Kept, take};
use crate::limits::{BULK_LEFT_MAX, BULKS_AT_ONCE};

/// An operation of this token that an instance has left, since it does not know the token.
async fn left(state: &State, n: u128, principal: &str) -> BulkId {
    let id = BulkId::from_u128(n);
    let new = NewBulk {
        id,
        principal: principal.to_owned(),
        action: BulkAction::Dismiss,
        filter: JobFilter::default(),
        before: state.ledger.bulk_now().await.unwrap(),
        rate: 1,
        matched: 0,
        owner: InstanceId::parse("other-1").unwrap(),
        key_hash: None,
        body_hash: "h".to_owned(),
    };
    let BulkMade::Made(made) = state.ledger.create_bulk(&new, None).await.unwrap() else {
        panic!("it is new");
    };
    state.ledger.leave_bulk(&made).await.unwrap().unwrap();
    id
}

#[actix_web::test]
async fn an_instance_without_room_takes_what_others_left_if_it_knows_the_token() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::tokens(vec![token("ops", Scope::Submit)])).await;
    let (known, unknown) = (left(&state, 1, "ops").await, left(&state, 2, "other").await);
    let (forwarder, mut kept, now) = (forwarder(&state), Kept::default(), Instant::now());
    kept.running.borrow_mut().extend((10..).take(BULKS_AT_ONCE).map(BulkId::from_u128));
    let owner = async |id| state.ledger.bulk(id).await.unwrap().unwrap().owner;
    let nobody = owner(unknown).await;

    take(&forwarder, &mut kept, now).await.unwrap();
    assert_eq!(owner(known).await, nobody, "an instance with room may take it");
    take(&forwarder, &mut kept, now + BULK_LEFT_MAX).await.unwrap();
    assert_eq!(owner(known).await, state.incarnation().identity.id);
    assert_eq!(owner(unknown).await, nobody);
    assert_eq!(kept.running.borrow().len(), BULKS_AT_ONCE, "it waits for its turn");
}
