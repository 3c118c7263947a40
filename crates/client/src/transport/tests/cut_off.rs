//! Calls whose time ends in the middle of an attempt.

use super::*;

/// What a call with little time ends with that asks this instance.
async fn end(server: &StandIn, changes: bool) -> Error {
    let client = bounded(&[server], 5, Duration::from_secs(1));
    match changes {
        true => grant(&client).await.unwrap_err(),
        false => client.signer("s").await.unwrap_err(),
    }
}

#[tokio::test]
async fn a_read_ends_with_the_refusal_of_the_attempt_before() {
    for code in [Code::LedgerUnavailable, Code::Draining, Code::NotOwner] {
        let server = StandIn::playing(vec![refused(code, Some(1)), Act::Hold]).await;
        let error = end(&server, false).await;
        assert_eq!(error.problem().and_then(Problem::known_code), Some(code), "{error:?}");
        assert_eq!(server.heard().len(), 2);
    }
}

#[tokio::test]
async fn a_change_ends_as_lost_whatever_the_attempt_before_was_refused_for() {
    // Also for what leaves a doubt in general: it may have been refused before anything was read.
    for code in [Code::LedgerUnavailable, Code::Draining] {
        let server = StandIn::playing(vec![refused(code, Some(1)), Act::Hold]).await;
        let error = end(&server, true).await;
        assert!(matches!(&error, Error::Lost { url, .. } if *url == server.url), "{error:?}");
        let said = format!("; the attempt before was refused: {code}: because");
        assert!(error.may_be_done() && error.to_string().ends_with(&said), "{error}");
        assert_eq!(server.heard().len(), 2);
    }
}

#[tokio::test]
async fn a_refusal_before_an_attempt_that_ended_otherwise_is_forgotten() {
    let script = vec![refused(Code::Draining, Some(1)), Act::HangUp, Act::Hold];
    let server = StandIn::playing(script).await;
    let error = end(&server, false).await;
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert_eq!(server.heard().len(), 3);
}

#[tokio::test]
async fn a_named_owner_that_is_silent_is_told_of() {
    for changes in [false, true] {
        let owner = StandIn::playing(vec![Act::Hold]).await;
        let entry = StandIn::playing(vec![owned_by(&owner.url, 1)]).await;
        let error = end(&entry, changes).await;
        let is_of_owner = |url: &str, reason: &str| url == owner.url && reason == "no answer in time";
        assert!(matches!(&error, Error::Lost { url, reason, .. } if is_of_owner(url, reason)), "{error:?}");
        assert_eq!((entry.heard().len(), owner.heard().len()), (1, 1));
    }
}
