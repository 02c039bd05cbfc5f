//! Rows of `tags`: what stack schemas say of each stack in each context.

use strobe_event::{ContextKey, FrameTag, Generation, Mark, Place, SamplesBatch, StackKey, StackOutcome};
use xxhash_rust::xxh3::xxh3_64;

use super::columns::Columns;
use super::due::{Due, mix};
use crate::native::{Lists, TextLists, TextMaps, Texts};
use crate::tables::Table;
use crate::written::Written;

/// One row: what is said of a stack in a context. Entries of `outcome` are indexes into `text`.
#[derive(Debug, Clone, Copy)]
pub struct TagRow<'a> {
    /// Low 64 bits of the stack's key.
    pub stack: u64,
    /// The context's key.
    pub context: ContextKey,
    /// Of how many names it was made, and when: the highest counts.
    pub generation: Generation,
    /// Names and values of the context.
    pub values: &'a [(&'a str, &'a str)],
    /// What is said.
    pub outcome: &'a StackOutcome,
    /// The schemas in force, as `cpp@3`.
    pub schemas: &'a [&'a str],
    /// Text that the outcome names.
    pub text: &'a [String],
    /// Days since 1970 of its last use.
    pub day: u16,
}

/// Rows under way.
#[derive(Default)]
pub struct TagRows {
    rows: usize,
    stack: Vec<u8>,
    context: Vec<u8>,
    generation: Vec<u8>,
    service: Texts,
    profiler: Texts,
    labels: TextMaps,
    tags: TextLists,
    tagged: Places,
    frame_tags: TextLists,
    marked: Places,
    kinds: Lists,
    marks: TextLists,
    schemas: TextLists,
    day: Vec<u8>,
}

/// Two columns of places.
#[derive(Default)]
struct Places {
    frame: Lists,
    inline: Lists,
}

impl Places {
    fn push(&mut self, places: impl ExactSizeIterator<Item = Place>) {
        let count = places.len();
        for place in places {
            self.frame.values.extend_from_slice(&place.frame.to_le_bytes());
            self.inline.values.extend_from_slice(&place.inline.to_le_bytes());
        }
        self.frame.end(count);
        self.inline.end(count);
    }
}

impl TagRows {
    /// Returns how many rows there are.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds what a batch says of its stacks, as far as it is due. Without schemas in force a batch says nothing, and what
    /// was said before stays true until it is said anew.
    pub(super) fn add(
        &mut self,
        day: u16,
        batch: &SamplesBatch,
        (stacks, contexts): (&[StackKey], &[ContextKey]),
        written: Option<&Written>,
        due: &mut Due,
    ) {
        let tags = &batch.tags;
        if tags.stack.is_empty() {
            return;
        }
        let hashes: Vec<u64> = tags.text.iter().map(|text| xxh3_64(text.as_bytes())).collect();
        let by = tags
            .schemas
            .iter()
            .map(|&schema| hashes[schema as usize])
            .fold(0, mix);
        let outcomes: Vec<u64> = tags
            .outcomes
            .iter()
            .map(|one| content(one, &hashes, by))
            .collect();
        let schemas: Vec<&str> = tags.schemas.iter().map(|&schema| tags.text(schema)).collect();
        let values: Vec<Vec<(&str, &str)>> = (0..tags.contexts.len())
            .map(|context| tags.values(context).collect())
            .collect();
        let unnamed = unnamed_frames(batch);
        for pair in 0..tags.stack.len() {
            let [stack, context, outcome] =
                [&tags.stack, &tags.context, &tags.outcome].map(|of| of[pair] as usize);
            let key = mix(contexts[context].0, stacks[stack].low());
            // The same, but of more names, is news: nothing that is made of fewer may count instead.
            let content = mix(outcomes[outcome], unnamed[stack] as u64);
            if !due.is_due((day, key), content, written) {
                continue;
            }
            self.push(&TagRow {
                stack: stacks[stack].low(),
                context: contexts[context],
                generation: Generation::new(unnamed[stack], batch.generation),
                values: &values[context],
                outcome: &tags.outcomes[outcome],
                schemas: &schemas,
                text: &tags.text,
                day,
            });
        }
    }

