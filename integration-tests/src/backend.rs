//! Where broker, engine and the parts of the system run: as processes of this host, or in containers.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// The variable that chooses.
const CHOICE: &str = "STROBE_TEST_BACKEND";

/// Images that `make images` builds, with the names that it gives them.
const IMAGES: [&str; 4] = ["broker", "engine", "strobe", "agent"];

/// The user that the images run as.
const USER: u32 = 10_001;

/// What a container is to run.
pub struct Plan<'a> {
    /// `broker`, `engine`, `strobe` or `agent`.
    pub image: &'a str,
    /// What its entry point gets.
    pub arguments: Vec<String>,
    /// Variables of its environment.
    pub variables: Vec<(String, String)>,
    /// Folders of the host: where they are, and where it sees them.
    pub folders: Vec<(&'a Path, String)>,
    /// Where its output goes.
    pub log: &'a Path,
}

/// Where everything runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// As processes of this host, from what was just built.
    Native,
    /// In containers, from the images that `make images` built.
    Containers,
}

impl Backend {
    /// Returns what `STROBE_TEST_BACKEND` says: `native` (also where it is not set) or `containers`.
    ///
    /// # Errors
    /// Where it says something else: tests of the wrong thing show nothing.
    pub fn chosen() -> Result<Self> {
        match std::env::var(CHOICE).as_deref() {
            Err(_) | Ok("" | "native") => Ok(Self::Native),
            Ok("containers") => Ok(Self::Containers),
            Ok(other) => bail!("{CHOICE} is `{other}`: say `native` or `containers`"),
        }
    }

    /// Gives a folder to whoever will write there.
    ///
    /// # Errors
    /// Where the file system refuses.
    pub fn hand_over(self, folder: &Path) -> Result<()> {
        if self == Self::Containers {
            std::os::unix::fs::chown(folder, Some(USER), Some(USER))?;
        }
        Ok(())
    }

    /// Returns what is missing for it, and how to get it.
    pub fn missing(self) -> Option<String> {
        if self == Self::Native {
            return None;
        }
        if !cfg!(feature = "containers") {
            return Some("built without the feature `containers`: make test-containers".into());
        }
        // What containers write belongs to their own user, and is handed to it.
        if !rustix::process::getuid().is_root() {
            return Some("containers and tests share folders, which takes root".into());
        }
        if !quiet(&["info"]) {
            return Some("no container engine answers: eval \"$(infra/images/engine.sh start)\"".into());
        }
        let absent = IMAGES
            .into_iter()
            .find(|name| !quiet(&["image", "inspect", &image(name)]));
        absent.map(|name| format!("the image {} is not here: make images", image(name)))
    }
}

/// Returns the full name of an image, without its tag, as `infra/images/build.sh` names it.
pub fn image(name: &str) -> String {
    let registry = std::env::var("STROBE_REGISTRY").unwrap_or_else(|_| "strobe".into());
    format!("{registry}/{name}")
}

/// Returns whether a command of `docker` succeeds.
pub fn quiet(arguments: &[&str]) -> bool {
    let status = Command::new("docker")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
