//! The stop file: while it is there, nothing on this host is profiled. It is a file so that it outlasts a restart, and needs neither the
//! agent nor the bus to be heard.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The file's name, in the agent's state folder, unless configured.
pub const FILE: &str = "stop";
/// Bytes of its text that are read: a line of somebody's reasons.
const TEXT_BYTES_MAX: usize = 200;

/// The stop file, and what else can halt profiling as a whole.
#[derive(Debug)]
pub struct Halt {
    file: PathBuf,
    why: Mutex<Option<String>>,
    owner: Mutex<Option<u32>>,
}

impl Halt {
    /// Returns the state of `file`.
    pub fn new(file: &Path) -> Self {
        let halt = Self {
            file: file.to_owned(),
            why: Mutex::default(),
            owner: Mutex::default(),
        };
        halt.look(None);
        halt
    }

    /// Looks at the file, and takes `other` as a reason where there is none. Returns why nothing is profiled, where that is so.
    pub fn look(&self, other: Option<&str>) -> Option<String> {
        let metadata = fs::metadata(&self.file);
        let why = match &metadata {
            Ok(_) => Some(self.text()),
            Err(_) => other.map(str::to_owned),
        };
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) =
            metadata.ok().map(|metadata| metadata.uid());
        self.why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&why);
        why
    }

    /// Returns why nothing is profiled, as of the last look.
    pub fn why(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the user whose stop file it is, as of the last look; nothing where there is none.
    pub fn owner(&self) -> Option<u32> {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> String {
        let bytes = fs::read(&self.file).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]).into_owned();
        let text: String = text
            .trim()
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let file = self.file.display();
        match text.is_empty() {
            true => format!("profiling is stopped on this host by {file}"),
            false => format!("profiling is stopped on this host by {file}: {text}"),
        }
    }
}

/// Writes the stop file; returns whether it was not there.
///
/// # Errors
/// What the system says.
pub fn stop(file: &Path, reason: &str) -> io::Result<bool> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let is_new = !file.exists();
    fs::write(file, reason)?;
    fs::File::open(file)?.sync_all()?;
    Ok(is_new)
}

/// Removes the stop file; returns whether it was there.
///
/// # Errors
/// What the system says.
pub fn start(file: &Path) -> io::Result<bool> {
    match fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the file is seen as soon as it is there, that its text is bounded and harmless, and that it can be taken away.
    #[test]
    fn the_file_is_seen_while_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state").join(FILE);
        let halt = Halt::new(&file);
        assert_eq!(halt.why(), None);
        assert_eq!(
            halt.look(Some("over the budget")).as_deref(),
            Some("over the budget")
        );
        assert!(stop(&file, &format!("a\u{1b}[31m{}", "é".repeat(9_999))).unwrap());
        let why = halt.look(None).unwrap();
        assert!(
            why.contains("stopped on this host") && !why.chars().any(char::is_control),
            "{why}"
        );
        assert!(why.len() < 1_000);
        assert!(Halt::new(&file).why().is_some(), "also for one that starts later");
        assert_eq!(halt.owner(), Some(rustix::process::getuid().as_raw()));
        assert!(start(&file).unwrap() && !start(&file).unwrap());
        assert_eq!((halt.look(None), halt.owner()), (None, None));
    }
}
