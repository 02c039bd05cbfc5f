//! Fuzzes the language: changed schemas and stack-tag files through parser, importer, checks, compiler and matcher.
//!
//! `fuzz_stacks [SECONDS] [SEED] [FOLDER]`. What is changed begins with the shipped schemas and the language's page; what leads
//! to a kind of message that was not seen before joins it, so that the search goes deeper. Whatever panics or takes over a
//! second of CPU time is written to FOLDER, and the exit code is 1. What ends the process, by a stack that overflows or by
//! memory over a bound, is there too: a text is written before it is tried. Runs on stable Rust, without an instrumented build.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use strobe_stack_schema::{
    Context, Library, Lists, Matcher, Program, Source, check, folded, stacktags, test,
};

/// CPU time that one text may take: twenty times what refusing a hostile one may.
const CPU_MAX: Duration = Duration::from_secs(1);
/// Address space that the process may take: what a schema of 16 KiB compiles to, many times over. Past it an allocation
/// fails, which ends the process.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// Texts that are changed further; when there are more, a drawn one goes.
const CORPUS_MAX: usize = 4_096;
/// Longest text: what is longer is refused by one pass, which the tests of hostile schemas cover.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Words and marks of the language, which drawn bytes would seldom form.
const WORDS: [&str; 62] = [
    "schema",
    "version",
    "owner",
    "about",
    "services",
    "except",
    "profilers",
    "regions",
    "rule",
    "on",
    "when",
    "tag",
    "stack",
    "frame",
    "example",
    "gives",
    "nothing",
    "shows",
    "with",
    "let",
    "key",
    "takes",
    "one",
    "all",
    "nearest",
    "leaf",
    "root",
    "otherwise",
    "priority",
    "include",
    "function",
    "type",
    "file",
    "module",
    "line",
    "is",
    "starts",
    "like",
    "matches",
    "and",
    "or",
    "not",
    "called by",
    "under",
    "calling",
    "over",
    "any",
    "reaches",
    "calls",
    "depth",
    "at least",
    "at most",
    "label",
    "annotation",
    "hide",
    "show",
    "fold run",
    "fold recursion",
    "cut callers",
    "rename to",
    "rename replace",
    "{caller module}",
];
const PIECES: [&str; 16] = [
    "(",
    ")",
    "{",
    "}",
    "\"",
    "\\",
    ",",
    "\n",
    "#",
    "*",
    "((((((((",
    "))))))))",
    "\"a(b|c)*\"",
    "-1000",
    "4294967295",
    "\u{fffd}\u{200b}",
];

/// Numbers that look drawn and are the same for the same seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }

    fn one<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.below(list.len()))
    }
}

fn main() -> ExitCode {
    match fuzz() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz_stacks: {error}");
            ExitCode::FAILURE
        }
    }
}

fn fuzz() -> Result<bool, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(60), |text| text.parse())?;
    let seed: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let found_in = PathBuf::from(arguments.next().unwrap_or_else(|| "fuzz-stacks".into()));
    let under_way = UnderWay::begin(&found_in, seed)?;
    let limit = Some(MEMORY_BYTES_MAX);
    setrlimit(
        Resource::As,
        Rlimit {
            current: limit,
            maximum: limit,
        },
    )?;
    let mut corpus = begin()?;
    let stacks = recorded()?;
    let mut draw = Draw(seed);
    let mut kinds: BTreeSet<String> = BTreeSet::new();
    let (mut tried, mut compiled, mut found) = (0_u64, 0_u64, 0_u64);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < deadline {
        let text = changed(&corpus, &mut draw);
        under_way.is(&text)?;
        let began = cpu();
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&text, &stacks)));
        let took = cpu().saturating_sub(began);
        tried += 1;
        let wrong = match &outcome {
            Err(_) => Some("panicked".to_owned()),
            Ok(_) if took > CPU_MAX => Some(format!("took {took:?}")),
            Ok(_) => None,
        };
        if let Some(wrong) = wrong {
            found += 1;
            let file = found_in.join(format!("{seed}-{tried}.stacks"));
            std::fs::write(&file, &text)?;
            eprintln!("{}: {wrong}", file.display());
            continue;
        }
        let Ok((kind, whole)) = outcome else { continue };
        compiled += u64::from(whole);
        if kinds.insert(kind) {
            if corpus.len() >= CORPUS_MAX {
                let at = draw.below(corpus.len());
                corpus.swap_remove(at);
            }
            corpus.push(text);
        }
    }
    under_way.end()?;
    println!(
        "{tried} texts in {seconds} s from seed {seed}: {compiled} compiled and matched, {} kinds of messages, {found} found",
        kinds.len()
    );
    Ok(found == 0)
}

