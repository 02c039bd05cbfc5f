//! Stacks as stack schemas see them: for trying schemas on what is stored, and for tagging it anew.

use rustc_hash::FxHashMap;

use crate::store::{Selected, StackStore};

/// A frame with its locations, the outermost function first; all but the first are inlined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggableFrame {
    /// Function, file and line of each location; where the frame has no name, the reason in place of the function.
    pub lines: Vec<(String, String, u32)>,
    /// Path of the binary, `[kernel]`, or empty.
    pub module: String,
    /// Whether it lies in the kernel.
    pub kernel: bool,
    /// Whether it has no name.
    pub unnamed: bool,
}

/// A stack in a context.
#[derive(Debug, Clone, PartialEq)]
pub struct TagStack {
    /// Low 64 bits of the stack's key.
    pub stack: u64,
    /// The context's key.
    pub context: u64,
    /// Names and values of the context; none where it is not known.
    pub values: Vec<(String, String)>,
    /// Its frames, root first: indexes into [`Taggable::frames`].
    pub frames: Vec<u32>,
    /// Sum of the weights of its samples.
    pub weight: f64,
}

/// Values of contexts beside service and profiler, by the context's key.
#[derive(Debug, Clone, Default)]
pub struct ContextValues(pub(crate) FxHashMap<u64, Vec<(String, String)>>);

/// What is stored of a selection, as far as schemas ask.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Taggable {
    /// Distinct frames.
    pub frames: Vec<TaggableFrame>,
    /// Stacks in contexts, each pair once.
    pub stacks: Vec<TagStack>,
    /// Weight of samples whose stack is not stored: nothing can be said of it.
    pub unknown: f64,
}

impl Taggable {
    /// Returns how many frames of a stack have no name.
    pub fn unnamed(&self, stack: &TagStack) -> usize {
        let unnamed = |frame: &&u32| {
            self.frames
                .get(**frame as usize)
                .is_none_or(|frame| frame.unnamed)
        };
        stack.frames.iter().filter(unnamed).count()
    }
}

#[derive(Debug, clickhouse::Row, serde::Deserialize)]
pub(crate) struct PairRow {
    pub(crate) stack_id: u64,
    pub(crate) context_id: u64,
    pub(crate) of_service: String,
    pub(crate) of_profiler: String,
    pub(crate) of_host: String,
    pub(crate) weight: f64,
}

#[derive(Debug, clickhouse::Row, serde::Deserialize)]
pub(crate) struct LabelsRow {
    pub(crate) context: u64,
    pub(crate) names: Vec<String>,
    pub(crate) label_values: Vec<String>,
}

/// Collects the stacks of `pairs` that are known and stay selected.
pub(crate) fn collect(
    store: &StackStore,
    selected: &Selected,
    pairs: Vec<PairRow>,
    contexts: &ContextValues,
) -> Taggable {
    let mut out = Taggable::default();
    let mut local: FxHashMap<u32, u32> = FxHashMap::default();
    for pair in pairs {
        let Some(id) = store.stack_id(pair.stack_id) else {
            out.unknown += pair.weight;
            continue;
        };
        if selected.weights[id as usize][0] == 0.0 {
            continue;
        }
        let mut frames = Vec::new();
        for (frame, _) in store.frames(id) {
            let at = *local.entry(frame).or_insert_with(|| {
                out.frames.push(taggable(store, frame));
                out.frames.len() as u32 - 1
            });
            frames.push(at);
        }
        let mut values = Vec::new();
        // A context without a key is that of samples from before there were contexts: service and all are not known of it.
        if pair.context_id != 0 {
            values.push(("service".to_owned(), pair.of_service));
            values.push(("profiler".to_owned(), pair.of_profiler));
            values.extend(contexts.0.get(&pair.context_id).cloned().unwrap_or_default());
            if !pair.of_host.is_empty() && !values.iter().any(|(name, _)| name == "host") {
                values.push(("host".to_owned(), pair.of_host));
            }
        }
        out.stacks.push(TagStack {
            stack: pair.stack_id,
            context: pair.context_id,
            values,
            frames,
            weight: pair.weight,
        });
    }
    out
}

fn taggable(store: &StackStore, frame: u32) -> TaggableFrame {
    let Some(names) = store.names(frame) else {
        return TaggableFrame {
            lines: vec![("[frame not stored]".to_owned(), String::new(), 0)],
            module: String::new(),
            kernel: false,
            unnamed: true,
        };
    };
    let lines = names.lines.iter().map(|line| {
        let function = store.function_name(line.function).function;
        (function, store.text(line.file).to_owned(), line.line)
    });
    TaggableFrame {
        lines: lines.collect(),
        module: store.text(names.module).to_owned(),
        kernel: names.kernel,
        unnamed: names.unnamed,
    }
}
