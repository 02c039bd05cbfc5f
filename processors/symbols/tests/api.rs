//! The symbolication API over HTTP: every address as the store itself answers it, and callers who mean no good.

// The lints make exceptions for test functions, not for what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use object::{Object, ObjectSegment};
use serde_json::{Value, json};
use strobe_event::{BinaryKind, BuildId};
use strobe_store::{BinaryKey, Store};
use strobe_symbols::api::{Api, ids};
use strobe_symbols::{Binaries, ConvertLimits, Converter, Keeper, Limits, Location, Resolved};
use support::{Bench, CHECKOUT, PROGRAM, REFUND, function, have, worker};

struct Served {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(bench: &Bench) -> Self {
        let binaries = Binaries::of_folder(Store::in_folder(bench.path("store")).unwrap());
        let api = Api::new("127.0.0.1:0".parse().unwrap(), binaries).unwrap();
        let address = api.address().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || api.run(|| stopped.load(Ordering::Relaxed)).unwrap();
        Self {
            address,
            stop,
            thread: Some(std::thread::spawn(run)),
        }
    }

    fn post(&self, path: &str, body: &[u8]) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A request that is too long is refused before it is read to its end.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    fn ask(&self, request: &Value) -> (u16, Value) {
        self.post("/symbolicate/v5", request.to_string().as_bytes())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn make(bench: &Bench, id: &BuildId) {
    let store = Store::in_folder(bench.path("store")).unwrap();
    let converter = Converter {
        worker: worker(),
        debug_folders: Vec::new(),
        limits: ConvertLimits::default(),
    };
    let binaries = Binaries::of_folder(store);
    let mut keeper = Keeper::new(binaries, converter, bench.path("scratch"), "test".to_owned()).unwrap();
    let key = BinaryKey {
        kind: BinaryKind::Gnu,
        id: id.clone(),
    };
    keeper.attempt(&key).unwrap();
}

/// Returns the address of a binary's first loadable segment.
fn image_base(binary: &Path) -> u64 {
    let bytes = std::fs::read(binary).unwrap();
    let elf = object::File::parse(bytes.as_slice()).unwrap();
    elf.segments().map(|segment| segment.address()).min().unwrap()
}

/// Returns a frame of an answer, innermost first, as the store's own answer reads.
fn levels(frame: &Value) -> Vec<Location> {
    let level = |value: &Value| Location {
        function: value["function"].as_str().unwrap().into(),
        file: value["file"].as_str().unwrap_or_default().into(),
        line: value["line"].as_u64().unwrap_or(0) as u32,
    };
    let none = Vec::new();
    let inlines = frame["inlines"].as_array().unwrap_or(&none);
    inlines.iter().chain([frame]).map(level).collect()
}

/// Checks, of executables that are loaded anywhere and of those that are not, that every address of two functions is answered
/// as the store answers it, by the ids and the addresses that other tools use; and that the distance from a function's
/// beginning is the symbol table's.
#[test]
fn every_address_is_answered_as_the_store_does() {
    for form in [["-pie", "-fPIE"], ["-no-pie", "-fno-pie"]] {
        let mut bench = Bench::new();
        if !have("g++") || !have("nm") {
            return;
        }
        let binary = bench.compile("g++", PROGRAM, &["-g", "-O2", form[0], form[1]], "shop");
        let id = bench.store_file(&binary);
        make(&bench, &id);
        let base = image_base(&binary);
        assert_eq!(base == 0, form[0] == "-pie");
        let functions = [CHECKOUT, REFUND].map(|name| function(&binary, name));
        let addresses: Vec<(u64, u64)> = functions
            .iter()
            .flat_map(|&(start, length)| (start..start + length).map(move |address| (address, start)))
            .collect();
        let expected = bench
            .symbolizer(Limits::default())
            .resolve(
                BinaryKind::Gnu,
                &id,
                &addresses.iter().map(|&(address, _)| address).collect::<Vec<_>>(),
            )
            .unwrap();
        let served = Served::new(&bench);
        let stack: Vec<Value> = addresses
            .iter()
            .map(|&(address, _)| json!([0, address - base]))
            .collect();
        let debug_id = ids::debug_id(&id);
        let (status, answer) = served.ask(&json!({
            "jobs": [{ "memoryMap": [["shop", debug_id]], "stacks": [stack, [[0, 0xffff_ffff_u32], [-1, 5]]] }],
        }));
        assert_eq!(status, 200, "{answer}");
        let result = &answer["results"][0];
        assert_eq!(
            result["found_modules"],
            json!({ (format!("shop/{debug_id}")): true })
        );
        let frames = result["stacks"][0].as_array().unwrap();
        assert_eq!(frames.len(), addresses.len());
        let mut inlined = 0;
        for (at, (frame, (&(address, start), expected))) in
            frames.iter().zip(addresses.iter().zip(&expected)).enumerate()
        {
            assert_eq!(frame["frame"], at);
            assert_eq!(frame["module_offset"], format!("{:#x}", address - base));
            assert_eq!(frame["function_offset"], format!("{:#x}", address - start));
            let Resolved::Symbols(expected) = expected else {
                panic!("{address:#x}: {expected:?}")
            };
            let expected: Vec<Location> = expected.iter().rev().cloned().collect();
            assert_eq!(levels(frame), expected);
            inlined += usize::from(expected.len() > 1);
        }
        assert!(inlined > 20);
        let nothing = json!([
            { "frame": 0, "module": "shop", "module_offset": "0xffffffff" },
            { "frame": 1, "module": "", "module_offset": "0x5" },
        ]);
        assert_eq!(result["stacks"][1], nothing);
    }
}

/// Checks that unknown modules, ids that are none and ids that several binaries share are not found, that one job need not be
/// in a list, and that a binary which arrives meanwhile is found in the end.
#[test]
fn unknown_modules_are_said_to_be_unknown() {
    let mut bench = Bench::new();
    if !have("g++") {
        return;
    }
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let bytes = std::fs::read(&binary).unwrap();
    let shared = [[7; 16].as_slice(), &[1; 4]].concat();
    let other = [[7; 16].as_slice(), &[2; 4]].concat();
    let shared = [shared, other].map(|id| BuildId::new(&id).unwrap());
    for id in &shared {
        bench.store_as(id, &bytes);
        make(&bench, id);
    }
    let served = Served::new(&bench);
    let unknown = BuildId::new(&[9; 20]).unwrap();
    let names = [
        "no id".to_owned(),
        ids::debug_id(&unknown),
        ids::debug_id(&shared[0]),
    ];
    let map: Vec<Value> = names.iter().map(|name| json!(["m", name])).collect();
    let (status, answer) = served.ask(&json!({ "memoryMap": map, "stacks": [[[0, 1], [1, 1], [2, 1]]] }));
    assert_eq!(status, 200, "{answer}");
    let found = answer["results"][0]["found_modules"].as_object().unwrap();
    assert_eq!(found.len(), 3);
    assert!(found.values().all(|found| found == false), "{found:?}");
    let _ = bench.store_file(&binary);
}

/// Checks that what is no request, too long or too much is refused with its reason, and that the next request is served.
#[test]
fn bad_requests_are_refused_with_their_reason() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.path("store")).unwrap();
    let served = Served::new(&bench);
    let frames: Vec<Value> = (0..100_001).map(|_| json!([0, 1])).collect();
    let many = json!({ "memoryMap": [["m", "x"]], "stacks": [frames] }).to_string();
    let long = vec![b' '; (4 << 20) + 1];
    for (path, body, expected) in [
        ("/symbolicate/v5", b"{".as_slice(), 400),
        ("/symbolicate/v5", b"{\"jobs\": 7}", 400),
        ("/symbolicate/v4", b"{}", 404),
        ("/symbolicate/v5", many.as_bytes(), 413),
        ("/symbolicate/v5", &long, 413),
    ] {
        let (status, answer) = served.post(path, body);
        assert_eq!(status, expected);
        assert!(
            expected == 413 || answer["error"].as_str().is_some_and(|why| why.len() > 10),
            "{answer}"
        );
    }
    assert_eq!(
        served.ask(&json!({ "jobs": [] })),
        (200, json!({ "results": [] }))
    );
}

/// Checks that callers who do not read their answers, more than there are connections, hold up nobody for long and no more
/// memory than is said.
#[test]
fn callers_who_do_not_read_are_bounded() {
    let mut bench = Bench::new();
    if !have("g++") || !have("nm") {
        return;
    }
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let id = bench.store_file(&binary);
    make(&bench, &id);
    let served = Served::new(&bench);
    let address = function(&binary, CHECKOUT).0 - image_base(&binary);
    let frames: Vec<Value> = (0..20_000).map(|_| json!([0, address])).collect();
    let request = json!({ "memoryMap": [["shop", ids::debug_id(&id)]], "stacks": [frames] }).to_string();
    let before = resident_bytes();
    let lazy: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(served.address).unwrap();
            let head = format!(
                "POST /symbolicate/v5 HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
                request.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (status, answer) = served.ask(&json!({ "jobs": [] }));
        if status == 200 {
            break;
        }
        assert_eq!(status, 429, "{answer}");
        assert!(Instant::now() < deadline, "nobody else is served");
        std::thread::sleep(Duration::from_millis(50));
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 160 << 20, "{grown} bytes");
    drop(lazy);
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}
