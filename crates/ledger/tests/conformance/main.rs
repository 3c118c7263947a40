//! One suite for every ledger: each case is written once, against the traits, and run on SQLite and on
//! PostgreSQL. What only a server can do wrong is in `interleavings`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

/// The text of a statement as it is sent, by its folder and its name.
macro_rules! sql {
    ($statement:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/sql/", $statement, ".sql"))
    };
}

mod audit;
mod bench;
mod bulks;
mod confirmations;
mod cuts;
mod failover;
mod fence;
mod ids;
mod instances;
mod interleavings;
mod job_lanes;
mod job_lists;
mod job_plans;
mod job_random;
mod job_retries;
mod jobs;
mod keys;
mod leases;
mod lock_room;
mod nonce_plans;
mod nonces;
mod opening;
mod plan_histories;
mod plan_owner;
mod plan_reads;
mod plan_steps;
mod plans;
mod poison;
mod proxy;
mod recovery;
mod session_places;
mod sessions;
mod settings;
mod shop;
mod standbys;
mod traffic;
mod trains;
mod transfers;
mod writability;

/// Runs every case on every ledger. A case is an async function that takes a [`bench::Bench`].
macro_rules! on_every_ledger {
    ($($room:ident: $($case:ident),+;)+) => {
        mod sqlite {
            $(mod $room { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() { crate::$room::$case(crate::bench::Bench::sqlite().await).await; }
            )+ })+
        }
        mod postgres {
            $(mod $room { $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() { crate::$room::$case(crate::bench::Bench::postgres().await).await; }
            )+ })+
        }
    };
}

