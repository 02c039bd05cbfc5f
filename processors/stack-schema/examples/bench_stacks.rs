//! What stack schemas cost: steady and cold, beside the same patterns run one by one with `regex` over every frame.
//!
//! `bench_stacks` measures; `bench_stacks --only new|steady|cold|naive COUNT` runs one part and measures nothing, for callgrind.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder};
use rustix::time::{ClockId, Timespec, clock_gettime};
use strobe_stack_schema::folded::{self, FoldedFrame};
use strobe_stack_schema::model::{Field, FrameCond, StackCond};
use strobe_stack_schema::name::type_of;
use strobe_stack_schema::pattern::{Kind, Pattern};
use strobe_stack_schema::{
    Context, ContextId, Library, Lists, Location, LocationId, Matcher, Program, Source,
};

/// Samples of a batch, as the agent closes one.
const BATCH_SAMPLES: usize = 8_192;
/// Batches of a go.
const BATCHES: usize = 64;
/// Goes over all batches; the fastest counts, since only disturbances make a go slower.
const GOES: usize = 5;
/// Rules of the schema that is made up.
const RULES: usize = 1_000;
/// Distinct functions that are made up.
const FUNCTIONS: usize = 1_000_000;
/// Distinct stacks of frames that are known.
const NEW_STACKS: usize = 1_000_000;
/// Frames of a stack that is made up.
const FRAMES: usize = 30;
/// Values of the annotation.
const TENANTS: usize = 1_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["--only", part, count] => count
            .parse()
            .map_err(Into::into)
            .and_then(|count| only(part, count)),
        [] => measure(),
        _ => Err("usage: bench_stacks [--only new|steady|cold|naive COUNT]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench_stacks: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Time of this thread on a core: figures are per core, and others may share the machine.
struct Watch(Timespec);

impl Watch {
    fn start() -> Self {
        Self(clock_gettime(ClockId::ThreadCPUTime))
    }

    fn seconds(&self) -> f64 {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        (now.tv_sec - self.0.tv_sec) as f64 + (now.tv_nsec - self.0.tv_nsec) as f64 * 1e-9
    }
}

/// Numbers that look drawn and are the same each time.
struct Draw(u64);

impl Draw {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % below as u64) as usize
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn texts(folder: &Path, ending: &str) -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|known| known == ending) {
            found.insert(path.display().to_string(), fs::read_to_string(&path)?);
        }
    }
    Ok(found)
}

fn shipped() -> Result<Vec<Source>, Box<dyn Error>> {
    let texts = texts(&folder().join("../../schemas/stacks"), "stacks")?;
    Ok(texts.iter().map(|(name, text)| Source::new(name, text)).collect())
}

/// Stacks, each with its samples.
type Recorded = Vec<(Vec<FoldedFrame>, u64)>;

/// Returns recorded stacks with how many samples each had.
fn recorded() -> Result<Recorded, Box<dyn Error>> {
    let mut stacks = Vec::new();
    for text in texts(&folder().join("tests/data/recorded"), "folded")?.values() {
        for line in text.lines() {
            let (stack, count) = line.rsplit_once(' ').ok_or("a recorded line has no count")?;
            stacks.push((folded::parse(stack)?, count.parse()?));
        }
    }
    // "Stacks of 30 frames": those that are about as deep.
    stacks.retain(|(stack, _)| (FRAMES / 2..=2 * FRAMES).contains(&stack.len()));
    Ok(stacks)
}

fn compile(sources: &[Source]) -> Result<Arc<Program>, Box<dyn Error>> {
    let library = Library::parse(sources)?;
    let names: Vec<&str> = library.schemas().map(|schema| &*schema.name).collect();
    Ok(Arc::new(Program::compile(&library, &names)?))
}

/// A batch with its own dictionaries, as it comes over the wire.
struct Batch {
    locations: Vec<FoldedFrame>,
    stacks: Vec<Vec<u32>>,
    /// For each sample its stack and its context.
    samples: Vec<(u32, u32)>,
}

