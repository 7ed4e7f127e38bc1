//! The one table of all methods and notifications.
//!
//! `methods!` declares each method once: its name on the wire, how the server treats it, whether a client may send it again after a cut,
//! and the types of its params and result. From the rows it generates the enum [`Method`], which the server's dispatcher matches, and a
//! marker type in [`requests`], from which the client's calls and the server's handlers take these types. The JSON Schema, the fuzz target
//! and the fixture test visit the types of all rows ([`TypeVisitor`]). `notifications!` does the same for notifications.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Empty, base64, command, environment, fs, http,
    initialize::{InitializeParams, InitializeResult},
    process, session,
};

/// The row of a method in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodInfo {
    /// The method.
    pub method: Method,
    /// Name on the wire.
    pub name: &'static str,
    /// The family of the method, which decides what must happen before the method can be called.
    pub family: Family,
    /// How the request is ordered relative to other requests of its connection.
    pub class: Class,
    /// The scope that the principal needs. `None`: every authenticated principal may call the method.
    pub scope: Option<Scope>,
    /// Whether the method is an addition that the reference does not have.
    pub addition: bool,
    /// Whether a client may send the request again after a cut.
    pub repeat: RepeatRule,
    /// Whether raw bytes may be attached to the request, in place of a base64 member of its params.
    pub takes_bytes: bool,
}

/// A kind of message that has params.
pub trait Message {
    /// The params. `'a` is the lifetime of the text from which they are decoded.
    type Params<'a>: Serialize + Deserialize<'a> + Documented + Send + Sync;
}

/// A request, with the types of its params and result. The types that implement it are in [`requests`].
pub trait Request: Message {
    /// The method of the request.
    const METHOD: Method;
    /// The name of the method on the wire.
    const NAME: &'static str = Self::METHOD.name();
    /// The result of a successful request.
    type Result: Serialize + DeserializeOwned + Documented + Send;

    /// Writes bytes that were attached to an answer into the result, as base64. Used for callers that want only the result.
    fn put_attached(_result: &mut Self::Result, _bytes: &[u8]) {}
}

/// Code that is generic over the types of a method that is known only at run time.
pub trait TypeVisitor: Sized {
    /// The value that the visitor returns.
    type Output;
    /// Visits the params of a request or a notification.
    fn visit_params<M: Message>(self) -> Self::Output;
    /// Visits the result of a request.
    fn visit_result<T: Serialize + DeserializeOwned + Documented>(self) -> Self::Output;
}

#[cfg(feature = "schema")]
pub use schemars::JsonSchema as Documented;

/// A type that has a JSON Schema if the feature `schema` is on.
#[cfg(not(feature = "schema"))]
pub trait Documented {}
#[cfg(not(feature = "schema"))]
impl<T> Documented for T {}

/// A permission of a principal. The server's own configuration grants scopes; nothing that a client declares adds to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Start processes, and read, list and forget the processes of the principal's own sessions.
    Exec,
    /// Write to the stdin of a process, and resize its terminal.
    Stdin,
    /// Signal and terminate processes.
    Signal,
    /// Read files and directories.
    FsRead,
    /// Change files and directories.
    FsWrite,
    /// Let the server make HTTP requests. Without `exec`, only to public addresses.
    Http,
    /// Read the metrics page. No method needs this scope; the HTTP listener checks it.
    Metrics,
}

impl Scope {
    /// All scopes, in the order of their declaration.
    pub const ALL: &'static [Scope] =
        &[Self::Exec, Self::Stdin, Self::Signal, Self::FsRead, Self::FsWrite, Self::Http, Self::Metrics];

    /// Name of the scope in token files, on the command line and in error texts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Stdin => "stdin",
            Self::Signal => "signal",
            Self::FsRead => "fs-read",
            Self::FsWrite => "fs-write",
            Self::Http => "http",
            Self::Metrics => "metrics",
        }
    }

    /// Looks up a scope by its name.
    #[must_use]
    pub fn find(word: &str) -> Option<Scope> {
        Self::ALL.iter().copied().find(|scope| scope.as_str() == word)
    }
}

/// Groups of methods with the same precondition and the same error texts. Except for `Handshake` and `Command`, the client must have called
/// `initialize` and sent `initialized`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// `initialize` itself. It has no precondition.
    Handshake,
    /// `command/*` of V0. It has no precondition: the server creates an implicit session.
    Command,
    /// `process/*`.
    Exec,
    /// `session/*`.
    Session,
    /// `fs/*`.
    Filesystem,
    /// `http/*`.
    Http,
    /// `environment/info`.
    EnvironmentInfo,
    /// `environment/status`.
    EnvironmentStatus,
}