    /// Adds a row.
    pub fn push(&mut self, row: &TagRow<'_>) {
        let said = |entry: u32| row.text.get(entry as usize).map_or("", String::as_str);
        let value = |wanted: &str| {
            let found = row.values.iter().find(|(name, _)| *name == wanted);
            found.map_or("", |&(_, value)| value)
        };
        self.rows += 1;
        self.stack.extend_from_slice(&row.stack.to_le_bytes());
        self.context.extend_from_slice(&row.context.0.to_le_bytes());
        self.generation.extend_from_slice(&row.generation.0.to_le_bytes());
        for (texts, name) in [(&mut self.service, "service"), (&mut self.profiler, "profiler")] {
            let number = texts.number(value(name));
            texts.rows.push(number);
        }
        let others = row.values.iter().copied();
        self.labels
            .push(others.filter(|(name, _)| !["service", "profiler"].contains(name)));
        let StackOutcome {
            tags,
            frame_tags,
            marks,
        } = row.outcome;
        self.tags.push(tags.iter().map(|&tag| said(tag)));
        self.tagged
            .push(frame_tags.iter().map(|tag: &FrameTag| tag.place));
        self.frame_tags.push(frame_tags.iter().map(|tag| said(tag.tag)));
        self.marked.push(marks.iter().map(|mark: &Mark| mark.place));
        self.kinds.values.extend(marks.iter().map(|mark| mark.kind));
        self.kinds.end(marks.len());
        self.marks.push(marks.iter().map(|mark| said(mark.text)));
        self.schemas.push(row.schemas.iter().copied());
        self.day.extend_from_slice(&row.day.to_le_bytes());
    }

    /// Returns how many rows there are, and their block in Native.
    pub fn block(&self) -> (usize, Vec<u8>) {
        let mut columns = Columns::new(Table::Tags, self.rows, 8_192 + 200 * self.rows);
        columns.plain(&self.stack);
        columns.plain(&self.context);
        columns.plain(&self.generation);
        columns.texts(&self.service);
        columns.texts(&self.profiler);
        columns.text_maps(&self.labels);
        columns.text_lists(&self.tags);
        columns.lists(&self.tagged.frame);
        columns.lists(&self.tagged.inline);
        columns.text_lists(&self.frame_tags);
        columns.lists(&self.marked.frame);
        columns.lists(&self.marked.inline);
        columns.lists(&self.kinds);
        columns.text_lists(&self.marks);
        columns.text_lists(&self.schemas);
        columns.plain(&self.day);
        columns.finish()
    }
}

/// Returns how many frames of each stack have no name.
fn unnamed_frames(batch: &SamplesBatch) -> Vec<usize> {
    let mut unnamed = vec![0; batch.raw.stacks.len()];
    let names = &batch.locations.count;
    batch.raw.stacks.for_each(|stack, frames, _| {
        unnamed[stack] = frames.iter().filter(|&&frame| names[frame as usize] == 0).count();
    });
    unnamed
}

/// Returns a hash of what an outcome says, and of the schemas that say it.
fn content(outcome: &StackOutcome, hashes: &[u64], by: u64) -> u64 {
    let place = |place: Place| u64::from(place.frame) << 16 | u64::from(place.inline);
    let tags = outcome.tags.iter().map(|&tag| hashes[tag as usize]);
    let frames = outcome
        .frame_tags
        .iter()
        .flat_map(|tag| [place(tag.place), hashes[tag.tag as usize]]);
    let marks = outcome.marks.iter().flat_map(|mark| {
        let kind = u64::from(mark.kind);
        [place(mark.place) << 8 | kind, hashes[mark.text as usize]]
    });
    tags.chain(frames).chain(marks).fold(by, mix)
}