/// The text that is tried at the moment, on disk: it is what is left of a process that it ended.
struct UnderWay {
    file: File,
    path: PathBuf,
}

impl UnderWay {
    /// Begins, and keeps what an earlier process was ended by.
    fn begin(folder: &Path, seed: u64) -> Result<Self, Box<dyn Error>> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("{seed}-under-way.stacks"));
        if path.exists() {
            let kept = folder.join(format!("{seed}-ended-{}.stacks", std::process::id()));
            std::fs::rename(&path, &kept)?;
            eprintln!(
                "{}: a process ended while it tried this, or was ended",
                kept.display()
            );
        }
        Ok(Self {
            file: File::create(&path)?,
            path,
        })
    }

    fn is(&self, text: &str) -> std::io::Result<()> {
        self.file.write_all_at(text.as_bytes(), 0)?;
        self.file.set_len(text.len() as u64)
    }

    fn end(&self) -> std::io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// CPU time of this thread: others may share the machine.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Takes a text through everything; returns what kind of message came of it, and whether it compiled.
fn run(text: &str, stacks: &[Vec<folded::FoldedFrame>]) -> (String, bool) {
    let source = Source::new("fuzz.stacks", text);
    let imported = match stacktags::import("fuzz", &source) {
        Ok(imported) => format!("{} notes", imported.notes.len().min(8)),
        Err(error) => shape(&error.to_string()),
    };
    let library = match Library::parse(std::slice::from_ref(&source)) {
        Ok(library) => library,
        Err(error) => return (format!("{imported} {}", shape(&error.to_string())), false),
    };
    let mut kind = imported;
    let names: Vec<&str> = library.schemas().map(|schema| &*schema.name).collect();
    for name in &names {
        for found in check(&library, name, false).unwrap_or_default() {
            kind.push_str(&shape(&found.message));
        }
        if let Ok(report) = test(&library, name) {
            kind.push_str(&format!(
                " {} {}",
                report.passed.min(4),
                report.failures.len().min(4)
            ));
        }
    }
    let program = match Program::compile(&library, &names) {
        Ok(program) => Arc::new(program),
        Err(error) => return (format!("{kind} {}", shape(&error.to_string())), false),
    };
    let mut matcher = Matcher::new(Arc::clone(&program));
    matcher.begin(0);
    let context = matcher.context(&Context {
        service: "checkout",
        profiler: "cpu",
        ..Context::default()
    });
    for stack in stacks {
        let locations: Vec<_> = stack
            .iter()
            .map(|frame| matcher.location(&frame.location()))
            .collect();
        let id = matcher.stack(&locations);
        let outcome = matcher.outcome(id, context);
        let mut lists = Lists::default();
        let outcome = matcher.get(id, outcome, &mut lists);
        let shown: Vec<&str> = stack.iter().map(|frame| frame.function.as_str()).collect();
        let view = outcome.view(&program, matcher.made(), &shown);
        assert!(
            !view.is_empty() || stack.is_empty(),
            "a stack is always shown as something"
        );
        kind.push_str(&format!(
            " {}{}{}",
            outcome.tags.len().min(3),
            outcome.frame_tags.len().min(3),
            outcome.marks.len().min(3)
        ));
    }
    (kind, true)
}

