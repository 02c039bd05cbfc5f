//! The child: reads requests on stdin, makes symbol files or looks names up with blazesym, writes answers on stdout.
//!
//! It trusts no binary: limits come first ([`confine`]), then a look at the headers ([`precheck`](crate::precheck)),
//! then the parse. Whatever ends it in there is meant to: the parent counts that against the binary. It holds no
//! secret and no state worth keeping.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Reason as Unknown, Sym, Symbolized, Symbolizer};
use blazesym::{ErrorKind, symbolize::evict};
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use rustix::thread::set_no_new_privs;
use strobe_event::Reason;

use crate::convert::{Limits, Sources, convert};
use crate::file::{CHAIN_MAX, TEXT_BYTES_MAX};
use crate::precheck::{self, Checked};
use crate::wire::{self, Answer, Hello, MESSAGE_BYTES_MAX, Names, PART_BYTES, Piece, Request, WireLocation};

/// Files open at once: one for each parsed binary, its debug file, and the standard three.
const OPEN_FILES_MAX: u64 = 256;

/// Stack of the thread that waits for the parent's end: it calls `poll` and `kill`.
const WATCHER_STACK_BYTES: usize = 64 << 10;

/// Runs a symbol worker on stdin and stdout until stdin ends.
///
/// An executable offers this as a sub-command of its own and must call it before it starts any thread.
pub fn worker_main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("symbol worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed message from the parent");
    let mut input = io::stdin().lock();
    let mut output = io::stdout().lock();
    let Some(first) = wire::read_message(&mut input)? else {
        return Ok(());
    };
    let hello = Hello::decode(&first).ok_or_else(malformed)?;
    end_with_parent()?;
    confine(&hello)?;
    let mut worker = Worker::new(hello);
    output.write_all(&wire::framed(wire::READY))?;
    output.flush()?;
    while let Some(message) = wire::read_message(&mut input)? {
        match wire::decode_request(&message).ok_or_else(malformed)? {
            Request::Names(binary, addresses) => {
                output.write_all(&wire::framed(&worker.answer(&binary, &addresses)))?;
            }
            Request::Convert(sources) => convert_to(&mut output, &sources, &worker.hello)?,
        }
        output.flush()?;
    }
    Ok(())
}

/// Makes a symbol file, and writes it in pieces.
fn convert_to(out: &mut impl Write, sources: &[Option<PathBuf>; 3], hello: &Hello) -> io::Result<()> {
    let [binary, debug, package] = sources.each_ref().map(Option::as_deref);
    let sources = Sources {
        binary,
        debug,
        package,
        folders: &hello.debug_folders,
    };
    let limits = Limits {
        binary_bytes: hello.binary_bytes,
        memory_bytes: hello.memory_bytes,
    };
    let mut parts = Parts {
        out,
        part: Vec::new(),
    };
    let last = match convert(sources, limits, &mut parts) {
        Ok(()) => {
            parts.flush()?;
            Piece::End
        }
        Err(reason) => Piece::Failed(reason),
    };
    out.write_all(&wire::framed(&last.encode()))
}

/// What is written to it goes out as parts of a symbol file.
struct Parts<'a, W> {
    out: &'a mut W,
    part: Vec<u8>,
}

impl<W: Write> Write for Parts<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PART_BYTES - self.part.len());
        self.part.extend_from_slice(&bytes[..taken]);
        if self.part.len() == PART_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.part.is_empty() {
            self.out
                .write_all(&wire::framed(&Piece::Part(&self.part).encode()))?;
            self.part.clear();
        }
        Ok(())
    }
}

/// Ends this process when the parent is gone, even in the middle of a parse that never ends.
///
/// The write end of stdin is held by the parent alone, so a hang-up means its death, however it died. A parent-death
/// signal would not do: it is sent when the *thread* that started the child ends, and pools end idle threads.
fn end_with_parent() -> io::Result<()> {
    let watch = || {
        let stdin = io::stdin();
        loop {
            // No event is asked for: poll then returns on hang-up and errors alone, not for each request.
            let mut fds = [PollFd::new(&stdin, PollFlags::empty())];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => {}
                _ => break,
            }
        }
        // The main thread may hold any lock, so nothing is unwound. Failing leaves the end of stdin to end it.
        let _ = kill_process(getpid(), Signal::KILL);
    };
    let watcher = std::thread::Builder::new()
        .name("parent-watch".to_owned())
        .stack_size(WATCHER_STACK_BYTES);
    watcher.spawn(watch).map(drop)
}

