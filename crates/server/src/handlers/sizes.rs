//! Size limits of a start: the process id by our own bound, arguments and environment by the kernel's. A start that can
//! never succeed is refused before its id is reserved, with the limit in the error text.

use exec_server_holder::control::StartSpec;
use exec_server_protocol::limits;
use rustix::process::{Resource, getrlimit};

use crate::error::Failure;

/// Maximum total of arguments and environment of `execve`, however high the stack limit is (three quarters of
/// `_STK_LIM`).
const TOTAL_BYTES: usize = 6 << 20;

/// Total that `execve` always allows, however low the stack limit is (`ARG_MAX`).
const TOTAL_BYTES_LEAST: usize = 128 << 10;

/// Checks the process id, each string and the total.
pub(super) fn check(process_id: &str, argv: &[String], spec: &StartSpec) -> Result<(), Failure> {
    let invalid = |reason: String| Err(Failure::InvalidParams { reason });
    if process_id.len() > limits::PROCESS_ID_BYTES {
        let most = limits::PROCESS_ID_BYTES;
        return invalid(format!("processId has {} bytes; the limit is {most}", process_id.len()));
    }
    let most = string_bytes();
    if let Some((at, arg)) = argv.iter().enumerate().find(|(_, arg)| arg.len() > most) {
        return invalid(format!("argv[{at}] has {} bytes; the kernel's limit for one argument is {most}", arg.len()));
    }
    if let Some(arg0) = spec.arg0.as_ref().filter(|arg0| arg0.len() > most) {
        return invalid(format!("arg0 has {} bytes; the kernel's limit for one argument is {most}", arg0.len()));
    }
    if let Some(variable) = spec.env.iter().find(|variable| variable.len() > most) {
        let name = variable.split(|byte| *byte == b'=').next().unwrap_or_default();
        let name = String::from_utf8_lossy(name);
        let bytes = variable.len();
        return invalid(format!("the variable `{name}` has {bytes} bytes; the kernel's limit for one is {most}"));
    }
    // Each string has a terminating NUL and a pointer.
    let strings = argv.iter().map(String::len).chain(spec.env.iter().map(Vec::len));
    let total: usize = strings.map(|len| len + 1 + size_of::<usize>()).sum();
    // The stack limit of the child may differ from ours, so refuse here only what fails at any limit.
    if total > TOTAL_BYTES {
        let most = total_bytes();
        return invalid(format!("argv and environment have {total} bytes; the kernel's limit is {most}"));
    }
    Ok(())
}

/// Maximum length of one string of `execve`, without its NUL (`MAX_ARG_STRLEN`).
fn string_bytes() -> usize {
    32 * rustix::param::page_size() - 1
}

/// Maximum total of `execve` on this host: a quarter of the stack limit, within the bounds above.
pub(crate) fn total_bytes() -> usize {
    let stack = getrlimit(Resource::Stack).current.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
    (stack / 4).clamp(TOTAL_BYTES_LEAST, TOTAL_BYTES)
}