fn batches(recorded: &[(Vec<FoldedFrame>, u64)], draw: &mut Draw) -> Vec<Batch> {
    let total: u64 = recorded.iter().map(|(_, count)| count).sum();
    let mut ends = Vec::with_capacity(recorded.len());
    let mut end = 0;
    for (_, count) in recorded {
        end += count;
        ends.push(end);
    }
    let make = |_| {
        let (mut places, mut known) = (BTreeMap::new(), BTreeMap::new());
        let mut batch = Batch {
            locations: Vec::new(),
            stacks: Vec::new(),
            samples: Vec::new(),
        };
        for _ in 0..BATCH_SAMPLES {
            let drawn = draw.next(total as usize) as u64;
            let which = ends.partition_point(|&end| end <= drawn);
            let next = batch.stacks.len() as u32;
            let stack = *known.entry(which).or_insert(next);
            if stack == next {
                let frames = recorded[which].0.iter().map(|frame| {
                    let key = (
                        frame.function.as_str(),
                        frame.module.as_str(),
                        frame.file.as_str(),
                        frame.line,
                    );
                    *places.entry(key).or_insert_with(|| {
                        batch.locations.push(frame.clone());
                        batch.locations.len() as u32 - 1
                    })
                });
                let frames = frames.collect();
                batch.stacks.push(frames);
            }
            batch.samples.push((stack, draw.next(TENANTS) as u32));
        }
        batch
    };
    (0..BATCHES).map(make).collect()
}

/// Takes a batch as the processor would: its dictionaries by text, then each sample; returns a sum over what came out.
fn take(matcher: &mut Matcher, batch: &Batch, contexts: &[String], weights: &mut Vec<f64>) {
    matcher.begin(0);
    let locations: Vec<LocationId> = batch
        .locations
        .iter()
        .map(|frame| matcher.location(&frame.location()))
        .collect();
    let mut room = Vec::with_capacity(64);
    let stacks: Vec<_> = batch
        .stacks
        .iter()
        .map(|frames| {
            room.clear();
            room.extend(frames.iter().map(|&frame| locations[frame as usize]));
            matcher.stack(&room)
        })
        .collect();
    let contexts: Vec<_> = contexts
        .iter()
        .map(|tenant| {
            matcher.context(&Context {
                service: "bench",
                annotations: &[("tenant", tenant.as_str())],
                ..Context::default()
            })
        })
        .collect();
    for &(stack, context) in &batch.samples {
        let context = contexts[context as usize % contexts.len()];
        let outcome = matcher.outcome(stacks[stack as usize], context).index();
        if weights.len() <= outcome {
            weights.resize(outcome + 1, 0.0);
        }
        weights[outcome] += 1.0;
    }
}

fn steady(program: &Arc<Program>, batches: &[Batch], contexts: &[String]) -> (f64, usize) {
    let mut matcher = Matcher::new(Arc::clone(program));
    let mut weights = Vec::new();
    let mut best = f64::MAX;
    for go in 0..=GOES {
        let begin = Watch::start();
        for batch in batches {
            take(&mut matcher, batch, contexts, &mut weights);
        }
        if go > 0 {
            best = best.min(begin.seconds());
        }
    }
    black_box(&weights);
    ((BATCH_SAMPLES * batches.len()) as f64 / best, matcher.bytes())
}

