//! A spool in a folder, as the tests look into it.

use std::fs;
use std::path::{Path, PathBuf};

use strobe_spool::{Reader, Recovered, Settings, Spool, Writer};
use tempfile::TempDir;

pub fn settings(directory: &Path) -> Settings {
    Settings {
        segment_bytes: 1024,
        size_limit_bytes: 64 << 10,
        ..Settings::new(directory, "host")
    }
}

pub fn open(directory: &Path) -> (Writer, Reader, Recovered) {
    Spool::open(settings(directory)).unwrap()
}

pub fn segments(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "segment"))
        .collect();
    paths.sort();
    paths
}

pub fn payloads(reader: &mut Reader) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| reader.next().unwrap().map(|record| record.payload)).collect()
}

/// A spool on the real disk with these payloads, closed.
pub fn filled(payloads: &[&[u8]]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, _reader, _) = open(directory.path());
    for payload in payloads {
        writer.append(payload).unwrap();
    }
    directory
}

pub fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}
