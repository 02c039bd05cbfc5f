//! What stacks of one process run through: which of its code has a table, which keeps frame pointers, what is missing.
//!
//! The same files are opened, and the same worker makes the tables, as while sampling; nothing is sampled.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use strobe_unwind::rule::{Cfa, RBP, Step};
use strobe_unwind::{Kept, Maker, Table};

use crate::config::UnwindConfig;
use crate::error::AgentError;
use crate::files::{Backing, Files, MappedFile};
use crate::{procfs, tables};

/// Binaries of one process that are looked at: browsers map some 300.
const BINARIES_MAX: usize = 1_024;

/// What is known of a piece of a process's code.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Code {
    /// Call frame information became a table.
    Table {
        /// Rows.
        rows: u32,
        /// Rows that no rule expresses: stacks end there.
        unsupported: u32,
        /// Share of the code that has a frame pointer, by the table: 0 to 1.
        frame_pointers: f64,
        /// Share of the bytes between its first and last row of which nothing is said, 0 to 1: walked by frame pointers.
        unknown: f64,
    },
    /// There is no table: stacks go through it by frame pointers, if it keeps any.
    NoTable {
        /// Why.
        why: String,
    },
    /// Generated while the process runs: no file describes it.
    Generated,
}

/// All executable mappings of one file, or all without a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Piece {
    /// Path, as the process sees it.
    pub path: String,
    /// Bytes mapped.
    pub bytes: u64,
    /// What is known of it.
    pub code: Code,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explained {
    /// The process.
    pub pid: u32,
    /// Its code, the largest piece first.
    pub pieces: Vec<Piece>,
    /// What to do about what is missing.
    pub advice: Vec<String>,
}

/// Runtimes that generate code, by a part of a file's name, and what they need.
const RUNTIMES: [(&str, &str); 6] = [
    (
        "libjvm.so",
        "the JVM: what JDK 9 to 22 say of their generated code is enough; others need -XX:+PreserveFramePointer, else stacks end \
         in compiled Java code",
    ),
    (
        "node",
        "Node: its generated code keeps frame pointers; --perf-basic-prof gives the functions names",
    ),
    (
        "libcoreclr.so",
        ".NET: its generated code keeps frame pointers; DOTNET_PerfMapEnabled=1 gives the functions names",
    ),
    (
        "libluajit",
        "LuaJIT: its traces keep no frame pointers, and stacks end in them; -joff walks through the interpreter",
    ),
    (
        "beam.smp",
        "Erlang: start it with +JPperf true, so that its generated code keeps frame pointers and has names",
    ),
    (
        "libpython3",
        "Python: Python functions have names from 3.12 on with -X perf, if the interpreter keeps frame pointers",
    ),
];

/// Looks at a process.
///
/// # Errors
/// [`AgentError::NoProcess`] where it is gone, or may not be looked at; [`AgentError::Unwind`] where tables cannot be made at all.
pub fn explain(pid: u32, config: &UnwindConfig) -> Result<Explained, AgentError> {
    let lines = procfs::executable_maps(pid)
        .filter(|lines| !lines.is_empty())
        .ok_or(AgentError::NoProcess(pid))?;
    let folder = Folder::new()?;
    let kept = Kept::open(&folder.0, config.kept_bytes_max)?;
    let maker = Maker::new(config.worker.clone(), kept);
    let mut files = Files::new(None);
    let mut pieces: Vec<Piece> = Vec::new();
    // An old way into the kernel, mapped everywhere and used by nobody.
    for line in lines.iter().filter(|line| line.path != "[vsyscall]") {
        let mapped = MappedFile::of_line(pid, line);
        let backing = files.backing(&mapped);
        let bytes = line.end - line.start;
        let path = match line.path.as_str() {
            "" => "[generated code]",
            path => procfs::without_deleted(path),
        };
        if let Some(known) = pieces.iter_mut().find(|piece| piece.path == path) {
            known.bytes += bytes;
            continue;
        }
        if pieces.len() >= BINARIES_MAX {
            break;
        }
        let code = match backing {
            Backing::File(id) => match &files.get(id).elf {
                Ok(elf) => match files.open(id, pid, (line.start, line.end)) {
                    Some(file) => of_table(maker.table(&tables::key(elf.kind, &elf.id), file)),
                    None => no_table("the file cannot be opened any more"),
                },
                Err(reason) => no_table(reason.text()),
            },
            _ if line.path.is_empty()
                || line.path.starts_with("//anon")
                || line.path.starts_with("/memfd:") =>
            {
                Code::Generated
            }
            _ => no_table("no file is behind it"),
        };
        let path = path.to_owned();
        pieces.push(Piece { path, bytes, code });
    }
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.bytes));
    let advice = advice(&pieces);
    Ok(Explained { pid, pieces, advice })
}

