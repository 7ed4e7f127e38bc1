//! `fs/*`: what each method does with the files of this host. The work itself is [`exec_server_fs`]'s; here params become its arguments and
//! its answers results.
//!
//! Every operation goes through [`Errand::run`]: in its turn, on a thread of the pool, beneath the roots of its principal. What takes long, and
//! is bounded by its own rules, goes through [`Errand::launch`]: on a thread of its own, with the same [`Sight`]. Must not know how a path is resolved.

pub(crate) mod block;
pub(crate) mod seek;
pub(crate) mod tree;
pub(crate) mod whole;

use std::{
    path::{Component, Path, PathBuf},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use exec_server_fs::{self as files, Cancel, Links, View};
use exec_server_protocol::{
    base64,
    failure::Kind,
    fs as wire,
    path::{PathArg, PathError},
    sandbox::AppliedSandbox,
};
use serde_json::value::RawValue;
use tokio::sync::OwnedMutexGuard;

use super::{Context, permitted};
use crate::{
    audit::Record,
    error::Failure,
    pump::Reply,
    sandbox::{Asked, Confinement, FileView, NOT_CONFINED, Sandboxes},
    session::Session,
};

/// A request on its way: who asked, and its turn among the others of its session.
struct Errand {
    context: Context,
    method: &'static str,
    /// Held until it is answered, for a client whose requests have their effect one after the other.
    turn: Option<OwnedMutexGuard<()>>,
    /// The sandbox that it was confined by, once whoever looked at files has said so.
    applied: Arc<OnceLock<AppliedSandbox>>,
}

/// What of this host's files a request sees: the one place that says so, for whichever thread looks.
#[derive(Clone)]
struct Sight {
    roots: Vec<PathBuf>,
    /// What the sandbox of the request asks for, and who makes it.
    confinement: Option<(Confinement, Arc<Sandboxes>)>,
    /// Where it is told how the request was confined.
    applied: Arc<OnceLock<AppliedSandbox>>,
}

/// What a request sees, made.
struct Seen {
    view: View,
    sandbox: Option<Arc<FileView>>,
}

impl Sight {
    /// Makes it, on the thread that calls this: a sandbox may have to be put together first.
    fn look(&self) -> Result<Seen, Failure> {
        let sandbox = self.confinement.as_ref().map(|(asked, sandboxes)| sandboxes.files(asked)).transpose()?;
        if let Some(sandbox) = &sandbox {
            self.applied.get_or_init(|| sandbox.applied());
        }
        let view = sandbox.as_ref().map_or_else(View::everything, |sandbox| sandbox.view());
        let view = if self.roots.is_empty() { view } else { view.narrowed(&self.roots) };
        Ok(Seen { view, sandbox })
    }

    /// Shows it to work that takes long, or says why it may not begin at this path.
    fn show(&self, path: &Path, work: impl FnOnce(Result<&View, Failure>)) {
        match self.look() {
            Ok(seen) => match seen.sandbox.as_ref().map_or(Ok(()), |sandbox| sandbox.permits_reading(path)) {
                Ok(()) => work(Ok(&seen.view)),
                Err(denied) => work(Err(denied)),
            },
            Err(failure) => work(Err(failure)),
        }
    }
}

impl Errand {
    /// Waits for its turn. Asked for before anything else, so that turns come in the order of arrival.
    async fn begin(context: Context, method: &'static str) -> Self {
        let turn = context.session.files.turn.clone();
        let turn = if context.peer.manners().concurrent { None } else { Some(turn.lock_owned().await) };
        Self { context, method, turn, applied: Arc::default() }
    }

    /// One that changes nothing and asks for what is there already: it waits for nobody.
    fn out_of_turn(context: Context, method: &'static str) -> Self {
        Self { context, method, turn: None, applied: Arc::default() }
    }

    /// Lets the next one begin before this one is answered.
    fn give_turn_away(&mut self) {
        self.turn = None;
    }

    fn session(&self) -> &Session {
        &self.context.session
    }

    /// Runs an operation beneath the roots of the principal, on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        sandbox: Option<&RawValue>,
        operation: impl FnOnce(&View, &Cancel) -> files::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let sight = self.sight(sandbox)?;
        let job = move |cancel: &Cancel| -> Result<T, Troubled> {
            let seen = sight.look()?;
            operation(&seen.view, cancel).map_err(|error| {
                match seen.sandbox.and_then(|sandbox| sandbox.explain(&error)) {
                    Some(denied) => Troubled::Early(denied),
                    None => Troubled::File(error),
                }
            })
        };
        let done = self.context.core.files.run(&self.session().files, job).await?;
        done.map_err(|troubled| match troubled {
            Troubled::Early(failure) => self.recorded(failure),
            Troubled::File(error) => self.failed(error),
        })
    }

    /// Begins work that takes long, on a thread of its own. Who calls this has a place for it, and a word that ends it.
    fn launch(
        &self,
        (path, sandbox): (&Path, Option<&RawValue>),
        work: impl FnOnce(Result<&View, Failure>) + Send + 'static,
    ) -> Result<(), Failure> {
        let sight = self.sight(sandbox)?;
        let (path, before) = (path.to_owned(), self.context.core.config.before_file_work.clone());
        // Nobody waits for the thread itself: what it finds is told as it goes.
        drop(tokio::task::spawn_blocking(move || {
            before.call();
            seek::named(move || sight.show(&path, work));
        }));
        Ok(())
    }

    /// The same for work that lasts as long as a connection: a simulation's clock does not wait for its end.
    fn keep(
        &self,
        (path, sandbox): (&Path, Option<&RawValue>),
        work: impl FnOnce(Result<&View, Failure>) + Send + 'static,
    ) -> Result<(), Failure> {
        let (sight, path) = (self.sight(sandbox)?, path.to_owned());
        let kept = std::thread::Builder::new().spawn(move || seek::named(move || sight.show(&path, work)));
        kept.map(drop).map_err(|source| Failure::Host { what: "start a thread", source })
    }

    fn sight(&self, sandbox: Option<&RawValue>) -> Result<Sight, Failure> {
        let sandboxes = &self.context.core.sandboxes;
        let confinement = match sandbox.map(|sandbox| sandboxes.read_raw(sandbox)).transpose()? {
            Some(Asked::Confined(asked)) => Some((asked, sandboxes.clone())),
            Some(Asked::Free) => {
                self.applied.get_or_init(|| NOT_CONFINED);
                None
            }
            Some(Asked::Nothing) | None => None,
        };
        let asked = confinement.as_ref().map(|(asked, _)| asked);
        permitted::sandbox(&self.context.grant, asked).map_err(|failure| self.recorded(failure))?;
        let roots = self.context.grant.rights().roots.clone();
        Ok(Sight { roots, confinement, applied: self.applied.clone() })
    }

    /// Answers with what came of it, and in which sandbox.
    fn answer<T: serde::Serialize>(&self, reply: Reply, done: Result<T, Failure>) {
        match done {
            Ok(result) => reply.result(&wire::Told { result, sandbox: self.applied.get().copied() }),
            Err(failure) => reply.fail(&failure),
        }
    }

    /// Runs work on a file that is open already.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cancel) -> files::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let done = self.context.core.files.run(&self.session().files, work).await?;
        done.map_err(|error| self.failed(error))
    }

    /// Puts on record who tried to leave his roots; other failures are between the client and its files.
    fn failed(&self, error: files::Error) -> Failure {
        self.recorded(Failure::from(error))
    }

    fn recorded(&self, failure: Failure) -> Failure {
        if matches!(failure.kind(), Kind::Forbidden | Kind::SandboxDenied) {
            let (method, reason) = (Some(self.method), Some(failure.to_string()));
            self.context.record(self.session(), None, Record { method, reason, ..Record::of("request.deny") });
        }
        failure
    }
}