/// Every pattern of every schema, as `regex` takes it.
fn patterns(sources: &[Source]) -> Result<Vec<(Field, Regex)>, Box<dyn Error>> {
    fn frames(condition: &FrameCond, found: &mut Vec<(Field, Arc<Pattern>)>) {
        match condition {
            FrameCond::Text(field, pattern) => found.push((*field, Arc::clone(pattern))),
            FrameCond::And(list) | FrameCond::Or(list) => list.iter().for_each(|one| frames(one, found)),
            FrameCond::Not(inner) => frames(inner, found),
            FrameCond::Named(inner) | FrameCond::Near(_, inner) => frames(inner, found),
            _ => {}
        }
    }
    fn stack(condition: &StackCond, found: &mut Vec<(Field, Arc<Pattern>)>) {
        match condition {
            StackCond::Any(frame)
            | StackCond::All(frame)
            | StackCond::Leaf(frame)
            | StackCond::Root(frame) => {
                frames(frame, found);
            }
            StackCond::And(list) | StackCond::Or(list) => list.iter().for_each(|one| stack(one, found)),
            StackCond::Not(inner) => stack(inner, found),
            _ => {}
        }
    }
    let library = Library::parse(sources)?;
    let mut found = Vec::new();
    for rule in library.schemas().flat_map(|schema| &schema.rules) {
        rule.on.iter().for_each(|on| frames(on, &mut found));
        rule.when.iter().for_each(|when| stack(when, &mut found));
    }
    let mut made: BTreeMap<(Field, String), Regex> = BTreeMap::new();
    for (field, pattern) in found {
        let text = match pattern.kind() {
            Kind::Is => format!("^{}$", regex::escape(pattern.text())),
            Kind::Starts => format!("^{}", regex::escape(pattern.text())),
            Kind::Like => {
                let parts: Vec<String> = pattern.text().split('*').map(regex::escape).collect();
                format!("^{}$", parts.join(".*"))
            }
            Kind::Matches => pattern.text().to_owned(),
        };
        let regex = RegexBuilder::new(&text).unicode(false).build()?;
        made.insert((field, text), regex);
    }
    Ok(made
        .into_iter()
        .map(|((field, _), regex)| (field, regex))
        .collect())
}

/// Runs every pattern over every frame of a stack.
fn naive(patterns: &[(Field, Regex)], stack: &[FoldedFrame]) -> usize {
    let mut hits = 0;
    for frame in stack {
        for (field, regex) in patterns {
            let text = match field {
                Field::Function => frame.function.as_str(),
                Field::Type => type_of(&frame.function),
                Field::File => frame.file.as_str(),
                Field::Module => frame.module.as_str(),
            };
            hits += usize::from(regex.is_match(text.as_bytes()));
        }
    }
    hits
}

const SPACES: [&str; 12] = [
    "store", "net", "query", "cache", "index", "auth", "codec", "plan", "graph", "batch", "sched", "wire",
];
const TYPES: [&str; 10] = [
    "Map", "Vector", "Reader", "Writer", "Session", "Cursor", "Pool", "Router", "Encoder", "Table",
];
const VERBS: [&str; 10] = [
    "insert", "find", "flush", "append", "decode", "resolve", "commit", "evict", "merge", "visit",
];

/// Returns a function's name of 70 to 80 bytes, as a C++ demangler writes it.
fn function(number: usize) -> String {
    let (space, kind, verb) = (
        SPACES[number % 12],
        TYPES[number / 12 % 10],
        VERBS[number / 120 % 10],
    );
    format!(
        "app::{space}::{kind}<std::allocator<unsigned long>, {}>::{verb}_{}(unsigned long const&)",
        number / 1_200 % 97,
        number / 1_200
    )
}

/// Returns a schema of rules in four shapes: the whole name, a prefix, a gap, a bounded word.
fn many_rules() -> Source {
    let mut text = String::from("schema many\n");
    for rule in 0..RULES {
        let (space, kind, verb) = (SPACES[rule % 12], TYPES[rule / 12 % 10], VERBS[rule / 120 % 10]);
        let condition = match rule % 4 {
            0 => format!("function is \"{}\"", function(rule * 997)),
            1 => format!(
                "function starts \"app::{space}::{kind}<std::allocator<unsigned long>, {}>::{verb}_{}\"",
                rule % 97,
                rule
            ),
            2 => format!("function matches \"{space}::{kind}<.*>::{verb}_{}\\(\"", rule * 7),
            _ => format!("function matches \"\\b{verb}_{}\\b\"", rule * 11),
        };
        text.push_str(&format!("rule r{rule} {{ on {condition} tag stack r={rule} }}\n"));
    }
    Source::new("many.stacks", &text)
}

fn tenants() -> Source {
    let mut text = String::from("schema tenants\n");
    for tenant in 0..TENANTS {
        text.push_str(&format!(
            "rule t{tenant} {{ when annotation tenant is \"t{tenant}\" tag stack customer=c{tenant} }}\n"
        ));
    }
    Source::new("tenants.stacks", &text)
}