/// Puts the limits on this process: none can be raised again.
fn confine(hello: &Hello) -> io::Result<()> {
    let hard = |resource, most: u64| {
        setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )
    };
    // Private memory is what a bomb fills; address space holds the mapped binaries too, and bounds both.
    hard(Resource::Data, hello.memory_bytes)?;
    hard(Resource::As, hello.address_space_bytes)?;
    hard(Resource::Nofile, OPEN_FILES_MAX)?;
    hard(Resource::Core, 0)?;
    hard(Resource::Fsize, 0)?;
    set_no_new_privs(true)?;
    Ok(())
}

/// One binary that the symbolizer holds parsed.
struct Parsed {
    path: PathBuf,
    checked: Checked,
    /// Why its debug information is not used: it could not be read.
    debug_refused: Option<Reason>,
}

/// The state behind the requests.
struct Worker {
    hello: Hello,
    symbolizer: Symbolizer,
    /// Least recently used first.
    parsed: Vec<Parsed>,
}

impl Worker {
    fn new(hello: Hello) -> Self {
        let symbolizer = symbolizer(&hello);
        Self {
            hello,
            symbolizer,
            parsed: Vec::new(),
        }
    }

    /// Returns the message that answers a request.
    fn answer(&mut self, binary: &Path, addresses: &[u64]) -> Vec<u8> {
        let message = match self.parse(binary) {
            Err(reason) => Answer::Binary(reason).encode(),
            Ok(at) => match self.name(at, addresses) {
                Ok(message) => message,
                Err(reason) => {
                    // Not kept: the file may be replaced by a better one.
                    self.evict(at);
                    Answer::Binary(reason).encode()
                }
            },
        };
        if message.len() <= MESSAGE_BYTES_MAX {
            message
        } else {
            Answer::Binary(Reason::OverLimit).encode()
        }
    }

    /// Returns the place of `binary` among the parsed ones, after a look at its headers where it is new.
    fn parse(&mut self, binary: &Path) -> Result<usize, Reason> {
        if let Some(at) = self.parsed.iter().position(|parsed| parsed.path == binary) {
            self.parsed[at..].rotate_left(1);
            return Ok(self.parsed.len() - 1);
        }
        let checked = precheck::check(binary, self.hello.binary_bytes, self.hello.memory_bytes / 2)?;
        self.make_room(checked.bytes);
        let path = binary.to_path_buf();
        self.parsed.push(Parsed {
            path,
            checked,
            debug_refused: None,
        });
        Ok(self.parsed.len() - 1)
    }

    /// Drops parsed binaries until a further one of `bytes` fits.
    fn make_room(&mut self, bytes: u64) {
        // What a parse allocates is not known before; past half of the limit everything goes, since the allocator
        // gives whole regions back more readily than single ones.
        if memory_in_use().is_some_and(|used| used > self.hello.memory_bytes / 2) {
            self.parsed.clear();
            self.symbolizer = symbolizer(&self.hello);
        }
        let held = |parsed: &[Parsed]| parsed.iter().map(|parsed| parsed.checked.bytes).sum::<u64>();
        while !self.parsed.is_empty()
            && (self.parsed.len() >= self.hello.parsed as usize
                || held(&self.parsed) + bytes > self.hello.binary_bytes)
        {
            self.evict(0);
        }
    }

    fn evict(&mut self, at: usize) {
        let parsed = self.parsed.remove(at);
        if self
            .symbolizer
            .evict(&evict::Evict::Elf(evict::Elf::new(parsed.path)))
            .is_err()
        {
            self.symbolizer = symbolizer(&self.hello);
            self.parsed.clear();
        }
    }

    /// Returns the message with the names at `addresses` of a parsed binary.
    fn name(&mut self, at: usize, addresses: &[u64]) -> Result<Vec<u8>, Reason> {
        let Self {
            symbolizer, parsed, ..
        } = self;
        let parsed = &mut parsed[at];
        let with = |debug| {
            let mut elf = Elf::new(&parsed.path);
            elf.debug_syms = debug;
            Source::Elf(elf)
        };
        let (full, plain) = (with(true), with(false));
        let mut found = None;
        if parsed.debug_refused.is_none() {
            match symbolizer.symbolize(&full, Input::VirtOffset(addresses)) {
                Ok(names) => found = Some(names),
                // Debug information that cannot be read still leaves the symbol table: names without lines.
                Err(error) => parsed.debug_refused = Some(whole(error.kind())),
            }
        }
        let found = match found {
            Some(found) => found,
            None => symbolizer
                .symbolize(&plain, Input::VirtOffset(addresses))
                .map_err(|error| whole(error.kind()))?,
        };
        let parsed = &*parsed;
        let checked = &parsed.checked;
        let mut answers = Answers::default();
        for (&address, found) in addresses.iter().zip(&found) {
            match found {
                Symbolized::Sym(sym) if names(sym, address, checked) => answers.add(sym),
                // No name in the debug information, or a part of it that cannot be read: again the symbol table.
                Symbolized::Sym(_) | Symbolized::Unknown(Unknown::IgnoredError)
                    if parsed.debug_refused.is_none() =>
                {
                    match symbolizer.symbolize_single(&plain, Input::VirtOffset(address)) {
                        Ok(Symbolized::Sym(sym)) if names(&sym, address, checked) => answers.add(&sym),
                        Ok(Symbolized::Sym(_)) => answers.add_unknown(unknown(Unknown::UnknownAddr, parsed)),
                        Ok(Symbolized::Unknown(why)) => answers.add_unknown(unknown(why, parsed)),
                        Err(_) => answers.add_unknown(Reason::Damaged),
                    }
                }
                Symbolized::Sym(_) => answers.add_unknown(unknown(Unknown::UnknownAddr, parsed)),
                Symbolized::Unknown(why) => answers.add_unknown(unknown(*why, parsed)),
            }
        }
        Ok(answers.encode())
    }
}

