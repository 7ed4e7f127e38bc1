//! The typed half of the wire: for every method its params, its result, and whether it may be sent twice.
//!
//! A test compares this table with the protocol's own, so that no method is without a typed call. It must not know
//! connections.

use exec_server_protocol::{
    Empty, base64, command, environment, fs, http,
    initialize::{InitializeParams, InitializeResult},
    process, session,
};
use serde::{Serialize, de::DeserializeOwned};

/// Whether a call that a broken connection interrupted may be sent again on the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Sending it twice has the effect of sending it once.
    Harmless,
    /// Its effect could happen twice; an interrupted call ends with an unknown outcome.
    Harmful,
}

/// A method of the wire.
pub trait Method {
    /// Its name.
    const NAME: &'static str;
    /// Whether it may be sent again.
    const AGAIN: Again;
    /// What is sent.
    type Params: Serialize + Send + Sync;
    /// What is answered.
    type Result: DeserializeOwned + Send;

    /// Puts bytes that came attached to an answer where they stand in it as text, for a caller who asked for the answer alone.
    fn put_attached(_result: &mut Self::Result, _bytes: &[u8]) {}
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $wire:literal $again:ident $params:ty => $result:ty $([$text:ident])?;)*) => {
        $(
            #[doc = concat!("`", $wire, "`.")]
            #[derive(Debug, Clone, Copy)]
            pub struct $name;

            impl Method for $name {
                const NAME: &'static str = $wire;
                const AGAIN: Again = Again::$again;
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
    // The name of a process makes a second start of it an error, which tells that the first one worked.
    ProcessStart "process/start" Harmless process::StartParams => process::StartResult;
    ProcessRead "process/read" Harmless process::ReadParams => process::ReadResult;
    // With a `writeId`, which this client always sends; see `process::input` for servers that ignore it.
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
    // An `append` could happen twice, and an `ifMatch` would fail by its own success.
    FsWriteFile "fs/writeFile" Harmful fs::WriteFileParams<'static> => fs::WriteFileResult;
    FsCreateDirectory "fs/createDirectory" Harmful fs::CreateDirectoryParams => fs::CreateDirectoryResult;
    FsGetMetadata "fs/getMetadata" Harmless fs::GetMetadataParams => fs::GetMetadataResult;
    FsCanonicalize "fs/canonicalize" Harmless fs::CanonicalizeParams => fs::CanonicalizeResult;
    FsReadDirectory "fs/readDirectory" Harmless fs::ReadDirectoryParams => fs::ReadDirectoryResult;
    FsWalk "fs/walk" Harmless fs::WalkParams => fs::WalkResult;
    FsRemove "fs/remove" Harmful fs::RemoveParams => fs::RemoveResult;
    FsCopy "fs/copy" Harmful fs::CopyParams => fs::CopyResult;
    // A second one of the same name is refused, and the first one may be of another path.
    FsOpen "fs/open" Harmful fs::OpenParams => fs::OpenResult;
    FsReadBlock "fs/readBlock" Harmless fs::ReadBlockParams => fs::ReadBlockResult [chunk];
    FsClose "fs/close" Harmless fs::CloseParams => fs::CloseResult;
    FsCreate "fs/create" Harmful fs::CreateParams => fs::CreateResult;
    FsWriteBlock "fs/writeBlock" Harmless fs::WriteBlockParams<'static> => fs::WriteBlockResult;
    FsCommit "fs/commit" Harmful fs::CommitParams => fs::CommitResult;
    FsSetMetadata "fs/setMetadata" Harmless fs::SetMetadataParams => fs::SetMetadataResult;
    FsCreateSymlink "fs/createSymlink" Harmful fs::CreateSymlinkParams => fs::CreateSymlinkResult;
    // With pages it has a name, and a second one of that name is refused; without it tells the same again.
    FsSearch "fs/search" Harmless fs::SearchParams => fs::SearchResult;
    // A page that was answered and lost is not told again.
    FsSearchNext "fs/searchNext" Harmful fs::SearchNextParams => fs::SearchResult;
    FsGlob "fs/glob" Harmless fs::GlobParams => fs::GlobResult;
    // Both end with their connection: whoever goes on has to look at everything anyway.
    FsWatch "fs/watch" Harmful fs::WatchParams => fs::WatchResult;
    FsWatchNext "fs/watchNext" Harmful fs::WatchNextParams => fs::WatchNextResult;
    // What it does to its target may happen twice.
    HttpRequest "http/request" Harmful http::RequestParams => http::RequestResult;
    // What it is about ends with its connection.
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