on_every_ledger! {
    leases:
        every_acquisition_raises_the_token,
        a_live_lease_is_refused_with_owner_and_time_left,
        a_lease_that_ran_out_is_taken_with_the_next_token,
        a_dead_owners_lease_is_taken_before_it_runs_out,
        a_living_owners_lease_is_not_taken_over,
        a_release_keeps_the_token,
        a_release_under_an_old_token_ends_nothing,
        a_bulk_release_ends_the_named_leases_and_no_others,
        one_of_many_first_askers_wins,
        a_renewal_lengthens_and_leaves_the_token,
        a_renewal_revives_a_lease_that_nobody_took,
        a_bulk_renewal_never_revives_a_released_lease,
        a_renewal_under_an_old_token_or_name_does_nothing,
        a_bulk_renewal_takes_a_thousand_and_answers_those_renewed,
        leases_are_listed_by_kind_owner_and_cursor;
    fence:
        stale_owner_cannot_insert_an_untouched_nonce,
        stale_owner_cannot_change_a_nonce,
        stale_owner_cannot_set_a_policy_or_keep_a_key,
        a_released_lease_admits_no_write,
        nobody_writes_without_a_lease,
        a_step_that_takes_locks_does_not_leave_once_its_lease_is_past,
        a_successor_sees_all_that_its_predecessors_committed;
    nonces:
        a_grant_is_loaded_by_the_next_owner,
        a_batch_with_one_wrong_row_writes_nothing,
        settlements_move_rows_and_keep_the_hold,
        a_consumed_nonce_gets_its_transaction_under_its_hold,
        a_hold_expires_only_when_the_database_says_so,
        holes_come_lowest_first_and_say_whether_there_are_more,
        a_policy_is_kept_whole,
        signers_are_counted_and_listed,
        nonces_are_listed_by_state_and_cursor,
        overdue_signers_are_those_without_a_live_owner,
        a_thousand_nonces_fit_one_batch,
        odd_but_legal_texts_survive;
    audit:
        every_change_of_an_operator_has_one_entry,
        a_page_of_long_entries_ends_early_and_only_an_empty_one_is_the_end,
        nothing_is_changed_where_its_entry_cannot_be_written,
        no_lock_is_broken_no_signer_confirmed_and_nothing_recovered_without_an_entry;
    recovery:
        a_ledger_that_is_behind_is_noticed_and_grants_nothing,
        no_bulk_operation_goes_on_in_a_ledger_that_is_behind,
        what_a_node_reports_is_neither_written_to_a_ledger_that_is_behind_nor_stale,
        a_ledger_that_went_back_is_noticed_by_what_the_process_has_seen,
        a_recovery_goes_past_all_that_was_granted,
        no_bulk_operation_goes_on_after_a_recovery,
        leases_that_a_recovered_ledger_does_not_know_begin_above_all_that_were_given,
        sessions_and_plans_of_a_recovered_ledger_go_on_past_what_they_may_have_had,
        who_follows_a_plan_misses_nothing_that_a_recovered_ledger_adds,
        no_worker_number_is_used_until_all_marks_are_past_that_may_have_been_committed,
        a_later_recovery_with_a_shorter_lead_says_how_far_the_marks_are,
        a_recovery_skips_the_ranges_that_instances_may_have_in_memory,
        what_a_recovered_ledger_may_have_lost_begins_where_its_request_says,
        a_recovery_names_the_sequences_and_segments_that_it_takes_to_their_end,
        a_trial_changes_nothing_and_migrates_no_tables;
    confirmations:
        a_signer_that_a_recovered_ledger_does_not_know_waits_until_it_is_confirmed,
        a_confirmed_signer_goes_on_where_its_chain_is,
        a_signer_that_lost_many_nonces_waits_until_the_last_of_them_is_added,
        a_mistyped_nonce_is_taken_back_until_the_last_one_is_added,
        no_nonce_that_was_granted_is_taken_back_with_a_mistyped_one,
        a_signer_confirmed_below_its_first_nonce_grants_from_there,
        a_nonce_far_below_a_signers_first_one_is_not_confirmed,
        a_mistyped_nonce_is_taken_back_before_one_below_the_first_is_confirmed,
        a_nonce_that_was_used_is_not_confirmed_as_the_next_one,
        a_confirmation_may_be_repeated_and_changes_nothing_then,
        what_may_have_been_sent_after_the_backup_is_quarantined,
        no_hold_from_before_a_confirmation_settles_what_it_quarantined;
    keys:
        a_key_is_kept_with_its_batch_and_taken_afterwards,
        a_key_is_not_kept_with_a_batch_that_failed,
        one_of_many_requests_under_one_key_is_written,
        old_keys_are_purged_in_steps,
        a_purge_of_keys_goes_on_where_the_step_before_it_ended;
    poison:
        every_kind_of_bad_data_is_told_so_and_sinks_nobody_else,
        one_of_two_signers_that_keep_the_same_key_is_written;
    trains:
        what_is_wrong_with_one_batch_sinks_nobody_else,
        a_batch_follows_another_and_is_lost_with_it;
    traffic:
        trains_takeovers_and_renewals_get_on_with_each_other;
    jobs:
        each_change_is_written_where_the_domain_allows_it_and_nowhere_else,
        only_the_node_that_has_the_attempt_may_speak_of_it,
        a_lane_writes_new_jobs_attempts_and_good_ends_in_one_batch,
        a_job_keeps_all_that_it_was_told_to_its_end,
        kind_and_metadata_are_kept_whichever_way_a_job_takes,
        a_result_is_written_once,
        of_racing_results_one_is_written,
        the_result_of_a_revoked_attempt_is_stale,
        a_write_that_is_stale_sinks_nobody_else,
        past_attempts_and_reasons_are_bounded,
        an_id_that_is_used_already_is_refused_and_sinks_nobody_else,
        a_key_is_kept_with_its_job_and_taken_afterwards,
        a_selection_is_kept_under_its_key_once,
        of_many_submits_under_one_key_one_is_written,
        a_slot_is_noted_free_once_and_only_of_a_finished_job,
        a_slot_of_an_earlier_attempt_is_not_noted_as_the_last_ones,
        what_is_wrong_with_a_batch_of_jobs_is_refused_before_it_boards;
    job_lanes:
        a_stale_owner_writes_nothing_of_its_lane,
        an_owner_writes_nothing_of_another_lane,
        jobs_in_flight_are_paged_by_lane_and_listed_by_node,
        how_long_an_attempt_has_been_running_is_read_with_it,
        a_job_is_read_with_the_node_of_its_last_attempt_that_is_over,
        who_holds_a_node_is_noted_with_the_attempts_that_it_has,
        groups_that_wait_are_found_one_by_one,
        a_group_waits_by_priority_then_place_then_age,
        a_page_of_a_group_has_no_job_that_needs_something_else,
        delayed_jobs_that_are_due_are_promoted_by_their_owner_alone,
        delayed_jobs_come_when_they_are_due,
        lanes_without_a_live_owner_are_found,
        lanes_of_one_lease_are_written_side_by_side_and_fenced_together,
        lanes_under_a_lease_that_the_caller_has_are_found,
        a_job_to_be_held_is_never_dispatched_again_once_its_lane_had_another_owner,
        only_the_owner_of_a_lane_holds_its_jobs,
        the_last_place_given_in_a_session_is_known,
        a_lane_with_unfinished_jobs_keeps_its_token,
        pages_end_before_they_are_too_large,
        a_batch_that_the_tables_refuse_sinks_nobody_else;
    sessions:
        a_session_keeps_all_that_was_asked_of_it,
        sessions_are_listed_by_id_page_by_page_all_open_or_closed,
        sessions_are_listed_by_tenant_and_pool,
        a_key_is_kept_with_its_session_and_answers_again,
        a_token_has_so_many_open_sessions_and_a_closed_one_makes_room,
        an_opening_said_again_makes_nothing_new,
        of_many_openings_under_one_key_one_is_made,
        what_is_wrong_with_a_session_is_refused,
        a_session_is_closed_by_the_owner_of_its_lane_alone,
        a_session_is_idle_since_the_last_that_happened_in_it,
        idle_sessions_are_found_page_by_page,
        closed_sessions_are_forgotten_when_nothing_names_them,
        instances_are_forgotten_without_the_leases_of_sessions;
    session_places:
        a_line_is_read_by_places_with_the_time_until_each_is_due,
        a_line_ends_before_it_is_too_large,
        the_attempt_that_was_taken_back_last_is_named_if_it_may_never_have_been_sent,
        an_attempt_that_was_taken_back_lately_is_named_whatever_was_cancelled_behind_it,
        a_job_begins_only_with_the_end_of_the_one_before_it,
        results_are_read_by_places_from_both_tables,
        results_come_with_whether_their_session_is_open,
        results_end_before_they_are_too_large,
        the_refs_of_a_sessions_jobs_are_read_by_places_from_both_tables,
        many_sessions_are_read_at_once_and_each_gets_its_own,
        a_session_counts_its_jobs_and_knows_its_last_node,
        the_last_node_is_looked_for_at_so_many_places_and_no_more,
        an_answer_under_a_key_names_the_place,
        a_place_is_not_given_again_when_its_job_is_forgotten,
        a_reader_that_follows_sees_every_place_once;
    job_lists:
        jobs_are_listed_by_every_filter_newest_first,
        jobs_are_listed_by_some_sessions,
        the_states_of_jobs_are_read_without_the_jobs,
        a_list_reads_the_last_past_attempt_of_an_unfinished_job_alone,
        a_cursor_goes_on_where_the_page_ended,
        jobs_are_counted_by_pool_tenant_and_state,
        old_finished_jobs_are_forgotten_in_steps;
    job_retries:
        a_retried_job_names_the_newest_job_that_retries_it,
        a_job_is_retried_once_by_those_that_ask_for_that,
        a_retry_whose_key_is_taken_is_named_nowhere,
        a_stale_owner_retries_nothing,
        of_many_retries_of_one_job_one_is_written,
        only_dead_jobs_are_dismissed_and_then_they_are_not_dead,
        finished_jobs_are_deleted_and_their_places_are_not_given_again,
        lists_tell_dead_and_retried_jobs_from_others;
    bulks:
        a_bulk_operation_is_kept_as_it_was_asked_for,
        a_key_makes_one_bulk_operation,
        a_key_is_free_again_after_its_time_once_its_bulk_operation_is_over,
        only_so_many_bulk_operations_are_under_way,
        a_bulk_operation_is_about_the_jobs_of_its_filter_and_time,
        a_bulk_operation_of_a_caller_of_one_tenant_reads_no_others,
        a_scan_is_bounded_and_scans_together_find_every_job_once,
        a_retry_finds_no_job_of_a_closed_session,
        jobs_that_were_made_long_after_its_time_are_not_read,
        an_owner_that_was_replaced_writes_nothing,
        jobs_are_deleted_if_they_are_as_dead_as_the_filter_says_when_their_turn_comes,
        what_matched_and_was_not_found_is_skipped_when_an_operation_is_done,
        a_dead_job_is_not_deleted_with_those_that_are_not,
        a_job_that_a_task_waits_for_is_not_deleted_with_others,
        a_bulk_operation_of_a_live_owner_is_left_to_it,
        a_bulk_operation_that_cannot_be_read_keeps_its_owner_and_is_in_no_list,
        a_cancelled_bulk_operation_begins_no_page,
        old_bulk_operations_are_forgotten_in_steps;
    job_random:
        random_events_come_to_what_the_domain_says,
        whatever_everybody_says_at_once_every_job_has_one_result,
        a_job_is_on_a_train_once;
    plan_steps:
        a_plan_and_all_its_tasks_are_made_in_one_commit,
        a_step_writes_rows_locks_jobs_and_history_together,
        a_stale_owner_of_a_plan_writes_nothing,
        a_key_of_a_retry_is_kept_with_its_step_and_counts_once,
        a_step_that_was_decided_on_an_older_row_writes_nothing,
        steps_of_many_plans_are_written_together_and_judged_one_by_one,
        all_locks_of_a_plan_are_taken_or_none,
        a_lock_that_is_gone_stops_what_goes_on_under_it_and_nothing_else,
        a_lock_that_ran_out_is_the_next_plans,
        a_plan_that_is_made_and_started_takes_all_locks_or_is_not_made,
        the_job_of_a_stage_is_kept_while_its_plan_waits_for_the_result,
        a_key_makes_one_plan,
        a_step_renews_the_locks_that_it_holds,
        a_lock_is_broken_at_its_token_and_the_history_says_by_whom,
        plans_that_ended_long_ago_are_forgotten_and_their_tenants_leases_are_not,
        an_old_plan_that_has_an_owner_keeps_no_other_from_being_forgotten;
    plan_reads:
        the_names_of_stages_are_read_for_several_definitions_at_once,
        plans_without_a_live_owner_are_found,
        plans_tasks_and_tenants_are_listed,
        the_tasks_of_many_plans_with_a_status_are_found_at_once,
        the_newest_attempts_of_stages_jobs_are_read,
        tasks_and_unknown_stages_of_plans_that_are_not_over_are_counted;
    plan_histories:
        the_history_of_a_plan_is_deleted_piece_by_piece_and_its_rows_last,
        a_plan_that_was_over_and_goes_on_is_loaded_without_a_time,
        what_the_time_ends_has_no_author,
        the_spans_that_stages_continue_are_kept,
        a_lock_that_ran_out_is_good_again_with_the_word_that_its_stage_is_done,
        plans_with_a_task_of_a_tenant_are_listed,
        who_sees_plans_is_read_without_their_tasks,
        a_page_of_large_tasks_ends_early_and_only_an_empty_one_is_the_end;
    instances:
        an_instance_lives_while_its_lease_does,
        an_instance_that_was_found_dead_never_gets_its_lease_back,
        an_incarnation_that_never_had_a_lease_is_forgotten_too,
        ended_instances_are_forgotten_after_their_time,
        an_incarnation_that_was_forgotten_does_not_go_on,
        peers_are_seen_living_dying_and_taken,
        a_peer_from_before_the_clock_went_back_is_old;
    transfers:
        nodes_are_noted_for_the_other_live_instances,
        jobs_that_wait_are_transferred_to_live_instances_that_take_them,
        who_gave_a_job_writes_it_no_more_and_its_new_lane_does,
        an_owner_that_lost_its_lane_transfers_nothing,
        a_lease_is_passed_to_a_live_instance_and_fences_who_passed_it;
    ids:
        a_mark_rises_and_is_found_by_the_next_holder,
        a_mark_gets_no_further_ahead_than_allowed,
        a_holder_that_lost_its_number_moves_no_mark,
        a_mark_is_lowered_by_its_holder_and_never_raised_so,
        worker_numbers_are_listed_with_who_holds_them_and_whether_they_live,
        the_epoch_of_snowflakes_is_decided_once,
        ranges_follow_each_other_and_are_as_long_as_step_and_wish,
        many_takers_never_share_a_range,
        a_tag_ends_at_the_last_number_and_never_wraps,
        the_start_of_a_tag_only_rises,
        a_change_is_noted_with_how_it_was_and_what_is_so_already_is_not,
        tags_are_listed_by_name_and_cursor,
        sequences_are_listed_by_name_and_cursor,
        there_are_no_more_tags_than_there_may_be,
        a_sequence_rises_by_its_increment,
        a_sequence_ends_at_the_last_number_and_never_wraps,
        there_are_no_more_sequences_than_there_may_be,
        many_grants_of_many_sequences_share_trains_and_nothing_else;
    settings:
        the_first_to_decide_the_mode_decides,
        the_first_to_decide_the_secret_of_the_cluster_decides,
        the_first_change_of_the_pools_replaces_version_1,
        a_paused_pool_is_paused_until_its_time_or_its_resumption,
        a_pause_that_ended_by_itself_leaves_no_row_behind_the_next_one,
        a_change_of_the_modes_names_the_version_that_it_replaces;
    writability:
        a_transaction_that_the_database_undid_by_itself_breaks_no_later_one;
    opening:
        a_start_ends_no_lock_of_a_tenant,
        the_ledger_is_found_again_as_it_was_left,
        a_newer_database_is_refused,
        newer_tables_that_older_binaries_can_read_are_served,
        newer_tables_that_this_binary_cannot_read_are_refused,
        a_check_changes_nothing_and_refuses_older_tables_by_the_command_that_mends_them,
        a_check_creates_no_ledger,
        another_ledger_than_the_expected_one_is_refused_and_none_is_made_in_its_place,
        durable_settings_raise_no_warning;
}