/// Returns a symbolizer that looks at nothing but the binary itself, unless folders are configured.
fn symbolizer(hello: &Hello) -> Symbolizer {
    Symbolizer::builder()
        // Objects of the store are not rewritten.
        .enable_auto_reload(false)
        .set_debug_dirs(Some(&hello.debug_folders))
        .build()
}

/// Returns this process's private memory in bytes: what `RLIMIT_DATA` counts.
fn memory_in_use() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(5)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Returns why no address of a binary can be named.
fn whole(kind: ErrorKind) -> Reason {
    match kind {
        ErrorKind::NotFound => Reason::MissingBinary,
        ErrorKind::PermissionDenied => Reason::Unreadable,
        ErrorKind::OutOfMemory => Reason::OverLimit,
        _ => Reason::Damaged,
    }
}

/// Returns whether what was found names the address.
fn names(sym: &Sym<'_>, address: u64, checked: &Checked) -> bool {
    // Functions that a linker has dropped stay in the debug information, and all of them begin at 0.
    !sym.name.is_empty()
        && checked.is_code(address)
        && (sym.size.is_some() || checked.may_reach(sym.addr, address))
}

/// Returns why one address cannot be named.
fn unknown(why: Unknown, parsed: &Parsed) -> Reason {
    match why {
        Unknown::MissingSyms => parsed.debug_refused.unwrap_or(Reason::MissingSymbols),
        Unknown::IgnoredError => Reason::Damaged,
        // A stripped binary exports some names; that they do not cover the address says nothing of the address.
        _ if !parsed.checked.has_symbols => Reason::MissingSymbols,
        _ => Reason::NoSymbolAtAddress,
    }
}

/// The answers to one request, each text once.
#[derive(Default)]
struct Answers {
    text: Vec<String>,
    index: FxHashMap<String, u32>,
    addresses: Vec<Result<u16, Reason>>,
    locations: Vec<WireLocation>,
}

impl Answers {
    fn add_unknown(&mut self, reason: Reason) {
        self.addresses.push(Err(reason));
    }

    /// Adds the function at an address, then what was inlined into it. The line of each is where the next one was
    /// called from, and of the last where the address itself lies.
    fn add(&mut self, sym: &Sym<'_>) {
        let outer = std::iter::once((&*sym.name, sym.code_info.as_deref()));
        let inlined = sym
            .inlined
            .iter()
            .map(|inlined| (&*inlined.name, inlined.code_info.as_ref()));
        let mut count = 0;
        for (name, code) in outer.chain(inlined).take(CHAIN_MAX) {
            // An inlined function without a name is still a level of its own: it must not bear its caller's name.
            let function = self.intern(if name.is_empty() { "[inlined]" } else { name });
            let (file, line) = code.map_or((0, 0), |code| {
                (self.intern(&file_of(code)), code.line.unwrap_or(0))
            });
            self.locations.push(WireLocation { function, file, line });
            count += 1;
        }
        self.addresses.push(Ok(count));
    }

    fn intern(&mut self, text: &str) -> u32 {
        let text = cut(text);
        if text.is_empty() {
            return 0;
        }
        if let Some(&index) = self.index.get(text) {
            return index;
        }
        // The first is the empty one, which stands for "not known".
        let index = self.text.len() as u32 + 1;
        self.index.insert(text.to_owned(), index);
        self.text.push(text.to_owned());
        index
    }

    fn encode(self) -> Vec<u8> {
        let text = std::iter::once("")
            .chain(self.text.iter().map(String::as_str))
            .collect();
        Answer::Addresses(Names {
            text,
            addresses: self.addresses,
            locations: self.locations,
        })
        .encode()
    }
}

fn file_of(code: &CodeInfo<'_>) -> String {
    code.to_path().to_string_lossy().into_owned()
}

/// Returns `text` up to the limit, whole characters only.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}
