//! The engine that the tests share: started by the first, stopped when the last is done.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};

use strobe_explore::{ClickHouse, ClickHouseConfig};

/// A running engine in a folder of its own.
pub struct Running {
    folder: tempfile::TempDir,
    port: u16,
}

/// A share in the running engine.
pub type Engine = Arc<Running>;

static SHARED: Mutex<Weak<Running>> = Mutex::new(Weak::new());

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/clickhouse/engine.sh")
}

/// Returns the engine, or nothing, with a line that says why, where it is not installed.
pub fn engine(test: &str) -> Option<Engine> {
    let home = std::env::var_os("STROBE_HOME")
        .map_or_else(|| script().with_file_name("../../.strobe"), PathBuf::from);
    if !home.join("venv/bin/python").exists() {
        println!("skipped: {test}: the engine is not installed: infra/clickhouse/engine.sh install");
        return None;
    }
    let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(running) = shared.upgrade() {
        return Some(running);
    }
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let running = Running {
        folder: tempfile::tempdir().unwrap(),
        port,
    };
    assert!(running.engine_sh("start"), "the engine does not start");
    let running = Arc::new(running);
    *shared = Arc::downgrade(&running);
    Some(running)
}

impl Running {
    fn engine_sh(&self, command: &str) -> bool {
        let at = |name: &str| self.folder.path().join(name).into_os_string();
        Command::new(script())
            .arg(command)
            .args([
                "--port",
                &self.port.to_string(),
                "--name",
                "explore-tests",
                "--data",
            ])
            .args([
                at("data"),
                "--log".into(),
                at("log"),
                "--pid-file".into(),
                at("pid"),
            ])
            .status()
            .unwrap()
            .success()
    }

    /// Returns how `user` reaches the database `database`.
    pub fn settings(&self, user: &str, database: &str) -> ClickHouse {
        let password = format!("data.{}.password", user.trim_start_matches("strobe_"));
        let config = ClickHouseConfig {
            url: format!("http://127.0.0.1:{}", self.port),
            database: database.into(),
            user: user.into(),
            password_file: Some(self.folder.path().join(password)),
        };
        config.validate().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.engine_sh("stop");
    }
}
