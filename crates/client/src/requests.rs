//! The typed methods of the protocol: for each method its params, its result, and whether it may be sent twice.
//!
//! A test compares this table with the protocol's own, so that every method has a typed call.

use exec_server_protocol::{
    Empty, base64, command, environment, fs, http,
    initialize::{InitializeParams, InitializeResult},
    process, session,
};
use serde::{Serialize, de::DeserializeOwned};

/// Whether a call that was interrupted by a cut may be sent again on the next connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepeatRule {
    /// Sending the call twice has the same effect as sending it once.
    Harmless,
    /// The effect could happen twice. An interrupted call fails with an unknown outcome.
    Harmful,
}

/// A method of the protocol.
pub trait Method {
    /// The name of the method in messages.
    const NAME: &'static str;
    /// Whether an interrupted call may be sent again.
    const REPEAT: RepeatRule;
    /// The params of the request.
    type Params: Serialize + Send + Sync;
    /// The result of a successful call.
    type Result: DeserializeOwned + Send;

    /// Writes bytes that were attached to an answer into the result, as base64. Used for callers that want only the result.
    fn put_attached(_result: &mut Self::Result, _bytes: &[u8]) {}
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $wire:literal $repeat:ident $params:ty => $result:ty $([$text:ident])?;)*) => {
        $(
            #[doc = concat!("`", $wire, "`.")]
            #[derive(Debug, Clone, Copy)]
            pub struct $name;

            impl Method for $name {
                const NAME: &'static str = $wire;
                const REPEAT: RepeatRule = RepeatRule::$repeat;
                type Params = $params;
                type Result = $result;
                $(
                    fn put_attached(result: &mut $result, bytes: &[u8]) {
                        result.$text = base64::encode(bytes);
                    }
                )?
            }
        )*

        /// The names of all typed methods.
        pub const NAMES: &[&str] = &[$($wire),*];
    };
}

methods! {
    Initialize "initialize" Harmful InitializeParams => InitializeResult;
    // A second start under the same process id is refused, which proves that the first one succeeded.
    ProcessStart "process/start" Harmless process::StartParams => process::StartResult;
    ProcessRead "process/read" Harmless process::ReadParams => process::ReadResult;
    // Harmless with a `writeId`, which this client always sends. See `process::stdin_queue` for servers that ignore it.
    ProcessWrite "process/write" Harmless process::WriteParams<'static> => process::WriteResult;
    ProcessSignal "process/signal" Harmful process::SignalParams => process::SignalResult;
    ProcessTerminate "process/terminate" Harmless process::TerminateParams => process::TerminateResult;
    ProcessCloseStdin "process/closeStdin" Harmless process::CloseStdinParams => process::CloseStdinResult;
    ProcessResize "process/resize" Harmless process::ResizeParams => process::ResizeResult;
    ProcessList "process/list" Harmless process::ListParams => process::ListResult;
    ProcessSubscribe "process/subscribe" Harmless process::SubscribeParams => process::SubscribeResult;
    ProcessUnsubscribe "process/unsubscribe" Harmless process::UnsubscribeParams => process::UnsubscribeResult;
    ProcessForget "process/forget" Harmless process::ForgetParams => process::ForgetResult;
    SessionEnd "session/end" Harmless session::EndParams => session::EndResult;
    EnvironmentInfo "environment/info" Harmless Empty => environment::InfoResult;
    EnvironmentStatus "environment/status" Harmless Empty => environment::StatusResult;
    FsReadFile "fs/readFile" Harmless fs::ReadFileParams => fs::ReadFileResult [data_base64];
    // An `append` could happen twice, and the first success would make a repeated `ifMatch` fail.
    FsWriteFile "fs/writeFile" Harmful fs::WriteFileParams<'static> => fs::WriteFileResult;
    FsCreateDirectory "fs/createDirectory" Harmful fs::CreateDirectoryParams => fs::CreateDirectoryResult;
    FsGetMetadata "fs/getMetadata" Harmless fs::GetMetadataParams => fs::GetMetadataResult;
    FsCanonicalize "fs/canonicalize" Harmless fs::CanonicalizeParams => fs::CanonicalizeResult;
    FsReadDirectory "fs/readDirectory" Harmless fs::ReadDirectoryParams => fs::ReadDirectoryResult;
    FsWalk "fs/walk" Harmless fs::WalkParams => fs::WalkResult;
    FsRemove "fs/remove" Harmful fs::RemoveParams => fs::RemoveResult;
    FsCopy "fs/copy" Harmful fs::CopyParams => fs::CopyResult;
    // A second open under the same name is refused, and the first one may be for another path.
    FsOpen "fs/open" Harmful fs::OpenParams => fs::OpenResult;
    FsReadBlock "fs/readBlock" Harmless fs::ReadBlockParams => fs::ReadBlockResult [chunk];
    FsClose "fs/close" Harmless fs::CloseParams => fs::CloseResult;
    FsCreate "fs/create" Harmful fs::CreateParams => fs::CreateResult;
    FsWriteBlock "fs/writeBlock" Harmless fs::WriteBlockParams<'static> => fs::WriteBlockResult;
    FsCommit "fs/commit" Harmful fs::CommitParams => fs::CommitResult;
    FsSetMetadata "fs/setMetadata" Harmless fs::SetMetadataParams => fs::SetMetadataResult;
    FsCreateSymlink "fs/createSymlink" Harmful fs::CreateSymlinkParams => fs::CreateSymlinkResult;
    // A paged search has a name, and a second one under that name is refused. A search without pages returns the same result again.
    FsSearch "fs/search" Harmless fs::SearchParams => fs::SearchResult;
    // The server does not send a page again whose answer was lost.
    FsSearchNext "fs/searchNext" Harmful fs::SearchNextParams => fs::SearchResult;
    FsGlob "fs/glob" Harmless fs::GlobParams => fs::GlobResult;
    // A watch ends with its connection. A caller that continues has to scan everything again anyway.
    FsWatch "fs/watch" Harmful fs::WatchParams => fs::WatchResult;
    FsWatchNext "fs/watchNext" Harmful fs::WatchNextParams => fs::WatchNextResult;
    // The effect on the HTTP target could happen twice.
    HttpRequest "http/request" Harmful http::RequestParams => http::RequestResult;
    // The request to cancel ends with its connection anyway.
    HttpCancel "http/cancel" Harmful http::CancelParams => http::CancelResult;
    CommandExec "command/exec" Harmful command::ExecParams => command::ExecResult;
    CommandExecWrite "command/exec/write" Harmful command::WriteParams<'static> => command::WriteResult;
    CommandExecTerminate "command/exec/terminate" Harmless command::TerminateParams => command::TerminateResult;
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::method::METHODS;

    use super::NAMES;

    #[test]
    fn every_method_of_the_table_has_a_typed_call() {
        let served: Vec<&str> = METHODS.iter().map(|method| method.name).collect();
        let mut typed = NAMES.to_vec();
        typed.sort_unstable();
        let mut expected = served.clone();
        expected.sort_unstable();
        assert_eq!(typed, expected);
    }
}
