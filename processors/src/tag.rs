//! Stage 11: stacks → tags, by the stack schemas in force.
//!
//! The stage gives each sample its context, and says of each stack, in each context in which it came, what the schemas make
//! of it: tags, tags of frames, and marks of what views leave out or rename. It changes neither samples nor weights.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use strobe_event::codec::clip;
use strobe_event::tags::OUTCOME_ENTRIES_MAX;
use strobe_event::{
    BinaryKind, Context, FrameTag, Locations, Mark, MarkKind, Place, RawBatch, Reason, StackOutcome, Tags,
};
use strobe_stack_schema::model::Subject;
use strobe_stack_schema::{
    Context as Asked, ContextId, Lists, Location, LocationId, Mark as Marked, Matcher, Program,
};

/// Memory for what is remembered of stacks, unless said otherwise: a million stacks of 30 locations. What comes after is
/// matched again.
pub const MEMORY_BYTES: usize = strobe_stack_schema::matcher::MEMORY_BYTES;

/// What the stage makes of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tagged {
    /// Contexts, and what is said of stacks.
    pub tags: Tags,
    /// Context of each sample: index into those.
    pub sample_context: Vec<u32>,
}

/// Gives tags by the schemas in force, and remembers what it has decided. One thread each.
#[derive(Debug, Default)]
pub struct Tagger {
    matcher: Option<Matcher>,
    /// The schemas in force, as `cpp@3`.
    schemas: Vec<String>,
    /// Stacks whose tags of frames and marks did not fit a batch: see [`OUTCOME_ENTRIES_MAX`].
    cut: u64,
    /// Labels of the host whose batches come, each as a name and a value.
    labels: Arc<[(String, String)]>,
}

impl Tagger {
    /// Returns one without schemas: samples get contexts, and stacks nothing.
    pub fn idle() -> Self {
        Self::default()
    }

    /// Returns one that tags by a program, and remembers at most so many bytes beyond what one batch adds.
    pub fn new(program: Arc<Program>, memory_bytes: usize) -> Self {
        let schemas = program.schemas().iter();
        let schemas = schemas.map(|schema| format!("{}@{}", schema.name, schema.version));
        Self {
            schemas: schemas.collect(),
            matcher: Some(Matcher::new(program).with_memory(memory_bytes)),
            ..Self::default()
        }
    }

    /// Tags by another program from now on. What was decided is forgotten; values of a key are counted on.
    pub fn switch(&mut self, program: Arc<Program>, memory_bytes: usize) {
        let mut next = Self::new(program, memory_bytes);
        if let Some(before) = self.matcher.take() {
            next.matcher = next.matcher.map(|matcher| matcher.with_values_of(before));
        }
        next.cut = self.cut;
        *self = next;
    }

    /// Says which labels the host of the next batches has.
    pub fn of_host(&mut self, labels: Arc<[(String, String)]>) {
        self.labels = labels;
    }

    /// Returns the schemas in force, as `cpp@3`.
    pub fn schemas(&self) -> &[String] {
        &self.schemas
    }

    /// Returns how many tags became `other` for want of room among the values of their key.
    pub fn refused_values(&self) -> u64 {
        self.matcher.as_ref().map_or(0, Matcher::refused_values)
    }