impl Family {
    /// The word for the family in the error texts of a request that comes before `initialize` or `initialized`. `None` if the family has no
    /// precondition.
    #[must_use]
    pub const fn gate_word(self) -> Option<&'static str> {
        match self {
            Self::Handshake | Self::Command => None,
            Self::Exec => Some("exec"),
            Self::Session => Some("session"),
            Self::Filesystem => Some("filesystem"),
            Self::Http => Some("http"),
            Self::EnvironmentInfo => Some("environment info"),
            Self::EnvironmentStatus => Some("environment status"),
        }
    }
}

/// How a request is ordered relative to other requests of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Handled before the server reads the next message.
    Inline,
    /// Takes effect in order of arrival, unless the client announced `concurrent`. Once its effect has begun, it does not delay other
    /// requests while it waits.
    Ordered,
    /// Handled at once. Waits for no other request except the start of its process. Refused only at twice the limit of unanswered requests.
    Control,
}

/// Whether a request that was interrupted by a cut may be sent again on the next connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RepeatRule {
    /// Sending the request twice has the same effect as sending it once.
    Harmless,
    /// The effect could happen twice. An interrupted request fails with an unknown outcome.
    Harmful,
}

macro_rules! methods {
    ($(
        $name:ident $wire:literal $family:ident $class:ident $scope:tt $origin:ident $repeat:ident
        $params:ty => $result:ty $([params.$taken:ident])? $([result.$given:ident])?;
    )*) => {
        /// A method that this server implements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Method {
            $(#[doc = concat!("`", $wire, "`.")] $name,)*
        }

        /// All methods, in the order of the variants of [`Method`].
        pub const METHODS: &[MethodInfo] = &[$(MethodInfo {
            method: Method::$name,
            name: $wire,
            family: Family::$family,
            class: Class::$class,
            scope: methods!(@scope $scope),
            addition: methods!(@is_addition $origin),
            repeat: RepeatRule::$repeat,
            takes_bytes: methods!(@takes_bytes $($taken)?),
        }),*];

        impl Method {
            /// Looks up a method by its name on the wire.
            #[must_use]
            pub fn find(name: &str) -> Option<Self> {
                match name {
                    $($wire => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Visits the params of the method.
            pub fn visit_params<V: TypeVisitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Self::$name => visitor.visit_params::<requests::$name>(),)*
                }
            }

            /// Visits the result of the method.
            pub fn visit_result<V: TypeVisitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Self::$name => visitor.visit_result::<$result>(),)*
                }
            }
        }

        /// One type per method. It stands for the params, the result and the rules of the method; see [`Request`].
        pub mod requests {
            use super::*;

            $(
                #[doc = concat!("`", $wire, "`.")]
                #[derive(Debug, Clone, Copy)]
                pub struct $name;

                impl Message for $name {
                    type Params<'a> = $params;
                }

                impl Request for $name {
                    const METHOD: Method = Method::$name;
                    type Result = $result;
                    $(
                        fn put_attached(result: &mut $result, bytes: &[u8]) {
                            result.$given = base64::encode(bytes);
                        }
                    )?
                }
            )*
        }
    };
    (@scope -) => { None };
    (@scope $scope:ident) => { Some(Scope::$scope) };
    (@is_addition reference) => { false };
    (@is_addition addition) => { true };
    (@takes_bytes) => { false };
    (@takes_bytes $member:ident) => { true };
}

