//! Schemas that belong together: includes are followed, and what contradicts each other is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::diagnostic::{Diagnostic, Source};
use crate::error::{PROBLEMS_MAX, Problems, StackSchemaError};
use crate::limits::INCLUDES_MAX;
use crate::model::{Key, Schema};
use crate::parse::{self, Outline, Scope};

/// Schemas by name. None of them does anything until it is enabled: see [`crate::Program::compile`].
#[derive(Debug, Clone, Default)]
pub struct Library {
    schemas: BTreeMap<Arc<str>, Arc<Schema>>,
}

impl Library {
    /// Returns the schemas of some files, in whatever order they come.
    ///
    /// # Errors
    /// [`StackSchemaError::Invalid`] with every place that is wrong, up to [`PROBLEMS_MAX`].
    pub fn parse(sources: &[Source]) -> Result<Self, StackSchemaError> {
        let mut problems: Vec<Diagnostic> = Vec::new();
        let mut outlines: BTreeMap<Arc<str>, Outline<'_>> = BTreeMap::new();
        // By file name, so that which of two namesakes is called the second does not depend on the order either.
        let mut sorted: Vec<&Source> = sources.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        for source in sorted {
            match parse::outline(source) {
                Ok(outline) => match outlines.get(&outline.name) {
                    Some(_) => problems.push(source.error(
                        outline.span,
                        format!("there is another schema `{}`", outline.name),
                    )),
                    None => {
                        outlines.insert(Arc::clone(&outline.name), outline);
                    }
                },
                Err(problem) => problems.push(problem),
            }
        }
        let sources: BTreeMap<Arc<str>, Source> = outlines
            .iter()
            .filter_map(|(name, outline)| Some((Arc::clone(name), source_of(sources, outline)?)))
            .collect();
        let mut library = Self::default();
        let mut depths: FxHashMap<Arc<str>, usize> = FxHashMap::default();
        // Whatever has all of its includes read can be read itself; what remains in the end includes itself.
        while !outlines.is_empty() && problems.len() < PROBLEMS_MAX {
            let ready: Vec<Arc<str>> = outlines
                .values()
                .filter(|outline| {
                    let waits = |(name, _): &(Arc<str>, _)| outlines.contains_key(name);
                    !outline.includes.iter().any(waits)
                })
                .map(|outline| Arc::clone(&outline.name))
                .collect();
            if ready.is_empty() {
                problems.extend(circular(&outlines, &sources));
                break;
            }
            for name in ready {
                let Some(outline) = outlines.remove(&name) else {
                    continue;
                };
                let Some(source) = sources.get(&name) else {
                    continue;
                };
                let below = outline.includes.iter().filter_map(|(name, _)| depths.get(name));
                let depth = below.max().map_or(0, |depth| depth + 1);
                if depth > INCLUDES_MAX {
                    let message = format!("includes go over {INCLUDES_MAX} deep");
                    problems.push(source.error(outline.span, message));
                    continue;
                }
                depths.insert(Arc::clone(&name), depth);
                let scope = library.scope(&outline, source, &mut problems);
                match parse::schema(outline, scope) {
                    Ok(schema) => {
                        library.schemas.insert(name, Arc::new(schema));
                    }
                    Err(wrong) => problems.extend(wrong),
                }
            }
        }
        if problems.is_empty() {
            problems = library.contradictions();
        }
        if problems.is_empty() {
            return Ok(library);
        }
        problems.truncate(PROBLEMS_MAX);
        Err(StackSchemaError::Invalid(Problems(problems)))
    }

    /// Returns the schema of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<Schema>> {
        self.schemas.get(name)
    }

    /// Returns all schemas by name.
    pub fn schemas(&self) -> impl Iterator<Item = &Arc<Schema>> {
        self.schemas.values()
    }

    /// Returns the definitions of what a schema includes.
    fn scope(&self, outline: &Outline<'_>, source: &Source, problems: &mut Vec<Diagnostic>) -> Scope {
        let mut scope = Scope::default();
        let mut from: FxHashMap<Arc<str>, Arc<str>> = FxHashMap::default();
        let mut seen = BTreeSet::new();
        let mut next: Vec<Arc<str>> = Vec::new();
        for (name, span) in &outline.includes {
            if self.schemas.contains_key(name) {
                next.push(Arc::clone(name));
            } else {
                problems.push(
                    source
                        .error(*span, format!("there is no schema `{name}` to include"))
                        .with_help("give its file too; if it is there, it has problems of its own"),
                );
            }
            while let Some(included) = next.pop() {
                if !seen.insert(Arc::clone(&included)) {
                    continue;
                }
                let Some(schema) = self.schemas.get(&included) else {
                    continue;
                };
                for definition in &schema.definitions {
                    let known = (Arc::clone(&definition.frames), definition.depth);
                    scope.insert(Arc::clone(&definition.name), known);
                    if let Some(other) = from.insert(Arc::clone(&definition.name), Arc::clone(&included)) {
                        problems.push(source.error(
                            *span,
                            format!("both `{other}` and `{included}` define `{}`", definition.name),
                        ));
                    }
                }
                next.extend(schema.includes.iter().map(|(name, _)| Arc::clone(name)));
            }
        }
        scope
    }

    /// Returns where two schemas say different things of one key: tags are everybody's, so that cannot stand.
    fn contradictions(&self) -> Vec<Diagnostic> {
        let mut keys: BTreeMap<Arc<str>, (&Schema, &Key)> = BTreeMap::new();
        let mut problems = Vec::new();
        for schema in self.schemas.values() {
            for key in &schema.keys {
                let Some((other, first)) = keys.get(&key.name) else {
                    keys.insert(Arc::clone(&key.name), (schema, key));
                    continue;
                };
                if first.takes != key.takes || first.otherwise != key.otherwise {
                    problems.push(
                        schema
                            .source
                            .error(
                                key.span,
                                format!("schema `{}` says otherwise of key `{}`", other.name, key.name),
                            )
                            .with_help(
                                "a key means the same in all schemas: include the one that declares it",
                            ),
                    );
                }
            }
        }
        problems
    }
}

fn source_of(sources: &[Source], outline: &Outline<'_>) -> Option<Source> {
    sources
        .iter()
        .find(|source| std::ptr::eq(*source, outline.source()))
        .cloned()
}

/// Returns the place where includes go round, which they do if each of `outlines` includes another of them.
fn circular(
    outlines: &BTreeMap<Arc<str>, Outline<'_>>,
    sources: &BTreeMap<Arc<str>, Source>,
) -> Option<Diagnostic> {
    let next = |name: &Arc<str>| {
        let includes = &outlines.get(name)?.includes;
        includes.iter().find(|(name, _)| outlines.contains_key(name))
    };
    // After as many steps as there are schemas, one is on the circle.
    let mut name = outlines.keys().next()?;
    for _ in 0..outlines.len() {
        name = &next(name)?.0;
    }
    let (included, span) = next(name)?;
    let message = if included == name {
        "a schema cannot include itself".to_owned()
    } else {
        format!("`{included}` leads back to `{name}`: includes cannot go round")
    };
    Some(sources.get(name)?.error(*span, message))
}