/// Returns a message without what names the input: its first line, without what stands in quotes, and without numbers.
fn shape(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let mut quoted = false;
    first
        .chars()
        .filter(|c| {
            quoted ^= matches!(c, '`' | '"');
            !quoted && !c.is_ascii_digit()
        })
        .collect()
}

fn changed(corpus: &[String], draw: &mut Draw) -> String {
    let mut text: Vec<char> = draw
        .one(corpus)
        .map(|text| text.chars().collect())
        .unwrap_or_default();
    for _ in 0..1 + draw.below(6) {
        let at = draw.below(text.len() + 1);
        let end = at + draw.below((text.len() - at).min(64) + 1);
        match draw.below(7) {
            0 => {
                text.drain(at..end);
            }
            1 => insert(&mut text, at, draw.one(&WORDS).copied().unwrap_or_default()),
            2 => insert(&mut text, at, draw.one(&PIECES).copied().unwrap_or_default()),
            3 => {
                // A piece of another text.
                let other: Vec<char> = draw
                    .one(corpus)
                    .map(|text| text.chars().collect())
                    .unwrap_or_default();
                let from = draw.below(other.len());
                let piece = &other[from..other.len().min(from + draw.below(400))];
                text.splice(at..at, piece.iter().copied());
            }
            4 => {
                let piece = text[at..end].to_vec();
                for _ in 0..draw.below(20) {
                    text.splice(at..at, piece.iter().copied());
                }
            }
            5 => {
                if let Some(c) = text.get_mut(at) {
                    *c = char::from(32 + draw.below(95) as u8);
                }
            }
            _ => text.insert(at, char::from_u32(draw.below(0x3000) as u32).unwrap_or(' ')),
        }
        let mut bytes = 0;
        let fits = text.iter().take_while(|c| {
            bytes += c.len_utf8();
            bytes <= TEXT_BYTES_MAX
        });
        let fits = fits.count();
        text.truncate(fits);
    }
    text.into_iter().collect()
}

fn insert(text: &mut Vec<char>, at: usize, piece: &str) {
    text.splice(at..at, format!(" {piece} ").chars());
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, ending: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|known| known == ending));
    paths.sort();
    paths
        .iter()
        .map(|path| Ok(std::fs::read_to_string(path)?))
        .collect()
}

/// Returns the texts to begin with: schemas, rules one by one, the page's blocks, a file of stack tags.
fn begin() -> Result<Vec<String>, Box<dyn Error>> {
    let mut corpus = Vec::new();
    for text in files(&folder().join("../../schemas/stacks"), "stacks")? {
        let rules = text.split("\nrule ").skip(1);
        corpus.extend(rules.map(|rule| format!("schema one\nrule {rule}")));
        corpus.push(text);
    }
    let page = std::fs::read_to_string(folder().join("LANGUAGE.md"))?;
    let blocks = page.split("```stacks\n").skip(1);
    let blocks: Vec<&str> = blocks.filter_map(|block| block.split("```").next()).collect();
    corpus.extend(blocks.iter().map(|block| match block.starts_with("schema") {
        true => (*block).to_owned(),
        false => format!("schema page\n{block}"),
    }));
    corpus.extend(files(&folder().join("tests/data/stacktags"), "stacktags")?);
    Ok(corpus)
}

/// Returns some recorded stacks.
fn recorded() -> Result<Vec<Vec<folded::FoldedFrame>>, Box<dyn Error>> {
    let mut stacks = vec![Vec::new()];
    for text in files(&folder().join("tests/data/recorded"), "folded")? {
        for line in text.lines().step_by(40) {
            let (stack, _) = line.rsplit_once(' ').ok_or("a recorded line has no count")?;
            stacks.push(folded::parse(stack)?);
        }
    }
    Ok(stacks)
}