    /// Returns how many stacks got their tags alone, or nothing, since their batch had too many tags and marks.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Begins a set of stacks, on a day: values of a key are counted per day.
    pub fn begin(&mut self, day: u32) -> Session<'_> {
        if let Some(matcher) = &mut self.matcher {
            matcher.begin(day);
        }
        let mut tags = Tags::default();
        for schema in &self.schemas {
            tags.schemas.push(tags.text.len() as u32);
            tags.text.push(schema.clone());
        }
        Session {
            tagger: self,
            frame_ends: vec![0],
            ids: Vec::new(),
            contexts: Vec::new(),
            outcomes: FxHashMap::default(),
            words: FxHashMap::default(),
            texts: [FxHashMap::default(), FxHashMap::default(), FxHashMap::default()],
            entries: 0,
            lists: Lists::default(),
            stack: Vec::new(),
            places: Vec::new(),
            tags,
        }
    }

    /// Returns the contexts and tags of a validated batch, on a day.
    pub fn tag(&mut self, batch: &RawBatch, names: &Locations, day: u32) -> Tagged {
        let labels = Arc::clone(&self.labels);
        let mut session = self.begin(day);
        session.frames_of(batch, names);
        let string = |entry: u32| batch.strings[entry as usize].as_str();
        let of_host = host_values(&labels);
        let mut of_service: FxHashMap<u32, u32> = FxHashMap::default();
        let mut of_process = Vec::with_capacity(batch.processes.len());
        for process in &batch.processes {
            let context = *of_service.entry(process.service).or_insert_with(|| {
                let mut values = vec![
                    ("service", string(process.service)),
                    ("profiler", &batch.run.profiler),
                    ("host", &batch.run.host),
                ];
                values.extend(of_host.iter().map(|(name, value)| (name.as_str(), *value)));
                session.context(&values)
            });
            of_process.push(context);
        }
        let threads = batch.samples.thread.iter();
        let sample_context: Vec<u32> = threads
            .map(|&thread| of_process[batch.threads.process[thread as usize] as usize])
            .collect();
        if !session.is_idle() {
            let stacks = batch.samples.stack.iter().copied();
            let mut pairs: Vec<(u32, u32)> = stacks.zip(sample_context.iter().copied()).collect();
            pairs.sort_unstable();
            pairs.dedup();
            let mut rest = pairs.as_slice();
            batch.stacks.for_each(|index, frames, _| {
                while let Some((&(stack, context), more)) = rest.split_first()
                    && stack as usize == index
                {
                    session.pair(stack, frames, context);
                    rest = more;
                }
            });
        }
        Tagged {
            tags: session.finish(),
            sample_context,
        }
    }
}

/// What a matcher's numbers are of; each has its own.
#[derive(Clone, Copy)]
enum Word {
    Tag = 0,
    Name = 1,
    Schema = 2,
}

/// Stacks under way: first their frames and contexts, then pairs of both.
pub struct Session<'t> {
    tagger: &'t mut Tagger,
    /// Where the locations of each frame end, after a 0.
    frame_ends: Vec<u32>,
    /// Locations of all frames.
    ids: Vec<LocationId>,
    contexts: Vec<Option<ContextId>>,
    outcomes: FxHashMap<StackOutcome, u32>,
    /// Text of contexts.
    words: FxHashMap<String, u32>,
    /// Text of the matcher's numbers.
    texts: [FxHashMap<u32, u32>; 3],
    entries: usize,
    /// Room for what the matcher says.
    lists: Lists,
    stack: Vec<LocationId>,
    places: Vec<Place>,
    tags: Tags,
}

