//! Signing with a person's key, by OpenSSH itself.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::SigningError;
use crate::{Namespace, PAYLOAD_BYTES_MAX};

/// Returns the armored signature that `ssh-keygen -Y sign` makes over these bytes. The key is a private key's file, or the `.pub` of one
/// that `ssh-agent` holds; a passphrase is asked for on the terminal, as ssh does.
///
/// # Errors
///
/// More bytes than a signature may be over; no `ssh-keygen` (package openssh-client); what `ssh-keygen` says.
pub fn sign_with_ssh_keygen(
    key: &Path,
    namespace: Namespace,
    payload: &[u8],
) -> Result<String, SigningError> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(SigningError::Payload { bytes: payload.len() });
    }
    let failed = |message: String| SigningError::Keygen {
        path: key.to_owned(),
        message,
    };
    // Without a file to sign it reads standard input and writes the signature to standard output.
    let mut child = Command::new("ssh-keygen")
        .args(["-Y", "sign", "-n", namespace.as_str(), "-f"])
        .arg(key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| {
            failed(format!(
                "cannot start it: {e}; it is in the package openssh-client"
            ))
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // A closed pipe means that it has ended early: what it said is the better message.
        let _ = stdin.write_all(payload);
    }
    let output = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let last = said
            .lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or("it failed without a word");
        return Err(failed(last.trim_end().to_owned()));
    }
    String::from_utf8(output.stdout).map_err(|_| failed("its answer is no text".into()))
}
