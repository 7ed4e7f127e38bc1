//! Tests of the safety rules, one file per rule and named after it. `cargo xtask faults --list` lists them too.

pub(crate) mod hand_written_websocket;
pub(crate) mod host_helpers;
pub(crate) mod sandbox_helpers;
pub(crate) mod token_helpers;

mod r03_an_exit_is_told_once_and_outlives_the_server;
mod r04_processes_outlive_server_and_spawner_not_their_holder;
mod r05_a_killed_server_on_port_0_leaves_nothing;
mod r05_ended_processes_need_no_holder;
mod r05_spilled_output_outlives_the_holder;
mod r08_a_process_at_its_quota_always_ends;
mod r08_a_session_being_adopted_is_known;
mod r09_nothing_kept_of_a_process_is_unbounded;
mod r10_a_permanent_error_is_reported_at_once;
mod s01_nothing_is_open_to_the_world;
mod s02_nothing_before_the_door;
mod s03_native_clients_bring_a_token;
mod s03_tokens_are_in_no_log;
mod s04_tokens_are_named_and_revocable;
mod s05_tokens_reach_no_child;
mod s06_a_page_is_refused;
mod s07_a_rebound_name_is_refused;
mod s08_a_unix_socket_is_the_owner_s;
mod s09_certificates_say_who_it_is;
mod s10_http_alone_reaches_no_private_target;
mod s10_scopes_come_from_the_record;
mod s11_a_session_id_alone_resumes_nothing;
mod s12_limits_before_and_behind_the_door;
mod s13_nothing_is_compressed;
mod s14_children_get_three_descriptors_and_nothing_else_of_ours;
mod s15_no_plumbing_and_no_token_reaches_a_child;
mod s16_a_racer_finds_no_way_out_of_a_sandbox;
mod s16_files_stay_beneath_their_roots;
mod s17_only_its_own_terminal_controls_a_child;
mod s18_a_confined_process_cannot_move_its_walls;
mod s18_a_sandbox_holds_or_nothing_starts;
mod s18_a_sandbox_without_network_makes_no_http_request;
mod s19_a_confined_child_reaches_no_secret;
mod s19_children_cannot_look_into_what_holds_them;
mod s20_what_a_command_starts_is_bounded_and_ends_with_it;
mod s21_memory_is_bounded;
mod s22_a_client_believes_no_server;
mod s24_an_audit_that_shows_what_was_removed;
mod s26_the_server_s_own_files_are_its_owner_s;
mod s27_a_floor_needs_a_sandbox_that_restricts;
mod s28_run_as_covers_files;
mod s29_kernel_files_are_read_only_and_ipc_is_apart;
mod s30_a_server_cannot_steer_the_terminal;
mod s31_the_audit_log_is_anchored;
mod s32_no_secret_of_the_environment_goes_into_a_header;

/// The params of a file method: those in `more`, on a path.
pub(crate) fn on(path: &std::path::Path, more: &serde_json::Value) -> serde_json::Value {
    testkit::with(more.clone(), serde_json::json!({"path": path}))
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// The upgrade request of a WebSocket client, with additional header lines.
pub(crate) fn upgrade(target: &str, host: &str, more: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}{more}\r\n")
}
