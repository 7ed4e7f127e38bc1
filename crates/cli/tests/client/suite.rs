//! One suite of behaviours of the client library, run at every place where processes run. A test's name is the place and the claim.

/// All behaviours at all places.
macro_rules! suite {
    ($($group:ident { $($name:ident)* })*) => {
        suite! { at local Local $($($group $name)*)* }
        suite! { at ws Ws $($($group $name)*)* }
        suite! { at unix Unix $($($group $name)*)* }
        suite! { at stdio Stdio $($($group $name)*)* }
        suite! { at elsewhere Elsewhere $($($group $name)*)* }
    };
    (at $place:ident $kind:ident $($group:ident $name:ident)*) => {
        mod $place {
            $(
                #[test]
                fn $name() {
                    crate::run(crate::Kind::$kind, crate::behaviours::$group::$name);
                }
            )*
        }
    };
}

suite! {
    events {
        exec_process_starts_and_exits
        exec_process_streams_output
        exec_process_pushes_events
        exec_process_replays_events_after_close
        exec_process_retains_output_after_exit_until_streams_close
        exec_process_preserves_queued_events_before_subscribe
        a_reader_begins_after_any_number
        a_read_stops_at_its_bound
        two_readers_see_the_same
        a_handle_that_was_dropped_is_taken_up_again
    }
    input {
        exec_process_write_then_read
        exec_process_write_then_read_without_tty
        exec_process_rejects_write_without_pipe_stdin
        close_stdin_is_the_end_of_input
        shutting_stdin_down_closes_it
        writes_of_many_tasks_arrive_whole_and_once
        a_terminal_has_the_size_it_is_given
    }
    volume {
        binary_output_is_byte_exact
        a_sum_made_there_is_right
        streams_carry_64_mib_both_ways
        waiting_takes_what_nobody_reads
        a_slow_reader_holds_the_process_back_and_loses_nothing
        what_is_dropped_by_choice_is_told
    }
    ending {
        exec_process_signal_interrupts_process
        terminate_kills_at_once
        terminate_with_grace_lets_it_clean_up
        time_limits_end_a_process_and_say_so
        what_cannot_start_says_why
        a_name_is_given_once
        an_unknown_process_cannot_be_attached
        dropping_a_handle_ends_nothing_unless_it_was_asked_to
        a_start_that_is_called_off_leaves_nothing_running
        a_closed_process_can_be_forgotten
        ending_the_session_ends_everything
    }
    information {
        the_environment_tells_of_itself
        processes_are_listed
        a_process_runs_where_it_should
        the_environment_follows_its_policy
        a_program_sees_the_name_it_is_given
        a_terminal_has_the_name_it_is_given
    }
}