impl Session<'_> {
    /// Adds a frame with its locations, the outermost function first; frames are numbered from 0.
    pub fn frame<'a>(&mut self, locations: impl Iterator<Item = Location<'a>>) {
        if let Some(matcher) = &mut self.tagger.matcher {
            self.ids
                .extend(locations.map(|location| matcher.location(&location)));
        }
        self.frame_ends.push(self.ids.len() as u32);
    }

    /// Returns whether there are no schemas: nothing is then said of stacks.
    fn is_idle(&self) -> bool {
        self.tagger.matcher.is_none()
    }

    fn frames_of(&mut self, batch: &RawBatch, names: &Locations) {
        if self.is_idle() {
            return;
        }
        let text = |entry: u32| names.text[entry as usize].as_str();
        let mut start = 0;
        for (frame, &count) in names.count.iter().enumerate() {
            let named = start..start + count as usize;
            start = named.end;
            let binary = (batch.frames.binary[frame] as usize)
                .checked_sub(1)
                .map(|at| &batch.binaries[at]);
            let reason = Reason::from_code(names.reason[frame]);
            let of_kernel = |kind| matches!(kind, BinaryKind::Kernel | BinaryKind::KernelModule);
            let common = Location {
                module: binary.map_or("", |binary| match binary.kind {
                    BinaryKind::Kernel => KERNEL,
                    _ => file_name(&batch.strings[binary.path as usize]),
                }),
                kernel: binary.is_some_and(|binary| of_kernel(binary.kind))
                    || reason == Some(Reason::KernelHidden),
                ..Location::default()
            };
            if named.is_empty() {
                self.frame(std::iter::once(without_name(common, reason)));
                continue;
            }
            let first = named.start;
            self.frame(named.map(|at| Location {
                function: text(names.function[at]),
                file: text(names.file[at]),
                line: names.line[at],
                inlined: at > first,
                ..common
            }));
        }
    }

    /// Adds a context and returns its number. Of its values (`service`, `profiler`, `region`, `host`, `label NAME`,
    /// `annotation NAME`) those that decide nothing are left out, but for service and profiler.
    pub fn context(&mut self, values: &[(&str, &str)]) -> u32 {
        let number = self.contexts.len() as u32;
        let named = |wanted: &str| {
            let found = values.iter().find(|(name, _)| *name == wanted);
            found.map_or("", |&(_, value)| value)
        };
        let listed = |prefix: &str| -> Vec<(&str, &str)> {
            let entries = values.iter();
            entries
                .filter_map(|&(name, value)| Some((name.strip_prefix(prefix)?, value)))
                .collect()
        };
        let (labels, annotations) = (listed("label "), listed("annotation "));
        let matcher = self.tagger.matcher.as_mut();
        self.contexts.push(matcher.map(|matcher| {
            matcher.context(&Asked {
                service: named("service"),
                profiler: named("profiler"),
                region: named("region"),
                host: named("host"),
                labels: &labels,
                annotations: &annotations,
            })
        }));
        let asked = |name: &str| {
            let subjects = self
                .tagger
                .matcher
                .as_ref()
                .map(|matcher| matcher.program().subjects());
            let asked =
                subjects.is_some_and(|subjects| subjects.iter().any(|subject| name_of(subject) == name));
            asked || ["service", "profiler"].contains(&name)
        };
        let kept: Vec<(&str, &str)> = values
            .iter()
            .copied()
            .filter(|(name, value)| !value.is_empty() && asked(name))
            .collect();
        let mut context = Context::default();
        for (name, value) in kept {
            context.names.push(self.word(name));
            context.values.push(self.word(value));
        }
        self.tags.contexts.push(context);
        number
    }

    fn word(&mut self, text: &str) -> u32 {
        let text = clip(text);
        if let Some(&known) = self.words.get(text) {
            return known;
        }
        let entry = self.tags.text.len() as u32;
        self.tags.text.push(text.to_owned());
        self.words.insert(text.to_owned(), entry);
        entry
    }

    /// Adds what the schemas make of a stack, given by the numbers of its frames, root first, in a context.
    pub fn pair(&mut self, stack: u32, frames: &[u32], context: u32) {
        let Some(matcher) = &mut self.tagger.matcher else {
            return;
        };
        let Some(Some(context_id)) = self.contexts.get(context as usize).copied() else {
            return;
        };
        self.stack.clear();
        self.places.clear();
        for (depth, &frame) in frames.iter().enumerate() {
            let ends = &self.frame_ends[frame as usize..];
            let locations = &self.ids[ends[0] as usize..ends[1] as usize];
            self.stack.extend_from_slice(locations);
            let place = |inline: usize| Place {
                // Stacks have at most 254 frames, and conditions see 4,096 locations.
                frame: depth.min(usize::from(u16::MAX)) as u16,
                inline: inline.min(usize::from(u16::MAX)) as u16,
            };
            self.places.extend((0..locations.len()).map(place));
        }
        let id = matcher.stack(&self.stack);
        let outcome = matcher.outcome(id, context_id);
        let made = matcher.get(id, outcome, &mut self.lists);
        let (texts, all) = (&mut self.texts, &mut self.tags.text);
        let mut entry = |word: Word, number: u32| {
            *texts[word as usize].entry(number).or_insert_with(|| {
                let text = match word {
                    Word::Tag => matcher.tag(number),
                    Word::Name => matcher.name(number),
                    Word::Schema => schema_name(matcher.program(), number),
                };
                all.push(clip(text).to_owned());
                (all.len() - 1) as u32
            })
        };
        let mut out = StackOutcome::default();
        if self.entries + made.tags.len() <= OUTCOME_ENTRIES_MAX {
            out.tags = made.tags.iter().map(|&tag| entry(Word::Tag, tag)).collect();
        }
        let whole = made.tags.len() + made.frame_tags.len() + made.marks.len();
        if self.entries + whole <= OUTCOME_ENTRIES_MAX {
            out.frame_tags = made
                .frame_tags
                .iter()
                .map(|&(at, tag)| FrameTag {
                    place: self.places[at as usize],
                    tag: entry(Word::Tag, tag),
                })
                .collect();
            out.marks = made
                .marks
                .iter()
                .map(|&(at, mark)| {
                    let (kind, text) = match mark {
                        Marked::Hidden { by } => (MarkKind::Hidden, entry(Word::Schema, by)),
                        Marked::Folded { by } => (MarkKind::Folded, entry(Word::Schema, by)),
                        Marked::Cut { by } => (MarkKind::Cut, entry(Word::Schema, by)),
                        Marked::Renamed { name } => (MarkKind::Renamed, entry(Word::Name, name)),
                    };
                    Mark {
                        place: self.places[at as usize],
                        kind: kind as u8,
                        text,
                    }
                })
                .collect();
        } else {
            self.tagger.cut += 1;
        }
        self.entries += out.entries();
        let next = self.tags.outcomes.len() as u32;
        let number = *self.outcomes.entry(out).or_insert_with_key(|out| {
            self.tags.outcomes.push(out.clone());
            next
        });
        self.tags.stack.push(stack);
        self.tags.context.push(context);
        self.tags.outcome.push(number);
    }

    /// Returns what was said.
    pub fn finish(mut self) -> Tags {
        if self.tags.contexts.is_empty() {
            self.tags.contexts.push(Context::default());
        }
        self.tags
    }
}

