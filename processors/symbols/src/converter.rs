//! The parent's side of a conversion: one worker for one binary, and its file proved before anybody sees it.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strobe_event::Reason;

use crate::child::{Ended, Worker};
use crate::error::SymbolsError;
use crate::file::{Facts, Sizes, SymbolFile};
use crate::settings::PROGRAM_BYTES;
use crate::wire::{self, Hello, Piece};

/// Memory for looking a new symbol file over: it is read once, from front to back.
const LOOK_BYTES: usize = 1 << 20;

/// Limits on one conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertLimits {
    /// Longest time. 300 MB of debug information take some seconds; the default is 5 minutes.
    pub time: Duration,
    /// Private memory of the worker. Debug information costs about its own size; the default is 2 GiB.
    pub memory_bytes: u64,
    /// Largest binary, and debug file. The default is 2 GiB.
    pub binary_bytes: u64,
    /// Largest symbol file. The default is 1 GiB, some thirty times the usual share of the largest binary.
    pub file_bytes: u64,
}

impl Default for ConvertLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(5 * 60),
            memory_bytes: 2 << 30,
            binary_bytes: 2 << 30,
            file_bytes: 1 << 30,
        }
    }
}

/// What a symbol file is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConvertSources<'a> {
    /// The binary.
    pub binary: Option<&'a Path>,
    /// Its separate debug information.
    pub debug: Option<&'a Path>,
    /// What was split off from its debug information (`.dwp`).
    pub package: Option<&'a Path>,
}

/// How a conversion ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conversion {
    /// There is a symbol file.
    Made {
        /// What it was made of.
        facts: Facts,
        /// Its size, by parts.
        sizes: Sizes,
    },
    /// The binary gives none: it is damaged, or over a limit.
    Failed {
        /// Why.
        reason: Reason,
        /// The same for people, with the limit or the part in it.
        detail: String,
    },
}

/// Makes symbol files.
#[derive(Debug, Clone)]
pub struct Converter {
    /// Command line of the worker: something that calls [`worker_main`](crate::worker_main).
    pub worker: Vec<OsString>,
    /// Folders in which separate debug information is looked for.
    pub debug_folders: Vec<PathBuf>,
    /// Limits.
    pub limits: ConvertLimits,
}

impl Converter {
    /// Makes the symbol file of a binary at `place`, which is written whole or stays what it was.
    ///
    /// # Errors
    /// [`SymbolsError`] where no worker can be started or the file cannot be written: nothing that the binary is to
    /// blame for.
    pub fn convert(&self, sources: ConvertSources<'_>, place: &Path) -> Result<Conversion, SymbolsError> {
        let folder = place
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new()
            .prefix(".symbols-")
            // As any file that is made for a person: what the mask leaves of it.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        let made = self.write(sources, file.as_file_mut())?;
        if let Conversion::Made { .. } = made {
            file.persist(place)
                .map_err(|refused| SymbolsError::from(refused.error))?;
        }
        Ok(made)
    }

    /// Makes the symbol file of a binary in a file without a name, which is gone when it is closed; returns it from its
    /// start on.
    ///
    /// # Errors
    /// As [`Converter::convert`].
    pub(crate) fn convert_unnamed(
        &self,
        sources: ConvertSources<'_>,
        folder: &Path,
    ) -> Result<(Conversion, File), SymbolsError> {
        let mut file = tempfile::tempfile_in(folder)?;
        let made = self.write(sources, &mut file)?;
        file.rewind()?;
        Ok((made, file))
    }

    fn write(&self, sources: ConvertSources<'_>, file: &mut File) -> Result<Conversion, SymbolsError> {
        let failed = |reason, detail: &str| {
            Ok(Conversion::Failed {
                reason,
                detail: detail.to_owned(),
            })
        };
        let limits = &self.limits;
        let hello = Hello {
            memory_bytes: limits.memory_bytes,
            address_space_bytes: limits.memory_bytes.saturating_add(PROGRAM_BYTES),
            binary_bytes: limits.binary_bytes,
            parsed: 1,
            debug_folders: self.debug_folders.clone(),
        };
        let mut worker = Worker::start(&self.worker, &hello)?;
        let deadline = Instant::now() + limits.time;
        let request = wire::encode_convert([sources.binary, sources.debug, sources.package]);
        let mut bytes = 0_u64;
        let mut sent = worker.send(&request, deadline);
        loop {
            let message = match sent.and_then(|()| worker.receive(deadline)) {
                Ok(message) => message,
                Err(Ended::Late) => {
                    return failed(
                        Reason::OverLimit,
                        &format!("it took longer than {:?}", limits.time),
                    );
                }
                Err(Ended::Died) => {
                    let detail = format!(
                        "it ended the worker, most likely by its limit of {} MiB of memory",
                        limits.memory_bytes >> 20
                    );
                    return failed(Reason::BinaryRefused, &detail);
                }
                Err(Ended::Nonsense) => return failed(Reason::BinaryRefused, "the worker spoke nonsense"),
            };
            sent = Ok(());
            match wire::decode_piece(message) {
                Some(Piece::Part(part)) => {
                    bytes += part.len() as u64;
                    if bytes > limits.file_bytes {
                        let detail =
                            format!("its symbol file is over the limit of {} bytes", limits.file_bytes);
                        return failed(Reason::OverLimit, &detail);
                    }
                    file.write_all(part)?;
                }
                Some(Piece::End) => break,
                Some(Piece::Failed(reason)) => return failed(reason, reason.text()),
                None => return failed(Reason::BinaryRefused, "the worker spoke nonsense"),
            }
        }
        drop(worker);
        // The worker has parsed what nobody trusts, so its file is looked over before it is used.
        let proved = SymbolFile::open(Box::new(file.try_clone()?), bytes, LOOK_BYTES)
            .and_then(|file| file.verify().map(|()| (file.facts(), file.sizes())));
        match proved {
            Ok((facts, sizes)) => Ok(Conversion::Made { facts, sizes }),
            Err(SymbolsError::Damaged { what }) => {
                failed(Reason::BinaryRefused, &format!("its symbol file: {what}"))
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
#[path = "converter/mutants.rs"]
mod mutants;
