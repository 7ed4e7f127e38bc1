//! TLS for `wss://`: trusted authorities, the client certificate, and explanations of a failed handshake.

use std::path::{Path, PathBuf};

/// The trusted certificate authorities and the client certificate of a `wss://` connection. By default the system's authorities are trusted
/// and no client certificate is sent.
///
/// The files are read for each connection, so that a renewed certificate is used from the next connection on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Tls {
    /// Authorities to trust instead of the system's, PEM.
    pub(crate) ca_file: Option<PathBuf>,
    /// The client certificate with its chain, and its key, PEM.
    pub(crate) client_cert: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    setters! {
        /// Trusts only the authorities in this PEM file, and not those of the system.
        ca_file(path: impl AsRef<Path>) => ca_file = Some(path.as_ref().to_owned());
    }

    /// Sends this certificate, with its chain, to servers that request one. Both files are PEM.
    pub fn client_cert(mut self, cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.client_cert = Some((cert.as_ref().to_owned(), key.as_ref().to_owned()));
        self
    }
}

#[cfg(feature = "tls")]
pub(super) use with_rustls::{refusal, secure};
#[cfg(not(feature = "tls"))]
pub(super) use without::{refusal, secure};

#[cfg(feature = "tls")]
mod with_rustls {
    use std::{io, path::PathBuf, sync::Arc};

    use exec_server_rpc::ByteStream;
    use rustls::{
        AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore,
        crypto::aws_lc_rs::default_provider,
    };
    use rustls_pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject as _},
    };
    use tokio_rustls::TlsConnector;

    use super::Tls;
    use crate::error::{ConnectFailure, chain};

    /// Why TLS could not be established.
    #[derive(Debug, thiserror::Error)]
    pub(in crate::transport) enum TlsError {
        #[error("read `{}`", path.display())]
        File { path: PathBuf, source: pem::Error },
        #[error("there is no certificate in `{}`", path.display())]
        NoCertificate { path: PathBuf },
        #[error("this system has no certificate authorities; pass a CA file with `--tls-ca`")]
        NoSystemRoots,
        #[error("the host is neither a valid DNS name nor an IP address")]
        Name,
        #[error("set TLS up")]
        Setup(#[from] rustls::Error),
        #[error("set TLS up: the runtime is shutting down")]
        Cancelled,
        #[error("{reason}")]
        Refused { reason: String },
        #[error("the connection ended during the TLS handshake; is it a `wss://` server?")]
        Handshake(#[source] io::Error),
    }

    impl TlsError {
        pub(in crate::transport) fn failure(&self) -> ConnectFailure {
            match self {
                Self::Handshake(_) => ConnectFailure::NotListening,
                Self::Cancelled => ConnectFailure::Busy,
                _ => ConnectFailure::Permanent,
            }
        }
    }

    /// Does the TLS handshake on a new connection to `host`. Has no timeout.
    pub(in crate::transport) async fn secure(
        tls: &Tls,
        stream: ByteStream,
        host: &str,
    ) -> Result<ByteStream, TlsError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name)?;
        let tls = tls.clone();
        // Reads files, including the system's authorities, which blocks.
        let config = tokio::task::spawn_blocking(move || config(&tls)).await.map_err(|_| TlsError::Cancelled)??;
        let ByteStream { reader, writer, probe, .. } = stream;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, tokio::io::join(reader, writer));
        let secured = connecting.await.map_err(|error| match refusal(&error) {
            Some(reason) => TlsError::Refused { reason },
            None => TlsError::Handshake(error),
        })?;
        let (reader, writer) = tokio::io::split(secured);
        Ok(ByteStream { probe, is_private: true, ..ByteStream::new(reader, writer) })
    }

    fn config(tls: &Tls) -> Result<ClientConfig, TlsError> {
        let mut roots = RootCertStore::empty();
        match &tls.ca_file {
            Some(path) => {
                for certificate in certificates(path.clone())? {
                    roots.add(certificate)?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                for error in &found.errors {
                    tracing::debug!("system certificates: {}", chain(error));
                }
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    return Err(TlsError::NoSystemRoots);
                }
            }
        }
        // Explicit, because the program may have installed another default provider, or none.
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match &tls.client_cert {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let private =
                    PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File { path: key.clone(), source })?;
                builder.with_client_auth_cert(certificates(cert.clone())?, private)?
            }
        };
        // Without ALPN, a server that speaks several protocols could choose another one than HTTP/1.1.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    fn certificates(path: PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let read = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(certificates) if certificates.is_empty() => Err(TlsError::NoCertificate { path }),
            Ok(certificates) => Ok(certificates),
            Err(source) => Err(TlsError::File { path, source }),
        }
    }

    /// Explains an error on a TLS stream; `None` if TLS is not the reason. With TLS 1.3, a server rejects a client certificate only after
    /// the handshake.
    pub(in crate::transport) fn refusal(error: &io::Error) -> Option<String> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(match error {
            rustls::Error::InvalidCertificate(reason) => certificate(reason),
            rustls::Error::AlertReceived(
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::DecryptError
                | AlertDescription::AccessDenied,
            ) => format!(
                "the server requires a client certificate that it trusts ({error}); pass `--tls-cert` and `--tls-key`"
            ),
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                "the answer is not TLS; for a plain server use `ws://`".to_owned()
            }
            error => format!("TLS failed: {}", short(&error.to_string())),
        })
    }

    fn certificate(reason: &CertificateError) -> String {
        match reason {
            // A bad signature means that another authority has the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the server's certificate comes from an authority that is not trusted here; pass its CA with `--tls-ca`"
                    .to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                let reason = short(&reason.to_string());
                format!("the server's certificate is for another name; connect by a name that is in it ({reason})")
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired, or the clock of this machine is wrong".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet, or the clock of this machine is wrong".to_owned()
            }
            reason => format!("the server's certificate is refused: {}", short(&reason.to_string())),
        }
    }

    /// Shortens text that comes from the peer's certificate, and replaces its control characters, before it is shown on a terminal.
    fn short(text: &str) -> String {
        text.chars().take(200).map(|char| if char.is_control() { '?' } else { char }).collect()
    }
}

#[cfg(not(feature = "tls"))]
mod without {
    use std::io;

    use exec_server_rpc::ByteStream;

    use super::Tls;
    use crate::error::ConnectFailure;

    /// Why TLS could not be established.
    #[derive(Debug, thiserror::Error)]
    #[error("this program was built without TLS: use `ws://` through a tunnel, or `ssh://`")]
    pub(in crate::transport) struct TlsNotBuiltError;

    impl TlsNotBuiltError {
        pub(in crate::transport) fn failure(&self) -> ConnectFailure {
            ConnectFailure::Permanent
        }
    }

    pub(in crate::transport) async fn secure(
        tls: &Tls,
        _: ByteStream,
        _: &str,
    ) -> Result<ByteStream, TlsNotBuiltError> {
        tracing::debug!(ca_file = ?tls.ca_file, client_cert = tls.client_cert.is_some(), "no TLS in this program");
        Err(TlsNotBuiltError)
    }

    pub(in crate::transport) fn refusal(_: &io::Error) -> Option<String> {
        None
    }
}
