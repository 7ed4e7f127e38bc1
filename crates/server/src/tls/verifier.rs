//! Verifies client certificates: webpki checks the chain (authority, dates, purpose). A certificate without a usable
//! name is refused here as well, during the handshake.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::{ClientCertificate, TlsError, files};

#[derive(Debug)]
pub(super) struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
}

impl ClientVerifier {
    /// Creates a verifier that trusts the authorities in a PEM file.
    pub(super) fn new(authorities: &std::path::Path, provider: Arc<CryptoProvider>) -> Result<Arc<Self>, TlsError> {
        let failed = |reason: String| TlsError::Authorities { path: authorities.to_owned(), reason };
        let mut roots = RootCertStore::empty();
        for certificate in files::certificates(authorities)? {
            roots.add(certificate).map_err(|error| failed(error.to_string()))?;
        }
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let chain = chain.build().map_err(|error| failed(error.to_string()))?;
        Ok(Arc::new(Self { chain }))
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(certificate, intermediates, now)?;
        if ClientCertificate::read(certificate).is_none() {
            tracing::warn!("refused a client certificate without a URI, DNS or e-mail name");
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