/// Stacks of known frames that nobody has seen before.
fn new_stacks(
    matcher: &mut Matcher,
    recorded: &[(Vec<FoldedFrame>, u64)],
    count: usize,
) -> Vec<Vec<LocationId>> {
    let locations: Vec<Vec<LocationId>> = recorded
        .iter()
        .map(|(stack, _)| {
            stack
                .iter()
                .map(|frame| matcher.location(&frame.location()))
                .collect()
        })
        .collect();
    let mut draw = Draw(3);
    // The head of one recorded stack and the tail of another, cut anywhere: frames as they come, in an order that is new.
    let make = |_| {
        let mut stack = Vec::with_capacity(FRAMES);
        while stack.len() < FRAMES {
            let other = &locations[draw.next(locations.len())];
            let from = draw.next(other.len());
            let length = 1 + draw.next(FRAMES / 2);
            stack.extend(other.iter().skip(from).take(length));
        }
        stack.truncate(FRAMES);
        stack
    };
    (0..count).map(make).collect()
}

/// Takes a stack to the end: all that is said of it is read.
fn take_stack(matcher: &mut Matcher, stack: &[LocationId], context: ContextId, lists: &mut Lists) {
    let stack = matcher.stack(stack);
    let outcome = matcher.outcome(stack, context);
    black_box(matcher.get(stack, outcome, lists));
}

fn measure() -> Result<(), Box<dyn Error>> {
    let sources = shipped()?;
    let recorded = recorded()?;
    let frames: usize = recorded.iter().map(|(stack, _)| stack.len()).sum();
    let program = compile(&sources)?;
    println!(
        "{} schemas with {} rules over {} recorded stacks of {:.1} frames",
        program.schemas().len(),
        program.rules(),
        recorded.len(),
        frames as f64 / recorded.len() as f64
    );

    let mut draw = Draw(1);
    let batches = batches(&recorded, &mut draw);
    let (rate, bytes) = steady(&program, &batches, &[String::new()]);
    let patterns = patterns(&sources)?;
    let begin = Watch::start();
    let mut hits = 0;
    let mut tried = 0;
    while begin.seconds() < 2.0 {
        hits += naive(&patterns, &recorded[draw.next(recorded.len())].0);
        tried += 1;
    }
    black_box(hits);
    let naive_rate = f64::from(tried) / begin.seconds();
    println!(
        "figure stacks.samples_per_s value={rate:.0} target>=20000000 peer:regex_every_frame={naive_rate:.0}"
    );
    println!("figure stacks.ratio_to_naive value={:.0}", rate / naive_rate);
    println!("figure stacks.remembered_bytes value={bytes}");
    println!("figure stacks.program_bytes value={}", program.bytes());

    let mut with_tenants = sources.clone();
    with_tenants.push(tenants());
    let tenant_program = compile(&with_tenants)?;
    let contexts: Vec<String> = (0..TENANTS).map(|tenant| format!("t{tenant}")).collect();
    let (rate, bytes) = steady(&tenant_program, &batches, &contexts);
    println!("figure stacks.context_samples_per_s value={rate:.0} target>=5000000");
    println!("figure stacks.context_remembered_bytes value={bytes}");

    let many = many_rules();
    let mut compile_ms = f64::MAX;
    for _ in 0..GOES {
        let begin = Watch::start();
        black_box(compile(std::slice::from_ref(&many))?);
        compile_ms = compile_ms.min(1e3 * begin.seconds());
    }
    println!("figure stacks.compile_ms value={compile_ms:.1} target<=200");

    let program_of_many = compile(std::slice::from_ref(&many))?;
    let functions: Vec<String> = (0..FUNCTIONS).map(function).collect();
    let mut matcher = Matcher::new(Arc::clone(&program_of_many));
    let begin = Watch::start();
    for function in &functions {
        black_box(matcher.location(&Location {
            function,
            ..Location::default()
        }));
    }
    let cold = begin.seconds();
    let cold_patterns = self::patterns(std::slice::from_ref(&many))?;
    let begin = Watch::start();
    let few = 400;
    for function in functions.iter().step_by(FUNCTIONS / few) {
        let frame = FoldedFrame {
            function: function.clone(),
            ..FoldedFrame::default()
        };
        black_box(naive(&cold_patterns, &[frame]));
    }
    let naive_cold = begin.seconds() / few as f64 * FUNCTIONS as f64;
    println!("figure stacks.cold_s value={cold:.2} target<=2 peer:regex_every_function={naive_cold:.0}");
    println!("figure stacks.cold_remembered_bytes value={}", matcher.bytes());

    let mut matcher = Matcher::new(Arc::clone(&program));
    let stacks = new_stacks(&mut matcher, &recorded, NEW_STACKS);
    let context = matcher.context(&Context::default());
    let mut lists = Lists::default();
    let begin = Watch::start();
    for stack in &stacks {
        take_stack(&mut matcher, stack, context, &mut lists);
    }
    let rate = NEW_STACKS as f64 / begin.seconds();
    println!("figure stacks.new_remembered_bytes value={}", matcher.bytes());
    println!(
        "figure stacks.new_stacks_per_s value={rate:.0} target>=1000000 peer:regex_every_frame={naive_rate:.0}"
    );
    instructions()
}

