//! What an operator could fix. That a binary is not there is an answer, never an error.

use std::io;
use std::path::PathBuf;

/// Why the symbol store cannot work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder of the store cannot be used.
    #[error("folder `{}` cannot be used: it must exist or be creatable, and be writable", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The store refused an operation.
    #[error("symbol store: {what} `{object}` failed")]
    Store {
        /// What was tried.
        what: &'static str,
        /// The object.
        object: String,
        /// What the store said.
        source: object_store::Error,
    },
    /// A binary that was to be put into the store could not be read.
    #[error("binary `{object}` cannot be read")]
    Read {
        /// The object that it was to become.
        object: String,
        /// What the system said.
        source: io::Error,
    },
    /// A binary was not the one that was announced, or changed while it was read. Nothing was stored.
    #[error("binary `{object}` changed while it was read: expected SHA-256 {expected}, found {found}")]
    Changed {
        /// The object that it was to become.
        object: String,
        /// The hash that was announced.
        expected: String,
        /// The hash of what was read.
        found: String,
    },
}

impl StoreError {
    /// Returns whether the same may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        use object_store::Error as Object;
        match self {
            Self::Store { source, .. } => !matches!(
                source,
                Object::NotSupported { .. } | Object::NotImplemented { .. } | Object::InvalidPath { .. }
            ),
            Self::Read { .. } | Self::Changed { .. } => true,
            Self::Folder { .. } => false,
        }
    }
}