// One row per method:
// name "wire name" family class scope origin repeat-rule params => result [member that attached bytes replace];
methods! {
    Initialize "initialize" Handshake Inline - reference Harmful InitializeParams => InitializeResult;
    // A second start under the same process id is refused, which proves that the first one succeeded.
    ProcessStart "process/start" Exec Ordered Exec reference Harmless process::StartParams => process::StartResult;
    ProcessRead "process/read" Exec Ordered Exec reference Harmless process::ReadParams => process::ReadResult;
    // Harmless with a `writeId`, which our client always sends. For servers that ignore it, see `process::stdin_queue` in the client crate.
    ProcessWrite "process/write" Exec Ordered Stdin reference Harmless process::WriteParams<'a> => process::WriteResult;
    ProcessSignal "process/signal" Exec Control Signal reference Harmful process::SignalParams => process::SignalResult;
    ProcessTerminate "process/terminate" Exec Control Signal reference Harmless process::TerminateParams => process::TerminateResult;
    ProcessCloseStdin "process/closeStdin" Exec Ordered Stdin addition Harmless process::CloseStdinParams => process::CloseStdinResult;
    ProcessResize "process/resize" Exec Control Stdin addition Harmless process::ResizeParams => process::ResizeResult;
    ProcessList "process/list" Exec Ordered Exec addition Harmless process::ListParams => process::ListResult;
    ProcessSubscribe "process/subscribe" Exec Ordered Exec addition Harmless process::SubscribeParams => process::SubscribeResult;
    ProcessUnsubscribe "process/unsubscribe" Exec Ordered Exec addition Harmless process::UnsubscribeParams => process::UnsubscribeResult;
    ProcessForget "process/forget" Exec Ordered Exec addition Harmless process::ForgetParams => process::ForgetResult;
    SessionEnd "session/end" Session Control Exec addition Harmless session::EndParams => session::EndResult;
    EnvironmentInfo "environment/info" EnvironmentInfo Control - reference Harmless Empty => environment::InfoResult;
    EnvironmentStatus "environment/status" EnvironmentStatus Control - reference Harmless Empty => environment::StatusResult;
    FsReadFile "fs/readFile" Filesystem Ordered FsRead reference Harmless fs::ReadFileParams => fs::ReadFileResult [result.data_base64];
    // An `append` could happen twice, and the first success would make a repeated `ifMatch` fail.
    FsWriteFile "fs/writeFile" Filesystem Ordered FsWrite reference Harmful
        fs::WriteFileParams<'a> => fs::WriteFileResult [params.data_base64];
    FsCreateDirectory "fs/createDirectory" Filesystem Ordered FsWrite reference Harmful
        fs::CreateDirectoryParams => fs::CreateDirectoryResult;
    FsGetMetadata "fs/getMetadata" Filesystem Ordered FsRead reference Harmless fs::GetMetadataParams => fs::GetMetadataResult;
    FsCanonicalize "fs/canonicalize" Filesystem Ordered FsRead reference Harmless fs::CanonicalizeParams => fs::CanonicalizeResult;
    FsReadDirectory "fs/readDirectory" Filesystem Ordered FsRead reference Harmless fs::ReadDirectoryParams => fs::ReadDirectoryResult;
    FsWalk "fs/walk" Filesystem Ordered FsRead reference Harmless fs::WalkParams => fs::WalkResult;
    FsRemove "fs/remove" Filesystem Ordered FsWrite reference Harmful fs::RemoveParams => fs::RemoveResult;
    FsCopy "fs/copy" Filesystem Ordered FsWrite reference Harmful fs::CopyParams => fs::CopyResult;
    // A second open under the same name is refused, and the first one may be for another path.
    FsOpen "fs/open" Filesystem Ordered FsRead reference Harmful fs::OpenParams => fs::OpenResult;
    FsReadBlock "fs/readBlock" Filesystem Ordered FsRead reference Harmless fs::ReadBlockParams => fs::ReadBlockResult [result.chunk];
    FsClose "fs/close" Filesystem Control - reference Harmless fs::CloseParams => fs::CloseResult;
    FsCreate "fs/create" Filesystem Ordered FsWrite addition Harmful fs::CreateParams => fs::CreateResult;
    FsWriteBlock "fs/writeBlock" Filesystem Ordered FsWrite addition Harmless
        fs::WriteBlockParams<'a> => fs::WriteBlockResult [params.chunk];
    FsCommit "fs/commit" Filesystem Ordered FsWrite addition Harmful fs::CommitParams => fs::CommitResult;
    FsSetMetadata "fs/setMetadata" Filesystem Ordered FsWrite addition Harmless fs::SetMetadataParams => fs::SetMetadataResult;
    FsCreateSymlink "fs/createSymlink" Filesystem Ordered FsWrite addition Harmful fs::CreateSymlinkParams => fs::CreateSymlinkResult;
    // A search ends with its connection. The repeat on the next connection begins it anew, and its name is free there.
    FsSearch "fs/search" Filesystem Ordered FsRead addition Harmless fs::SearchParams => fs::SearchResult;
    // The server sends each page only once, so a page whose answer was lost cannot be fetched again.
    FsSearchNext "fs/searchNext" Filesystem Ordered FsRead addition Harmful fs::SearchNextParams => fs::SearchResult;
    FsGlob "fs/glob" Filesystem Ordered FsRead addition Harmless fs::GlobParams => fs::GlobResult;
    // A watch ends with its connection. A caller that continues has to scan everything again anyway.
    FsWatch "fs/watch" Filesystem Ordered FsRead addition Harmful fs::WatchParams => fs::WatchResult;
    FsWatchNext "fs/watchNext" Filesystem Ordered FsRead addition Harmful fs::WatchNextParams => fs::WatchNextResult;
    // The effect on the HTTP target could happen twice.
    HttpRequest "http/request" Http Ordered Http reference Harmful http::RequestParams => http::RequestResult;
    // The HTTP request that is to be cancelled ends with its connection anyway.
    HttpCancel "http/cancel" Http Control Http addition Harmful http::CancelParams => http::CancelResult;
    CommandExec "command/exec" Command Ordered Exec reference Harmful command::ExecParams => command::ExecResult;
    CommandExecWrite "command/exec/write" Command Ordered Stdin reference Harmful command::WriteParams<'a> => command::WriteResult;
    CommandExecTerminate "command/exec/terminate" Command Control Signal reference Harmless
        command::TerminateParams => command::TerminateResult;
}

