//! TLS for `wss://` listeners: our certificate, the authorities for client certificates, and the handshake.
//!
//! The files are read at startup, where any error ends the server. They are read again when they change; then an error
//! is logged and the old certificates stay in use. TLS sessions are not resumed, because a resumed session would skip
//! the check of the client's certificate.

mod files;
mod names;
mod verifier;

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use exec_server_rpc::{ByteStream, TcpProbe};
use parking_lot::RwLock;
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

use self::{names::CertificateName, verifier::ClientVerifier};
use crate::state_dir::{
    NotPrivate,
    private::{FileStamp, stamp},
};

/// How often to check the files for changes.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The oldest accepted TLS version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinTlsVersion {
    /// TLS 1.2 and 1.3.
    Tls12,
    /// Only TLS 1.3.
    #[default]
    Tls13,
}

/// Paths of the PEM files, and the oldest TLS version.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Our certificate, followed by its chain.
    pub cert: PathBuf,
    /// The private key. No other user may have access to it.
    pub key: PathBuf,
    /// The authorities for client certificates. `None`: client certificates are not requested.
    pub client_ca: Option<PathBuf>,
    pub oldest: MinTlsVersion,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file is not PEM, or lacks the needed kind of section.
    #[error("read `{}` as PEM", path.display())]
    Pem { path: PathBuf, source: pem::Error },
    #[error("there is no certificate in `{}`", path.display())]
    NoCertificate { path: PathBuf },
    /// Other users can read the key or could have written it.
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
    /// The authorities for client certificates are invalid.
    #[error("client authorities in `{}` cannot be used: {reason}", path.display())]
    Authorities { path: PathBuf, reason: String },
    /// The certificate and the key do not match, or their kind is not supported.
    #[error("certificate in `{}` cannot be used with the key in `{}`", cert.display(), key.display())]
    Pair { cert: PathBuf, key: PathBuf, source: rustls::Error },
}

/// A client certificate whose chain was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Subject alternative names, at least one. The first one names the principal.
    pub names: Vec<String>,
    /// SHA-256 of the certificate's DER, in hexadecimal.
    pub fingerprint: String,
}

impl ClientCertificate {
    /// Returns `None` if the certificate has no usable name.
    fn read(der: &[u8]) -> Option<Self> {
        let names = names::client_names(der);
        if names.is_empty() {
            return None;
        }
        Some(Self { names, fingerprint: hex::encode(Sha256::digest(der)) })
    }
}

/// The TLS configuration, replaced when the files change.
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Arc<LoadedTls>>,
    /// Stamps of the files, taken before they were first read.
    first: [FileStamp; 3],
}

struct LoadedTls {
    config: Arc<ServerConfig>,
    names: OwnNames,
}

/// The subject alternative names in our own certificate.
#[derive(Clone, Debug)]
pub(crate) struct OwnNames(Arc<[CertificateName]>);

type TlsSocket = TlsStream<Join<Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>>>;

/// A connection after its TLS handshake.
pub(crate) struct SecuredConnection {
    pub(crate) socket: TlsSocket,
    pub(crate) certificate: Option<ClientCertificate>,
    pub(crate) names: OwnNames,
    probe: Option<TcpProbe>,
}

impl Tls {
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        // Take the stamps before reading: if a file changes while it is read, `watch` notices.
        let first = files.stamps();
        let loaded = load(&files)?;
        Ok(Self { files, current: RwLock::new(Arc::new(loaded)), first })
    }

    /// Whether clients must present a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Reloads the files whenever they change, forever. Open connections keep the old certificates.
    pub(crate) async fn watch(&self) {
        let mut tick = time::interval(CHECK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = self.first;
        let mut failure = None;
        loop {
            tick.tick().await;
            let now = self.files.stamps();
            // After a failure, retry also without a change: the file may have been read while it was being written.
            if now == seen && failure.is_none() {
                continue;
            }
            seen = now;
            match load(&self.files) {
                Ok(loaded) => {
                    *self.current.write() = Arc::new(loaded);
                    failure = None;
                    tracing::info!("certificates reloaded");
                }
                Err(error) => {
                    let text = chain(&error);
                    if failure.as_ref() != Some(&text) {
                        tracing::warn!("cannot use the new certificates, keeping the old ones: {text}");
                    }
                    failure = Some(text);
                }
            }
        }
    }

    /// Does the TLS handshake. The caller must set a deadline.
    pub(crate) async fn accept(&self, stream: ByteStream) -> io::Result<SecuredConnection> {
        let loaded = Arc::clone(&self.current.read());
        let ByteStream { reader, writer, probe, .. } = stream;
        let acceptor = TlsAcceptor::from(Arc::clone(&loaded.config));
        let socket = acceptor.accept(tokio::io::join(reader, writer)).await?;
        let leaf = socket.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = leaf.and_then(|der| ClientCertificate::read(der));
        if self.asks_for_certificates() && certificate.is_none() {
            // The verifier should have refused this already. Checked again, so that a connection without a certificate
            // can never get in.
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(SecuredConnection { socket, certificate, names: loaded.names.clone(), probe })
    }
}

impl TlsFiles {
    fn stamps(&self) -> [FileStamp; 3] {
        [stamp(&self.cert), stamp(&self.key), self.client_ca.as_deref().and_then(stamp)]
    }
}

impl OwnNames {
    /// Whether our certificate is valid for this host name. This protects against DNS rebinding: the name of an
    /// attacker's page is not in our certificate. Wildcards do not count, because another host under the same wildcard
    /// would be accepted.
    pub(crate) fn has(&self, host: &str) -> bool {
        self.0.iter().any(|name| match name {
            CertificateName::Dns(dns) => !dns.contains('*') && dns.eq_ignore_ascii_case(host),
            CertificateName::Ip(ip) => host.parse() == Ok(*ip),
            CertificateName::Uri(_) | CertificateName::Email(_) => false,
        })
    }
}

impl SecuredConnection {
    /// Splits into reader and writer, and keeps the TCP probe of the socket below TLS.
    pub(crate) fn into_stream(self) -> ByteStream {
        let (reader, writer) = tokio::io::split(self.socket);
        ByteStream { probe: self.probe, is_private: true, ..ByteStream::new(reader, writer) }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn load(files: &TlsFiles) -> Result<LoadedTls, TlsError> {
    // Pass the provider explicitly, so that the process-wide default provider of an embedding program is not touched.
    let provider = Arc::new(default_provider());
    let chain = files::certificates(&files.cert)?;
    let key = files::private_key(&files.key)?;
    let names = OwnNames(chain.first().map(|leaf| names::of(leaf)).unwrap_or_default().into());
    let clients: Arc<dyn ClientCertVerifier> = match &files.client_ca {
        Some(path) => ClientVerifier::new(path, Arc::clone(&provider))?,
        None => Arc::new(NoClientAuth),
    };
    let versions: &[&SupportedProtocolVersion] = match files.oldest {
        MinTlsVersion::Tls12 => &[&TLS13, &TLS12],
        MinTlsVersion::Tls13 => &[&TLS13],
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
    Ok(LoadedTls { config: Arc::new(config), names })
}

/// The error with all its sources, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(reason) = source {
        text = format!("{text}: {reason}");
        source = reason.source();
    }
    text
}