fn no_table(why: &str) -> Code {
    Code::NoTable { why: why.to_owned() }
}

fn of_table(made: Result<Vec<u8>, strobe_unwind::UnwindError>) -> Code {
    let bytes = match made {
        Ok(bytes) => bytes,
        Err(error) => return no_table(&error.to_string()),
    };
    let Ok(table) = Table::open(&bytes) else {
        return no_table("its table is not usable");
    };
    // A row holds up to the next one.
    let (mut all, mut with, mut unknown) = (0_u64, 0_u64, 0_u64);
    let mut before: Option<(u64, Step)> = None;
    for (address, step) in table.rows() {
        if let Some((begin, step)) = before {
            let span = address.saturating_sub(begin);
            all += span;
            match step {
                Step::By(rule) => {
                    let keeps = matches!(rule.cfa, Cfa::Register { register: RBP, .. });
                    with += if keeps { span } else { 0 };
                }
                Step::Unknown => unknown += span,
                Step::Unsupported | Step::Root => {}
            }
        }
        before = Some((address, step));
    }
    let described = all.saturating_sub(unknown).max(1);
    Code::Table {
        rows: table.header().rows,
        unsupported: table.header().rows_unsupported,
        frame_pointers: with as f64 / described as f64,
        unknown: unknown as f64 / all.max(1) as f64,
    }
}

fn advice(pieces: &[Piece]) -> Vec<String> {
    let file_name = |piece: &Piece| piece.path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut advice = Vec::new();
    let generates = pieces.iter().any(|piece| piece.code == Code::Generated);
    for (part, what) in RUNTIMES {
        let runs = |piece: &Piece| file_name(piece).starts_with(part);
        if generates && pieces.iter().any(runs) {
            advice.push(what.to_owned());
        }
    }
    if generates && advice.is_empty() {
        advice.push(
            "it generates code: stacks go through it only if that code keeps frame pointers".to_owned(),
        );
    }
    for piece in pieces {
        if let Code::NoTable { why } = &piece.code {
            advice.push(format!(
                "{}: {why}; build it with -fasynchronous-unwind-tables or -fno-omit-frame-pointer",
                piece.path
            ));
        }
    }
    advice
}

/// A folder for the tables, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, AgentError> {
        let folder = std::env::temp_dir().join(format!("strobe-doctor-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|source| AgentError::Folder {
            folder: folder.clone(),
            source,
        })?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is a folder in the place for such.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(path: &str, code: Code) -> Piece {
        Piece {
            path: path.to_owned(),
            bytes: 4_096,
            code,
        }
    }

    /// Checks that a runtime is named with its flag where it generates code, and only there.
    #[test]
    fn a_runtime_is_told_its_flag() {
        let jvm = piece("/usr/lib/jvm/lib/server/libjvm.so", no_table("none"));
        let alone = advice(std::slice::from_ref(&jvm));
        assert!(
            !alone.iter().any(|line| line.contains("PreserveFramePointer")),
            "{alone:?}"
        );
        let busy = advice(&[jvm, piece("[generated code]", Code::Generated)]);
        assert!(
            busy.iter().any(|line| line.contains("-XX:+PreserveFramePointer")),
            "{busy:?}"
        );
    }
}
