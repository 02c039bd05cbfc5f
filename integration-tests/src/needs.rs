//! What a test needs of the host it runs on.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::home;

/// Something that a host may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The broker's jars.
    Broker,
    /// The engine's Python environment.
    Engine,
    /// Root and a kernel that can be profiled.
    Profiling,
    /// A program on the path.
    Program(&'static str),
}

impl Need {
    /// Returns what is missing, and how to get it.
    fn missing(self) -> Option<String> {
        let without = |there: bool, reason: &str| (!there).then(|| reason.to_owned());
        match self {
            Self::Broker => without(
                home().join("kafka/jars/.stamp").exists(),
                "the broker's jars are missing: infra/kafka/broker.sh install",
            ),
            Self::Engine => without(
                home().join("venv/bin/python").exists(),
                "the engine is missing: infra/clickhouse/engine.sh install",
            ),
            Self::Profiling if !rustix::process::getuid().is_root() => Some("profiling needs root".into()),
            Self::Profiling => without(
                Path::new("/sys/kernel/btf/vmlinux").exists(),
                "profiling needs a kernel with BTF",
            ),
            Self::Program(name) => {
                let found = Command::new("sh")
                    .args(["-c", "command -v \"$1\"", "sh", name])
                    .stdout(Stdio::null())
                    .status();
                without(
                    found.is_ok_and(|status| status.success()),
                    &format!("{name} is not installed: infra/setup.sh installs it"),
                )
            }
        }
    }
}

/// Returns the first of `needs` that this host lacks, in words.
pub fn missing(needs: &[Need]) -> Option<String> {
    needs.iter().find_map(|need| need.missing())
}
