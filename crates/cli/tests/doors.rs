//! Under construction.
mod common;
