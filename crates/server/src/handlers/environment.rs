//! `environment/info` and `environment/status`: describe this host.

use std::{ffi::OsString, os::unix::ffi::OsStrExt, path::Path};

use exec_server_protocol::{
    Empty,
    capabilities::EnvironmentCapabilities,
    environment::{InfoResult, SandboxSupport, Shell, Status, StatusResult},
    path,
};

use exec_server_sandbox::Host;

use super::{RequestContext, permitted};
use crate::error::Failure;

/// The shell if `SHELL` is not set.
const FALLBACK_SHELL: &str = "/bin/sh";

/// `environment/info`: the path of the shell, the search path, and other directories as URIs.
pub(crate) async fn info(context: RequestContext, _: Empty) -> Result<InfoResult, Failure> {
    let config = &context.core.config;
    let variable = |name: &str| {
        let found = config.environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value).filter(|value| !value.is_empty())
    };
    let shell =
        variable("SHELL").map_or_else(|| FALLBACK_SHELL.to_owned(), |shell| shell.to_string_lossy().into_owned());
    let name = Path::new(&shell).file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let absolute_uri = |text: &OsString| text.as_bytes().starts_with(b"/").then(|| path::to_uri(Path::new(text)));
    let temp = variable("TMPDIR").cloned().unwrap_or_else(|| "/tmp".into());
    let Host { landlock, seccomp, namespaces } = Host::detect();
    Ok(InfoResult {
        shell: Some(Shell { name, path: shell }),
        cwd: Some(path::to_uri(&permitted::default_directory(&context.grant, config.cwd.as_deref()))),
        // The reference reports directories here; this server has none to report.
        temporary_directories: Some(Vec::new()),
        temp_dir: absolute_uri(&temp),
        home_dir: variable("HOME").and_then(absolute_uri),
        search_path: variable("PATH").map(|path| path.to_string_lossy().into_owned()),
        sandbox: Some(SandboxSupport { landlock, seccomp, namespaces }),
        capabilities: EnvironmentCapabilities::served(),
    })
}

/// `environment/status`: a server that answers is ready.
pub(crate) async fn status(_: RequestContext, _: Empty) -> Result<StatusResult, Failure> {
    Ok(StatusResult { status: Status::Ready })
}
