//! One suite for every bus: each case is written once, against the trait, and run in process, on a single
//! Redis and on a Redis Cluster. What only servers can do wrong is in `outages`, `inbox_outages`, `node_outages`,
//! `failover`, `settings` and `tls`, what strangers may try in `hostile`; that records of nodes are alike everywhere, step by
//! step, in `likeness`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod bench;
mod failover;
mod hostile;
mod inbox_outages;
mod inboxes;
mod life;
mod likeness;
mod node_outages;
mod nodes;
mod notices;
mod outages;
mod presence;
mod sessions;
mod settings;
mod slots;
mod tls;
mod vouching;

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
        handles_that_share_a_bus_name_it_alike_and_others_otherwise,
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
        a_wait_that_is_given_up_loses_nothing,
        what_is_told_on_one_channel_is_not_heard_on_another;
    inboxes:
        entries_arrive_in_order_and_as_they_were_sent,
        what_was_read_and_not_settled_is_given_out_first_to_the_next_reader,
        nothing_is_lost_however_often_the_reader_crashes,
        what_idles_is_given_out_again_and_what_was_settled_is_not,
        a_full_inbox_refuses_and_keeps_what_it_has,
        an_inbox_that_was_never_opened_takes_nothing,
        what_is_sent_while_a_survivor_drains_is_drained_or_undeliverable,
        a_closed_inbox_stays_closed_and_its_reader_ends,
        an_inbox_that_its_owner_takes_back_is_opened_again,
        an_inbox_with_something_in_it_is_not_closed,
        waiting_in_vain_loses_nothing,
        a_closed_bus_reads_and_sends_nothing,
        more_than_the_limit_is_refused_and_nothing_sent;
    nodes:
        a_record_shows_what_its_holder_said,
        the_version_rises_when_there_is_something_to_see,
        a_record_ends_with_its_time_unless_it_is_refreshed,
        versions_and_epochs_never_go_back,
        an_older_connection_writes_nothing,
        a_node_belongs_to_whose_token_connected_it_as_long_as_it_is_online,
        a_new_connection_frees_what_does_not_run_and_keeps_what_is_reserved,
        a_node_that_went_offline_shows_it_and_has_no_slots,
        a_record_that_is_withdrawn_says_nothing_of_its_node,
        hundreds_of_records_are_shown_at_once,
        each_instance_lists_its_nodes_and_others_read_the_lists,
        a_list_is_changed_or_written_anew,
        of_a_node_in_two_lists_the_higher_version_is_found,
        a_list_ends_with_its_time_unless_it_is_refreshed,
        ten_thousand_nodes_of_an_instance_are_read_at_once,
        more_of_a_node_than_the_limit_is_refused,
        a_closed_bus_says_nothing_of_nodes;
    slots:
        nothing_is_reserved_until_all_slots_are_known,
        a_slot_is_reserved_then_sent_then_free,
        a_slot_is_passed_on_with_nobody_in_between,
        reserving_again_changes_nothing,
        a_reservation_ends_with_its_time_and_what_was_sent_does_not,
        what_a_later_owner_reserved_an_earlier_one_cannot_give_back,
        a_node_that_drains_reserves_nothing_new_and_sends_what_was_reserved,
        what_runs_beyond_the_capacity_counts,
        fifty_at_once_never_take_more_than_the_capacity;
    vouching:
        nothing_is_reserved_that_nobody_vouches_for,
        nothing_is_reserved_of_what_is_lent_to_the_holder,
        a_recount_is_all_that_was_sent_and_leaves_what_is_reserved,
        an_older_connection_takes_no_node_from_a_younger_one,
        of_two_connections_of_one_age_the_one_that_came_last_keeps_the_node,
        an_old_connection_that_comes_late_takes_no_node_from_a_younger_one;
    sessions:
        a_bound_session_is_found_by_others_as_it_was_said,
        an_earlier_owner_neither_binds_nor_unbinds,
        a_binding_ends_with_its_time_unless_it_is_said_again,
        a_session_is_bound_for_no_longer_than_the_limit,
        a_closed_bus_says_nothing_of_sessions,
        the_same_steps_are_answered_as_in_process;
    life:
        the_link_is_up_from_the_opening_on,
        a_healthy_bus_gives_no_warning,
        a_closed_bus_refuses_and_ends_its_subscriptions;
}