/// Runs one part `count` times, and nothing that counts with it.
fn only(part: &str, count: usize) -> Result<(), Box<dyn Error>> {
    let sources = shipped()?;
    let recorded = recorded()?;
    match part {
        "new" => {
            let mut matcher = Matcher::new(compile(&sources)?);
            // All are made, so that making them costs the same whatever the count.
            let stacks = new_stacks(&mut matcher, &recorded, count.max(20_000));
            let context = matcher.context(&Context::default());
            let mut lists = Lists::default();
            for stack in stacks.iter().take(count) {
                take_stack(&mut matcher, stack, context, &mut lists);
            }
        }
        "steady" => {
            let mut matcher = Matcher::new(compile(&sources)?);
            let batches = batches(&recorded, &mut Draw(1));
            let mut weights = Vec::new();
            take(&mut matcher, &batches[0], &[String::new()], &mut weights);
            for _ in 0..count {
                take(&mut matcher, &batches[0], &[String::new()], &mut weights);
            }
            black_box(weights);
        }
        "cold" => {
            let mut matcher = Matcher::new(compile(&[many_rules()])?);
            for number in 0..count {
                black_box(matcher.location(&Location {
                    function: &function(number),
                    ..Location::default()
                }));
            }
        }
        _ => {
            let patterns = patterns(&sources)?;
            for (stack, _) in recorded.iter().take(count) {
                black_box(naive(&patterns, stack));
            }
        }
    }
    Ok(())
}

/// Prints instructions per stack under callgrind: two counts of the same part, and what one more costs.
fn instructions() -> Result<(), Box<dyn Error>> {
    let count = |part: &str, count: usize| -> Result<f64, Box<dyn Error>> {
        let made = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe()?)
            .args(["--only", part, &count.to_string()])
            .output()?;
        let text = String::from_utf8_lossy(&made.stderr).into_owned();
        let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
        let number = collected.ok_or("valgrind counted nothing")?;
        Ok(number.trim().parse()?)
    };
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!(
            "skipped stacks.instructions_per_stack: valgrind is not installed (apt-get install valgrind)"
        );
        return Ok(());
    }
    let per = |part: &str, few: usize, many: usize| -> Result<f64, Box<dyn Error>> {
        Ok((count(part, many)? - count(part, few)?) / (many - few) as f64)
    };
    let new = per("new", 4_000, 20_000)?;
    let naive = per("naive", 1, 3)?;
    println!("figure stacks.instructions_per_stack value={new:.0} peer:regex_every_frame={naive:.0}");
    let steady = per("steady", 1, 9)? / BATCH_SAMPLES as f64;
    println!("figure stacks.instructions_per_sample value={steady:.0}");
    Ok(())
}
