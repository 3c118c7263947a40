//! Several URLs where nobody is.

use super::*;
use crate::socket::stand_in::PATIENCE;

#[tokio::test]
async fn where_nobody_is_reached_the_error_names_every_url() {
    let dead = [StandIn::dead(), StandIn::dead(), StandIn::dead()];
    let servers: Vec<_> = dead.iter().collect();
    // The second round ends with its first attempt.
    let error = grant(&bounded(&servers, 4, PATIENCE)).await.unwrap_err();
    let Error::Unreachable { url, others, .. } = &error else { panic!("{error:?}") };
    let mut named: Vec<_> = others.iter().chain([url]).collect();
    let mut given: Vec<_> = dead.iter().map(|nobody| &nobody.url).collect();
    named.sort_unstable();
    given.sort_unstable();
    assert_eq!(named, given);
    assert!(given.iter().all(|url| error.to_string().contains(url.as_str())), "{error}");
}
