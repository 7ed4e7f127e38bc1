//! The reference's tests of sandboxes (specification 10.2 and 10.4) through the client library, locally and on a server. A test's name is
//! the place and the claim.

/// All behaviours at all places.
macro_rules! suite {
    (at $place:ident $kind:ident $($name:ident)*) => {
        mod $place {
            $(
                #[test]
                fn $name() {
                    crate::run(crate::Kind::$kind, crate::behaviours::sandboxed::$name);
                }
            )*
        }
    };
    ($($name:ident)*) => {
        suite! { at local Local $($name)* }
        suite! { at ws Ws $($name)* }
    };
}

suite! {
    sandbox_context_from_profile_preserves_workspace_write_read_only_subpaths
    file_system_sandboxed_read_allows_readable_root
    file_system_sandboxed_metadata_and_read_allow_readable_root
    file_system_sandboxed_write_rejects_unwritable_path
    file_system_sandboxed_write_allows_explicit_alias_roots
    file_system_sandboxed_write_allows_additional_write_root
    file_system_sandboxed_read_rejects_symlink_escape
    file_system_sandboxed_read_rejects_symlink_parent_dotdot_escape
    file_system_sandboxed_write_rejects_symlink_escape
    file_system_create_directory_rejects_symlink_escape
    file_system_read_directory_rejects_symlink_escape
    file_system_copy_rejects_symlink_escape_destination
    file_system_copy_rejects_symlink_escape_source
    file_system_remove_rejects_symlink_escape
    file_system_walk_honors_read_sandbox
    file_system_sandboxed_canonicalize_resolves_directory_symlink
    file_system_sandboxed_write_preserves_existing_hard_link
    sandboxed_file_operations_cannot_read_helper_siblings
    sandboxed_streams_read_and_write_where_they_may
    read_file_materializes_environment_workspace_roots
    read_file_preserves_empty_workspace_roots
    a_pattern_denies_what_came_after_the_first_request
    a_repository_that_comes_later_is_protected_and_none_can_be_made
    sandboxed_process_preserves_custom_arg0
    process_starts_with_restricted_reads
    tty_process_in_a_sandbox_ignores_a_hostile_path
    process_preserves_empty_workspace_roots
}
