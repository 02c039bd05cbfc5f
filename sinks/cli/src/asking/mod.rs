//! Asking for profiles: what `strobe profile` and `strobe runs` share.

mod bus;
mod lives;

pub use bus::{Asker, Heard, key_of, no_key};
pub use lives::{Life, Lives};

use std::path::PathBuf;

use serde::Deserialize;

/// The section `[ask]`: with which key requests are signed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AskConfig {
    /// The SSH key, `~/.ssh/id_ed25519` for example; empty: that one, if it is there. `--key` outranks it.
    pub key: PathBuf,
}

/// Returns who asks, for people.
pub fn who() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "unknown".into());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{user}@{host}")
}
