//! TLS in front of the door of `wss://` listeners: our certificate, whom we take certificates from, and the handshake.
//!
//! The files are read at the start, where whatever is wrong ends the server, and again when they change, where it is said
//! and the old ones stay. Sessions of TLS are not resumed: a resumed one would skip the check of the client's certificate.
//! Must not know HTTP, nor who may do what.

mod files;
mod names;
mod verifier;

use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use exec_server_rpc::{Stream, TcpProbe};
use rustls::{
    ServerConfig, SupportedProtocolVersion,
    crypto::aws_lc_rs::default_provider,
    server::{NoClientAuth, NoServerSessionStorage, danger::ClientCertVerifier},
    version::{TLS12, TLS13},
};
use rustls_pki_types::pem;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncRead, AsyncWrite, Join},
    time::{self, MissedTickBehavior},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use self::{files::Stamp, names::Name, verifier::Verifier};
use crate::state_dir::NotPrivate;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Versions of TLS that can be spoken, from the given one on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oldest {
    /// 1.2 and 1.3.
    Tls12,
    /// 1.3 alone.
    #[default]
    Tls13,
}

/// Where our certificate and the authorities of our clients are, all PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Our certificate, and its chain behind it.
    pub cert: PathBuf,
    /// Its key; for our eyes only.
    pub key: PathBuf,
    /// The authorities whose certificates clients must show; `None` asks for none.
    pub client_ca: Option<PathBuf>,
    /// The oldest version spoken.
    pub oldest: Oldest,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not PEM, or not of the kind that is needed.
    #[error("read `{}` as PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// A file has no certificate.
    #[error("there is no certificate in `{}`", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// Other users could have written or read the key.
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
    /// Authorities that cannot be used.
    #[error("use the authorities in `{}`: {reason}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Certificate and key do not fit each other, or are of a kind that nobody speaks.
    #[error("use the certificate in `{}` with the key in `{}`", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong with them.
        source: rustls::Error,
    },
}

/// What a client has shown, after its chain was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Who it is: alternative names, the one that counts first; at least one.
    pub names: Vec<String>,
    /// SHA-256 of the certificate, in hexadecimal digits.
    pub fingerprint: String,
}

impl ClientCertificate {
    /// `None` for a certificate that names nobody.
    fn read(der: &[u8]) -> Option<Self> {
        let names = names::bearer(der);
        if names.is_empty() {
            return None;
        }
        let fingerprint = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self { names, fingerprint })
    }
}

/// TLS as it is at the moment.
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Arc<Loaded>>,
    /// The files as they were before they were first read.
    first: [Stamp; 3],
}

/// One version of the files.
struct Loaded {
    config: Arc<ServerConfig>,
    names: OwnNames,
}

/// The names in our own certificate.
#[derive(Clone, Debug)]
pub(crate) struct OwnNames(Arc<[Name]>);

/// The secured bytes, in both directions.
type Secure = TlsStream<Join<Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>>>;

/// A connection behind its handshake.
pub(crate) struct Secured {
    pub(crate) socket: Secure,
    pub(crate) certificate: Option<ClientCertificate>,
    pub(crate) names: OwnNames,
    probe: Option<TcpProbe>,
}

impl Tls {
    /// Reads the files.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        // Before they are read: what changes meanwhile is a change.
        let first = files.stamps();
        let loaded = load(&files)?;
        Ok(Self { files, current: RwLock::new(Arc::new(loaded)), first })
    }

    /// Whether clients must show a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Reads the files again whenever they change, for ever. Connections that are open keep what they have.
    pub(crate) async fn watch(&self) {
        let mut tick = time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = self.first;
        let mut failure = None;
        loop {
            tick.tick().await;
            let now = self.files.stamps();
            // After a failure also without a change: a file may have been read while it was being written.
            if now == seen && failure.is_none() {
                continue;
            }
            seen = now;
            match load(&self.files) {
                Ok(loaded) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
                    failure = None;
                    tracing::info!("certificates were read again");
                }
                Err(error) => {
                    let said = chain(&error);
                    if failure.as_ref() != Some(&said) {
                        tracing::warn!("the new certificates are not used, the old ones stay: {said}");
                    }
                    failure = Some(said);
                }
            }
        }
    }

    /// Shakes hands on a fresh connection. Has no deadline of its own.
    pub(crate) async fn accept(&self, stream: Stream) -> io::Result<Secured> {
        let loaded = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        let Stream { reader, writer, probe, .. } = stream;
        let acceptor = TlsAcceptor::from(Arc::clone(&loaded.config));
        let socket = acceptor.accept(tokio::io::join(reader, writer)).await?;
        let shown = socket.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = shown.and_then(|der| ClientCertificate::read(der));
        if self.asks_for_certificates() && certificate.is_none() {
            // The verifier has refused it already; nobody comes in by a way that it does not know.
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Secured { socket, certificate, names: loaded.names.clone(), probe })
    }
}

impl TlsFiles {
    fn stamps(&self) -> [Stamp; 3] {
        let ca = self.client_ca.as_deref().and_then(files::stamp);
        [files::stamp(&self.cert), files::stamp(&self.key), ca]
    }
}

impl OwnNames {
    /// Whether our own certificate is for this host: a page whose name was made to lead here has no such certificate.
    /// A wildcard does not count, since whoever has another name under it would be taken for us.
    pub(crate) fn has(&self, host: &str) -> bool {
        self.0.iter().any(|name| match name {
            Name::Dns(dns) => !dns.contains('*') && dns.eq_ignore_ascii_case(host),
            Name::Ip(ip) => host.parse() == Ok(*ip),
            Name::Uri(_) | Name::Email(_) => false,
        })
    }
}

impl Secured {
    /// The halves, with what the kernel knows of the peer below TLS.
    pub(crate) fn into_stream(self) -> Stream {
        let (reader, writer) = tokio::io::split(self.socket);
        Stream { probe: self.probe, is_private: true, ..Stream::new(reader, writer) }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn load(files: &TlsFiles) -> Result<Loaded, TlsError> {
    // Given here, so that a program that has another default provider, or none, keeps it.
    let provider = Arc::new(default_provider());
    let chain = files::certificates(&files.cert)?;
    let key = files::private_key(&files.key)?;
    let names = OwnNames(chain.first().map(|leaf| names::of(leaf)).unwrap_or_default().into());
    let clients: Arc<dyn ClientCertVerifier> = match &files.client_ca {
        Some(path) => Verifier::new(path, Arc::clone(&provider))?,
        None => Arc::new(NoClientAuth),
    };
    let versions: &[&SupportedProtocolVersion] = match files.oldest {
        Oldest::Tls12 => &[&TLS13, &TLS12],
        Oldest::Tls13 => &[&TLS13],
    };
    let failed = |source| TlsError::Pair { cert: files.cert.clone(), key: files.key.clone(), source };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(failed)?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(failed)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Loaded { config: Arc::new(config), names })
}

/// An error with its reasons, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(reason) = source {
        said = format!("{said}: {reason}");
        source = reason.source();
    }
    said
}
