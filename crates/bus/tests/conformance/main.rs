//! One suite for every bus: each case is written once, against the trait, and run in process, on a single
//! Redis and on a Redis Cluster. What only servers can do wrong is in `outages`, `failover`, `settings` and `tls`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod bench;
mod failover;
mod life;
mod notices;
mod outages;
mod presence;
mod settings;
mod tls;

/// Runs every case on every bus. A case is an async function that takes a [`bench::Bench`].
macro_rules! on_every_bus {
    ($($room:ident: $($case:ident),+;)+) => {
        mod local {
            $(mod $room { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() { crate::$room::$case(crate::bench::Bench::local()).await; }
            )+ })+
        }
        mod redis {
            $(mod $room { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() { crate::$room::$case(crate::bench::Bench::redis().await).await; }
            )+ })+
        }
        mod redis_cluster {
            $(mod $room { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() { crate::$room::$case(crate::bench::Bench::redis_cluster().await).await; }
            )+ })+
        }
    };
}

on_every_bus! {
    presence:
        an_announced_instance_is_seen_by_another_as_it_said,
        who_never_announced_is_not_present,
        an_announcement_takes_the_place_of_the_one_before,
        a_presence_ends_with_its_time_unless_announced_again,
        a_withdrawn_instance_is_gone_at_once,
        a_thousand_instances_are_asked_for_at_once,
        what_is_too_large_or_too_long_is_refused;
    notices:
        every_subscriber_of_every_instance_hears_everything_in_order,
        a_subscriber_hears_what_comes_after_it_subscribed,
        bytes_arrive_as_they_were_sent,
        a_notice_that_is_too_large_is_refused_and_not_sent,
        a_slow_subscriber_is_told_how_much_it_missed,
        a_wait_that_is_given_up_loses_nothing;
    life:
        the_link_is_up_from_the_opening_on,
        a_healthy_bus_gives_no_warning,
        a_closed_bus_refuses_and_ends_its_subscriptions;
}
