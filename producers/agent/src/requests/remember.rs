//! The requests for which this host has given its word, on disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::desk::Remembered;
use crate::plans::write_whole;

/// The file's name, in the agent's state folder.
pub const FILE: &str = "requests.json";

/// The file.
#[derive(Debug, Clone)]
pub struct Memory {
    file: PathBuf,
}

impl Memory {
    /// Returns the file in the agent's state folder.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            file: state_dir.join(FILE),
        }
    }

    /// Returns what it holds; nothing where it cannot be read, which a first start is.
    pub fn read(&self) -> BTreeMap<String, Remembered> {
        let bytes = match std::fs::read(&self.file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return BTreeMap::new(),
            Err(error) => {
                tracing::error!(%error, file = %self.file.display(), "what was promised before cannot be read");
                return BTreeMap::new();
            }
        };
        serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            tracing::error!(%error, file = %self.file.display(), "what was promised before cannot be read");
            BTreeMap::new()
        })
    }

    /// Writes what is remembered, so that it outlives a power cut.
    ///
    /// # Errors
    /// What the disk says.
    pub fn write(&self, remembered: &BTreeMap<String, Remembered>) -> std::io::Result<()> {
        write_whole(&self.file, &serde_json::to_vec(remembered)?)
    }
}
