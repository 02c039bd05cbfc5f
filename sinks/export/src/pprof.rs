//! pprof: gzipped protobuf, as `go tool pprof` and many others read it (`profile.proto` of google/pprof).
//!
//! Stacks are leaf first there, a location's lines too: the innermost inlined function stands first.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

/// One location of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Function.
    pub function: String,
    /// Source file; empty if not known.
    pub file: String,
    /// Source line; 0 if not known.
    pub line: u32,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PprofFrame {
    /// Path of the binary; empty if not known.
    pub module: String,
    /// Its build id in hexadecimal digits.
    pub build_id: String,
    /// Address in it; 0 if not known.
    pub address: u64,
    /// The outermost function first, then what was inlined into it.
    pub locations: Vec<Location>,
}

/// One stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PprofStack {
    /// Indexes into the frames, root first.
    pub frames: Vec<u32>,
    /// Samples.
    pub samples: u64,
    /// CPU time that they stand for.
    pub nanoseconds: u64,
}

/// A profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PprofProfile {
    /// Distinct frames.
    pub frames: Vec<PprofFrame>,
    /// Stacks.
    pub stacks: Vec<PprofStack>,
    /// Start, microseconds since 1970 (UTC).
    pub start_us: u64,
    /// Length, microseconds.
    pub duration_us: u64,
}

mod proto {
    //! The parts of `profile.proto` that are written; field numbers are the standard's.

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub kind: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Mapping {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub memory_start: u64,
        #[prost(uint64, tag = "3")]
        pub memory_limit: u64,
        #[prost(int64, tag = "5")]
        pub filename: i64,
        #[prost(int64, tag = "6")]
        pub build_id: i64,
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
        #[prost(bool, tag = "8")]
        pub has_filenames: bool,
        #[prost(bool, tag = "9")]
        pub has_line_numbers: bool,
        #[prost(bool, tag = "10")]
        pub has_inline_frames: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub address: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
        #[prost(int64, tag = "2")]
        pub line: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
        #[prost(int64, tag = "3")]
        pub system_name: i64,
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

/// The tables of a profile being written.
struct Tables {
    strings: Vec<String>,
    string_ids: HashMap<String, i64>,
    mappings: Vec<proto::Mapping>,
    mapping_ids: HashMap<(String, String), u64>,
    functions: Vec<proto::Function>,
    function_ids: HashMap<(i64, i64), u64>,
}

impl Tables {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(&id) = self.string_ids.get(text) {
            return id;
        }
        let id = self.strings.len() as i64;
        self.strings.push(text.to_owned());
        self.string_ids.insert(text.to_owned(), id);
        id
    }

    fn mapping(&mut self, frame: &PprofFrame) -> u64 {
        if frame.module.is_empty() && frame.build_id.is_empty() {
            return 0;
        }
        let key = (frame.module.clone(), frame.build_id.clone());
        if let Some(&id) = self.mapping_ids.get(&key) {
            return id;
        }
        let id = self.mappings.len() as u64 + 1;
        let (filename, build_id) = (self.string(&frame.module), self.string(&frame.build_id));
        self.mappings.push(proto::Mapping {
            id,
            // Addresses are those of the file, whichever part of it was mapped where.
            memory_start: 0,
            memory_limit: i64::MAX as u64,
            filename,
            build_id,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        });
        self.mapping_ids.insert(key, id);
        id
    }

    fn function(&mut self, location: &Location) -> u64 {
        let key = (self.string(&location.function), self.string(&location.file));
        if let Some(&id) = self.function_ids.get(&key) {
            return id;
        }
        let id = self.functions.len() as u64 + 1;
        self.functions.push(proto::Function {
            id,
            name: key.0,
            system_name: key.0,
            filename: key.1,
        });
        self.function_ids.insert(key, id);
        id
    }
}

/// Writes a profile.
///
/// # Errors
/// Those of the writer.
pub fn write(profile: &PprofProfile, out: &mut impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&encoded(profile).encode_to_vec())?;
    gzip.finish().map(drop)
}

