//! Runs a holder in this process, with scripted or real children, and a small server as its controller.

#![allow(clippy::disallowed_methods, reason = "tests wait with a deadline of their own")]

mod archive;
mod control_messages;
mod controllers;
mod full_log;
mod prelude;
mod process_life;
mod random_orders;
mod session_end;
mod stdin;
mod support;