/// Returns what a host's labels say of each of its samples: every label, and the region, which is the label of that name.
fn host_values(labels: &[(String, String)]) -> Vec<(String, &str)> {
    let mut values: Vec<(String, &str)> = labels
        .iter()
        .map(|(name, value)| (format!("label {name}"), value.as_str()))
        .collect();
    let region = labels.iter().find(|(name, _)| name == "region");
    values.extend(region.map(|(name, value)| (name.clone(), value.as_str())));
    values
}

/// Module of the kernel's own frames, as `frames` has it.
pub const KERNEL: &str = "[kernel]";

/// Returns the last part of a path: what schemas call a module.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns a location for a frame without a name, which is shown as the reason.
pub fn without_name(common: Location<'_>, reason: Option<Reason>) -> Location<'_> {
    Location {
        function: reason.map_or("[unknown]", Reason::text),
        unnamed: true,
        ..common
    }
}

fn schema_name(program: &Program, number: u32) -> &str {
    let schema = program.schemas().get(number as usize);
    schema.map_or("", |schema| &schema.name)
}

/// Returns what a subject is called in a context.
fn name_of(subject: &Subject) -> String {
    match subject {
        Subject::Service => "service".into(),
        Subject::Profiler => "profiler".into(),
        Subject::Region => "region".into(),
        Subject::Host => "host".into(),
        Subject::Label(name) => format!("label {name}"),
        Subject::Annotation(name) => format!("annotation {name}"),
    }
}

#[cfg(test)]
mod tests;