fn encoded(profile: &PprofProfile) -> proto::Profile {
    let mut tables = Tables {
        // The standard wants the first to be empty.
        strings: vec![String::new()],
        string_ids: HashMap::from([(String::new(), 0)]),
        mappings: Vec::new(),
        mapping_ids: HashMap::new(),
        functions: Vec::new(),
        function_ids: HashMap::new(),
    };
    let (samples, count) = (tables.string("samples"), tables.string("count"));
    let (cpu, nanoseconds) = (tables.string("cpu"), tables.string("nanoseconds"));
    let locations = profile.frames.iter().enumerate().map(|(index, frame)| {
        let line = frame.locations.iter().rev().map(|location| proto::Line {
            function_id: tables.function(location),
            line: i64::from(location.line),
        });
        let line = line.collect();
        proto::Location {
            id: index as u64 + 1,
            mapping_id: tables.mapping(frame),
            address: frame.address,
            line,
        }
    });
    let location = locations.collect();
    let sample = profile.stacks.iter().map(|stack| proto::Sample {
        location_id: stack
            .frames
            .iter()
            .rev()
            .map(|&frame| u64::from(frame) + 1)
            .collect(),
        value: vec![clamp(stack.samples), clamp(stack.nanoseconds)],
    });
    let time = proto::ValueType {
        kind: cpu,
        unit: nanoseconds,
    };
    proto::Profile {
        sample_type: vec![
            proto::ValueType {
                kind: samples,
                unit: count,
            },
            time,
        ],
        sample: sample.collect(),
        location,
        time_nanos: clamp(profile.start_us.saturating_mul(1_000)),
        duration_nanos: clamp(profile.duration_us.saturating_mul(1_000)),
        period_type: Some(time),
        default_sample_type: cpu,
        mapping: tables.mappings,
        function: tables.functions,
        string_table: tables.strings,
    }
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn profile() -> PprofProfile {
        let location = |function: &str, line| Location {
            function: function.into(),
            file: "orders.cpp".into(),
            line,
        };
        let frame = |address, locations| PprofFrame {
            module: "/usr/bin/orders".into(),
            build_id: "abcdef".into(),
            address,
            locations,
        };
        PprofProfile {
            frames: vec![
                frame(0x10, vec![location("main", 3)]),
                frame(0x20, vec![location("sign_orders", 7), location("sign_lines", 9)]),
            ],
            stacks: vec![
                PprofStack {
                    frames: vec![0, 1],
                    samples: 3,
                    nanoseconds: 30_000_000,
                },
                PprofStack {
                    frames: vec![0],
                    samples: 1,
                    nanoseconds: 10_000_000,
                },
            ],
            start_us: 1_700_000_000_000_000,
            duration_us: 1_000_000,
        }
    }

    /// Checks that stacks are leaf first, inlined functions before what they are inlined into, and text is stored once.
    #[test]
    fn the_leaf_and_the_inlined_come_first() {
        let encoded = encoded(&profile());
        assert_eq!(encoded.string_table[0], "");
        assert_eq!(encoded.sample[0].location_id, [2, 1]);
        let names: Vec<&str> = encoded.location[1]
            .line
            .iter()
            .map(|line| &encoded.function[line.function_id as usize - 1])
            .map(|function| encoded.string_table[function.name as usize].as_str())
            .collect();
        assert_eq!(names, ["sign_lines", "sign_orders"]);
        assert_eq!((encoded.mapping.len(), encoded.function.len()), (1, 3));
    }

    /// Checks that Go's own tool reads it and finds the same shares.
    #[test]
    fn the_tool_of_go_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cpu.pb.gz");
        write(&profile(), &mut std::fs::File::create(&file).unwrap()).unwrap();
        let run = Command::new("go")
            .args(["tool", "pprof", "-top", "-symbolize=none"])
            .arg(&file)
            .env("HOME", folder.path())
            .output();
        let Ok(run) = run else {
            println!("skipped: the_tool_of_go_reads_it: go is not installed");
            return;
        };
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert!(
            text.lines()
                .any(|line| line.contains("75.00%") && line.contains("sign_lines")),
            "{text}"
        );
        assert!(
            text.lines()
                .any(|line| line.contains("100%") && line.contains("main")),
            "{text}"
        );
    }
}