impl Method {
    /// The row of the method.
    #[must_use]
    pub const fn info(self) -> &'static MethodInfo {
        &METHODS[self as usize]
    }

    /// Name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.info().name
    }
}

/// The row of a notification in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotificationInfo {
    /// The notification.
    pub notification: Notification,
    /// Name on the wire.
    pub name: &'static str,
    /// Which side sends it.
    pub sender: Sender,
    /// Whether the notification is an addition that the reference does not have.
    pub addition: bool,
}

/// The side that sends a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sender {
    /// The client.
    Client,
    /// The server.
    Server,
}

macro_rules! notifications {
    ($($(#[$doc:meta])* $name:ident $wire:literal $sender:ident $origin:ident $params:ty;)*) => {
        /// A notification.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Notification {
            $($(#[$doc])* $name,)*
        }

        /// All notifications, in both directions, in the order of the variants of [`Notification`].
        pub const NOTIFICATIONS: &[NotificationInfo] = &[$(NotificationInfo {
            notification: Notification::$name,
            name: $wire,
            sender: Sender::$sender,
            addition: methods!(@is_addition $origin),
        }),*];

        impl Notification {
            /// Looks up a notification by its name on the wire.
            #[must_use]
            pub fn find(name: &str) -> Option<Self> {
                match name {
                    $($wire => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Name on the wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                NOTIFICATIONS[self as usize].name
            }

            /// Visits the params of the notification.
            pub fn visit_params<V: TypeVisitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Self::$name => {
                        struct Marker;
                        impl Message for Marker {
                            type Params<'a> = $params;
                        }
                        visitor.visit_params::<Marker>()
                    })*
                }
            }
        }
    };
}

// One row per notification: name "wire name" sender origin params;
notifications! {
    /// The client accepts the result of `initialize`.
    Initialized "initialized" Client reference Empty;
    /// The client has consumed output.
    ProcessAck "process/ack" Client addition process::AckParams;
    /// Output of a process.
    ProcessOutput "process/output" Server reference process::OutputParams;
    /// A process has exited.
    ProcessExited "process/exited" Server reference process::ExitedParams;
    /// A process has exited and all of its output has been sent.
    ProcessClosed "process/closed" Server reference process::ClosedParams;
    /// Events of a process that can no longer be read.
    ProcessGap "process/gap" Server addition process::GapParams;
    /// The channel number of a process in the binary frames of this connection.
    ProcessChannel "process/channel" Server addition process::ChannelParams;
    /// The client has consumed pieces of a streamed HTTP body.
    HttpAck "http/request/ack" Client addition http::AckParams;
    /// A piece of a streamed HTTP body.
    HttpBodyDelta "http/request/bodyDelta" Server reference http::BodyDeltaParams<'a>;
    /// Output of a V0 process.
    CommandOutputDelta "command/exec/outputDelta" Server reference command::OutputDeltaParams;
    /// A V0 process has exited and all of its output has been sent.
    CommandExited "command/exec/exited" Server reference command::ExitedParams;
}

#[cfg(test)]
mod tests {
    use super::{METHODS, Method, NOTIFICATIONS, Notification};

    #[test]
    fn every_method_is_found_by_its_name_and_only_once() {
        for info in METHODS {
            assert_eq!(Method::find(info.name).map(Method::info), Some(info));
            assert_eq!(METHODS.iter().filter(|other| other.name == info.name).count(), 1);
        }
        assert_eq!(Method::find("process/ack"), None);
    }

    #[test]
    fn no_notification_is_also_a_method() {
        for info in NOTIFICATIONS {
            assert_eq!(Notification::find(info.name), Some(info.notification));
            assert_eq!(Method::find(info.name), None);
        }
    }
}
