//! Reads and checks the PEM files of TLS.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject as _},
};
use zeroize::Zeroizing;

use super::TlsError;
use crate::state_dir::private;

/// Most bytes that are read of a file. A certificate chain has a few KiB, a bundle of authorities some hundred.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// The certificates in a PEM file. Fails if there are none.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path, File::open(path).map_err(|source| failed(path, source))?)?;
    let parsed: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    match parsed {
        Ok(certificates) if certificates.is_empty() => Err(TlsError::NoCertificate { path: path.to_owned() }),
        Ok(certificates) => Ok(certificates),
        Err(source) => Err(TlsError::Pem { path: path.to_owned(), source }),
    }
}

/// The private key in a PEM file that belongs to us or root and that no other user can access.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let file = File::open(path).map_err(|source| failed(path, source))?;
    private::check(&file, &file.metadata().map_err(|source| failed(path, source))?, path)?;
    let bytes = read(path, file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}

fn read(path: &Path, file: File) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let size = file.metadata().map_err(|source| failed(path, source))?.len().min(FILE_MAX_BYTES);
    // Allocate once: growing the buffer would leave copies of the key in freed memory. One spare byte lets
    // `read_to_end` see EOF without growing.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or_default() + 1));
    file.take(FILE_MAX_BYTES).read_to_end(&mut bytes).map_err(|source| failed(path, source))?;
    Ok(bytes)
}

fn failed(path: &Path, source: io::Error) -> TlsError {
    TlsError::Read { path: PathBuf::from(path), source }
}