/// Why an operation came to nothing, on the thread that it ran on.
enum Troubled {
    /// It was never tried, or the sandbox did not let it.
    Early(Failure),
    File(files::Error),
}

impl From<Failure> for Troubled {
    fn from(failure: Failure) -> Self {
        Self::Early(failure)
    }
}

/// The absolute path of a request, dot segments removed by their text alone, as every generation does.
fn path(arg: &PathArg) -> Result<PathBuf, Failure> {
    let path = arg.resolve().map_err(|source| match source {
        // A path, but of another kind of host.
        PathError::Foreign => Failure::ForeignPath { path: arg.as_str().to_owned() },
        source => Failure::Path { path: arg.as_str().to_owned(), source },
    })?;
    Ok(normalized(&path))
}

fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => drop(normal.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normal
}

fn links(follow: Option<bool>) -> Links {
    if follow.unwrap_or(true) { Links::Follow } else { Links::Refuse }
}

fn to_wire(moment: files::Moment) -> wire::Moment {
    wire::Moment { seconds: moment.seconds, nanos: moment.nanos }
}

fn from_wire(moment: wire::Moment) -> files::Moment {
    files::Moment { seconds: moment.seconds, nanos: moment.nanos }
}

/// Text, and the base64 of the bytes where it could not say them all.
fn text_and_bytes(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(base64::encode(bytes))),
    }
}

/// The bytes of a request: attached to it, or in it as text.
fn one_of(text: &str, attached: Option<Bytes>, both: &'static str) -> Result<Bytes, Failure> {
    match attached {
        Some(attached) if text.is_empty() => Ok(attached),
        Some(_) => Err(Failure::FileInput { what: both }),
        None => decode(text).map(Bytes::from),
    }
}

/// The bytes of a chunk; for `fs/writeFile` and its like the reference calls bad base64 a bad request.
fn decode(chunk: &str) -> Result<Vec<u8>, Failure> {
    base64::decode(chunk).map_err(|_| Failure::FileBase64)
}

fn write_result(written: files::Written) -> wire::WriteFileResult {
    wire::WriteFileResult { atomic: written.atomic, etag: Some(written.etag), size: Some(written.size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_segments_go_by_their_text() {
        for (given, expected) in
            [("/", "/"), ("/a/./b/../c", "/a/c"), ("/../..", "/"), ("/a/b/..", "/a"), ("/a//b/", "/a/b")]
        {
            assert_eq!(normalized(Path::new(given)), Path::new(expected), "{given}");
        }
    }
}
