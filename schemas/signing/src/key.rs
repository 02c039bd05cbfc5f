//! The key of a service that signs by itself.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ssh_key::{Algorithm, HashAlg, LineEnding, PrivateKey};

use crate::error::SigningError;
use crate::{Namespace, PAYLOAD_BYTES_MAX};

/// Bytes of a key's file. An Ed25519 one has about 400.
const KEY_BYTES_MAX: u64 = 16 << 10;

/// A private key without passphrase. It is wiped from memory when dropped, and is never shown.
pub struct SigningKey(PrivateKey);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({})", self.fingerprint())
    }
}

impl SigningKey {
    /// Reads a private key in OpenSSH's format.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, that others may read, or that is no unencrypted Ed25519 key.
    pub fn load(path: &Path) -> Result<Self, SigningError> {
        let unreadable = |source| SigningError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let cannot = |message: String| SigningError::Key {
            path: path.to_owned(),
            message,
        };
        let file = File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let remedy = "others could sign with it; close it with `chmod go=`";
            return Err(SigningError::TooOpen {
                path: path.to_owned(),
                mode,
                remedy,
            });
        }
        let mut text = String::new();
        file.take(KEY_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        // The library's own words could quote the file, which is a secret: they stay out of the message.
        let key = PrivateKey::from_openssh(&text)
            .map_err(|_| cannot("it is no private key in OpenSSH's format".into()))?;
        if key.is_encrypted() {
            return Err(cannot(
                "it has a passphrase, and a service has nobody to type it".into(),
            ));
        }
        if key.algorithm() != Algorithm::Ed25519 {
            return Err(cannot(format!(
                "it is of type {}, not ssh-ed25519",
                key.algorithm()
            )));
        }
        Ok(Self(key))
    }

    /// Returns the key as `ssh-keygen -l` shows it.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint(HashAlg::Sha256).to_string()
    }

    /// Returns the armored signature over these bytes, as `ssh-keygen -Y sign` writes it.
    ///
    /// # Errors
    ///
    /// More bytes than a signature may be over.
    pub fn sign(&self, namespace: Namespace, payload: &[u8]) -> Result<String, SigningError> {
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(SigningError::Payload { bytes: payload.len() });
        }
        let failed = |e: ssh_key::Error| SigningError::Key {
            path: self.fingerprint().into(),
            message: format!("signing failed: {e}"),
        };
        let signature = self
            .0
            .sign(namespace.as_str(), HashAlg::Sha512, payload)
            .map_err(failed)?;
        signature.to_pem(LineEnding::LF).map_err(failed)
    }
}
