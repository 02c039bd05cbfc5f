//! What is wrong with a configuration, and where.

/// One thing that whoever wrote it mends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Something in a file.
    #[error("{file}:{line}: {what}")]
    Wrong {
        /// The file, as it was named.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong, and what to do about it.
        what: String,
    },
    /// There is more than can be meant.
    #[error("{count} {what}, of at most {most}: is it the right folder?")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// A file that is too large to be one.
    #[error("{file} has {bytes} bytes, of at most {most}: make two of it")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: usize,
        /// The limit.
        most: usize,
    },
}
