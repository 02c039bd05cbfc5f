//! A slow and obvious matcher: each condition is asked of each frame, each rule of each stack. Shares nothing with the real
//! one but the model and the renaming steps.

#![allow(
    clippy::needless_range_loop,
    clippy::collapsible_match,
    reason = "as slow and as obvious as can be: it is what the matcher is compared with"
)]
#![allow(dead_code, reason = "each test binary uses another part")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strobe_stack_schema::folded::FoldedFrame;
use strobe_stack_schema::model::{
    Action, Edit, Field, Flag, FrameCond, NumberField, Relation, Rule, Schema, StackCond, Subject, Takes,
};
use strobe_stack_schema::name::{Language, type_of};
use strobe_stack_schema::pattern::{Kind, Pattern};
use strobe_stack_schema::rename::Step;
use strobe_stack_schema::template::{FrameText, Part, Template};
use strobe_stack_schema::{Context, Library};

/// What the reference makes of a stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Tags of the stack.
    pub tags: BTreeSet<String>,
    /// Tags of frames.
    pub frame_tags: BTreeSet<(usize, String)>,
    /// Frames that are left out: how, and by which schema.
    pub left_out: BTreeMap<usize, (&'static str, String)>,
    /// Frames with other names.
    pub renamed: BTreeMap<usize, String>,
}

struct Asked<'a> {
    stack: &'a [FoldedFrame],
    context: &'a Context<'a>,
}

/// Returns what enabled schemas make of a stack.
pub fn expected(
    library: &Library,
    enabled: &[&str],
    stack: &[FoldedFrame],
    context: &Context<'_>,
) -> Expected {
    let asked = Asked { stack, context };
    let mut in_force: Vec<Arc<Schema>> = library
        .schemas()
        .filter(|schema| is_in_force(library, enabled, schema, context))
        .cloned()
        .collect();
    in_force.sort_by(|a, b| a.name.cmp(&b.name));

    let mut rules: Vec<(&Schema, &Rule, BTreeSet<usize>)> = Vec::new();
    for schema in &in_force {
        for rule in &schema.rules {
            let site: BTreeSet<usize> = match &rule.on {
                Some(on) => (0..stack.len()).filter(|&at| asked.frame(on, at)).collect(),
                None => BTreeSet::new(),
            };
            let on = rule.on.is_none() || !site.is_empty();
            if on && rule.when.as_ref().is_none_or(|when| asked.stack(when)) {
                rules.push((schema, rule, site));
            }
        }
    }
    rules.sort_by(|a, b| (-a.1.priority, &a.0.name, &a.1.name).cmp(&(-b.1.priority, &b.0.name, &b.1.name)));

    let mut made = Expected::default();
    // What a key takes holds for every sample, also those that the schema does not cover which says so.
    let named: Vec<&Arc<Schema>> = library
        .schemas()
        .filter(|schema| is_named(library, enabled, schema))
        .collect();
    let takes = |key: &str| {
        let mut keys = named.iter().flat_map(|schema| &schema.keys);
        keys.find(|known| &*known.name == key)
            .map_or(Takes::All, |known| known.takes)
    };
    // Tags of the stack.
    let mut by_key: BTreeMap<String, Vec<(i32, Option<usize>, String)>> = BTreeMap::new();
    for (_, rule, site) in &rules {
        for action in &rule.actions {
            let Action::TagStack(template) = action else {
                continue;
            };
            let place = site.last().copied();
            let Some(tag) = asked.fill(rule, template, place, site) else {
                continue;
            };
            match tag.split_once('=') {
                Some((key, _)) => by_key
                    .entry(key.to_owned())
                    .or_default()
                    .push((rule.priority, place, tag)),
                None => {
                    made.tags.insert(tag);
                }
            }
        }
    }
    for (key, list) in &by_key {
        let highest = list.iter().map(|(priority, ..)| *priority).max().unwrap();
        let best = || list.iter().filter(|(priority, ..)| *priority == highest);
        let chosen = match takes(key) {
            Takes::All => {
                made.tags.extend(list.iter().map(|(.., tag)| tag.clone()));
                continue;
            }
            Takes::One => best().next(),
            // The first of those that are as near as any.
            Takes::NearestLeaf => {
                let nearest = best().map(|(_, place, _)| *place).max().unwrap();
                best().find(|(_, place, _)| *place == nearest)
            }
            Takes::NearestRoot => {
                let nearest = best()
                    .map(|(_, place, _)| place.unwrap_or(usize::MAX))
                    .min()
                    .unwrap();
                best().find(|(_, place, _)| place.unwrap_or(usize::MAX) == nearest)
            }
        };
        made.tags.extend(chosen.map(|(.., tag)| tag.clone()));
    }
    for key in in_force.iter().flat_map(|schema| &schema.keys) {
        let start = format!("{}=", key.name);
        if let Some(otherwise) = &key.otherwise
            && !by_key.contains_key(&*key.name)
        {
            made.tags.insert(format!("{start}{otherwise}"));
        }
    }
    // Tags, edits and names of frames.
    for at in 0..stack.len() {
        let mut taken: BTreeSet<String> = BTreeSet::new();
        let mut decided = false;
        let mut steps = stack[at].function.clone();
        let mut whole: Option<String> = None;
        for (schema, rule, site) in &rules {
            for action in &rule.actions {
                match action {
                    Action::TagFrame(template) if site.contains(&at) => {
                        let Some(tag) = asked.fill(rule, template, Some(at), site) else {
                            continue;
                        };
                        let key = tag.split_once('=').map(|(key, _)| key.to_owned());
                        let one = key.as_ref().is_some_and(|key| takes(key) != Takes::All);
                        if one && !taken.insert(key.unwrap()) {
                            continue;
                        }
                        made.frame_tags.insert((at, tag));
                    }
                    Action::Edit(edit) => {
                        if !decided && asked.edited(*edit, site, at) {
                            decided = true;
                            let how = match edit {
                                Edit::Hide => "hidden",
                                Edit::Show => continue,
                                Edit::FoldRecursion | Edit::FoldRun => "folded",
                                Edit::CutCallers | Edit::CutCallees => "cut",
                            };
                            made.left_out.insert(at, (how, schema.name.to_string()));
                        }
                    }
                    Action::Rename(step) if site.contains(&at) => match step {
                        Step::To(template) => {
                            if whole.is_none() {
                                whole = asked.fill(rule, template, Some(at), site);
                            }
                        }
                        step => steps = step.apply(&steps),
                    },
                    _ => {}
                }
            }
        }
        let name = whole.unwrap_or(steps);
        if name != stack[at].function && !name.is_empty() {
            made.renamed.insert(at, name);
        }
    }
    made
}

fn is_named(library: &Library, enabled: &[&str], schema: &Schema) -> bool {
    let includes = |other: &Schema| other.includes.iter().any(|(name, _)| *name == schema.name);
    enabled.contains(&&*schema.name)
        || library
            .schemas()
            .any(|other| includes(other) && is_named(library, enabled, other))
}

fn is_in_force(library: &Library, enabled: &[&str], schema: &Schema, context: &Context<'_>) -> bool {
    let covers = schema.coverage.iter().all(|cover| {
        let value = context.value(&cover.subject);
        let any = |patterns: &[Arc<Pattern>]| {
            patterns.iter().any(|pattern| {
                // The star alone covers what has no value, too.
                pattern.text() == "*" || value.is_some_and(|value| holds(pattern, value))
            })
        };
        any(&cover.patterns) && !any(&cover.except)
    });
    let wanted = enabled.contains(&&*schema.name)
        || library.schemas().any(|other| {
            other.includes.iter().any(|(name, _)| *name == schema.name)
                && is_in_force(library, enabled, other, context)
        });
    covers && wanted
}

fn holds(pattern: &Pattern, text: &str) -> bool {
    let regex = match pattern.kind() {
        Kind::Is => return pattern.text() == text,
        Kind::Starts => return text.starts_with(pattern.text()),
        Kind::Like => {
            let parts: Vec<String> = pattern.text().split('*').map(regex::escape).collect();
            format!("^(?s:{})$", parts.join(".*"))
        }
        Kind::Matches => pattern.text().to_owned(),
    };
    compiled(&regex).is_match(text.as_bytes())
}

/// Compiling is what takes the time: each expression is kept.
fn compiled(text: &str) -> regex::bytes::Regex {
    thread_local! {
        static KNOWN: RefCell<BTreeMap<String, regex::bytes::Regex>> = const { RefCell::new(BTreeMap::new()) };
    }
    KNOWN.with_borrow_mut(|known| {
        let made = || {
            regex::bytes::RegexBuilder::new(text)
                .unicode(false)
                .build()
                .unwrap()
        };
        known.entry(text.to_owned()).or_insert_with(made).clone()
    })
}

impl Asked<'_> {
    fn text(&self, at: usize, field: Field) -> &str {
        let frame = &self.stack[at];
        match field {
            Field::Function | Field::Type if frame.unnamed => "",
            Field::Function => &frame.function,
            Field::Type => type_of(&frame.function),
            Field::File => &frame.file,
            Field::Module => &frame.module,
        }
    }

    fn frame(&self, condition: &FrameCond, at: usize) -> bool {
        let frame = &self.stack[at];
        match condition {
            FrameCond::Anything => true,
            FrameCond::Text(field, pattern) => {
                let named = !frame.unnamed || matches!(field, Field::File | Field::Module);
                named && holds(pattern, self.text(at, *field))
            }
            FrameCond::Number(NumberField::Line, least, most) => (*least..=*most).contains(&frame.line),
            FrameCond::Number(NumberField::Depth, least, most) => {
                (*least as usize..=*most as usize).contains(&(at + 1))
            }
            FrameCond::Flag(Flag::Inlined) => frame.inlined,
            FrameCond::Flag(Flag::Kernel) => frame.kernel,
            FrameCond::Flag(Flag::User) => !frame.kernel,
            FrameCond::Flag(Flag::Unnamed) => frame.unnamed,
            FrameCond::Flag(Flag::Leaf) => at + 1 == self.stack.len(),
            FrameCond::Flag(Flag::Root) => at == 0,
            FrameCond::Language(language) => {
                !frame.unnamed && Language::of(&frame.function, &frame.file, frame.kernel) == Some(*language)
            }
            FrameCond::Near(relation, other) => (0..self.stack.len()).any(|place| {
                let stands = match relation {
                    Relation::CalledBy => place + 1 == at,
                    Relation::Under => place < at,
                    Relation::Calling => place == at + 1,
                    Relation::Over => place > at,
                };
                stands && self.frame(other, place)
            }),
            FrameCond::And(list) => list.iter().all(|one| self.frame(one, at)),
            FrameCond::Or(list) => list.iter().any(|one| self.frame(one, at)),
            FrameCond::Not(inner) => !self.frame(inner, at),
            FrameCond::Named(inner) => self.frame(inner, at),
        }
    }

    fn stack(&self, condition: &StackCond) -> bool {
        let count = self.stack.len();
        match condition {
            StackCond::Any(frame) => (0..count).any(|at| self.frame(frame, at)),
            StackCond::All(frame) => count > 0 && (0..count).all(|at| self.frame(frame, at)),
            StackCond::Leaf(frame) => count > 0 && self.frame(frame, count - 1),
            StackCond::Root(frame) => count > 0 && self.frame(frame, 0),
            StackCond::Depth(least, most) => (*least as usize..=*most as usize).contains(&count),
            StackCond::Context(subject, pattern) => self
                .context
                .value(subject)
                .is_some_and(|value| holds(pattern, value)),
            StackCond::And(list) => list.iter().all(|one| self.stack(one)),
            StackCond::Or(list) => list.iter().any(|one| self.stack(one)),
            StackCond::Not(inner) => !self.stack(inner),
        }
    }

    fn edited(&self, edit: Edit, site: &BTreeSet<usize>, at: usize) -> bool {
        match edit {
            Edit::Hide | Edit::Show => site.contains(&at),
            Edit::FoldRun => at > 0 && site.contains(&at) && site.contains(&(at - 1)),
            Edit::FoldRecursion => {
                let run = (0..at).rev().take_while(|before| site.contains(before));
                let mut before = run.map(|before| &self.stack[before].function);
                site.contains(&at) && before.any(|function| *function == self.stack[at].function)
            }
            Edit::CutCallers => site.first().is_some_and(|first| at < *first),
            Edit::CutCallees => site.first().is_some_and(|first| at > *first),
        }
    }

    fn fill(
        &self,
        rule: &Rule,
        template: &Template,
        at: Option<usize>,
        site: &BTreeSet<usize>,
    ) -> Option<String> {
        let field = |text: &FrameText| match text {
            FrameText::Function => Field::Function,
            FrameText::Type => Field::Type,
            FrameText::Module => Field::Module,
            FrameText::File => Field::File,
        };
        let mut made = String::new();
        for part in &template.parts {
            let value = match part {
                Part::Text(text) => text.to_string(),
                Part::Own(text) => self.text(at?, field(text)).to_owned(),
                Part::Caller(text) => {
                    let caller = (0..at?).rev().find(|place| !site.contains(place))?;
                    self.text(caller, field(text)).to_owned()
                }
                Part::Callee(text) => {
                    let callee = (at? + 1..self.stack.len()).find(|place| !site.contains(place))?;
                    self.text(callee, field(text)).to_owned()
                }
                Part::Group(name) => self.group(rule.on.as_deref()?, name, at?)?,
                Part::Context(subject) => self.context.value(subject)?.to_owned(),
            };
            if value.is_empty() {
                return None;
            }
            made.push_str(&value);
        }
        Some(made)
    }

    /// The first expression, in the order of the text, that has the group and takes part.
    fn group(&self, condition: &FrameCond, name: &str, at: usize) -> Option<String> {
        match condition {
            FrameCond::Text(field, pattern) if pattern.kind() == Kind::Matches => {
                let regex = compiled(pattern.text());
                let found = regex.captures(self.text(at, *field).as_bytes())?;
                let group = match name.parse::<usize>() {
                    Ok(number) => found.get(number)?,
                    Err(_) => found.name(name)?,
                };
                Some(String::from_utf8_lossy(group.as_bytes()).into_owned())
            }
            FrameCond::And(list) | FrameCond::Or(list) => {
                list.iter().find_map(|one| self.group(one, name, at))
            }
            FrameCond::Named(inner) => self.group(inner, name, at),
            _ => None,
        }
    }
}

/// Returns whether a context has a value for a subject; for tests that vary contexts.
pub fn has(context: &Context<'_>, subject: &Subject) -> bool {
    context.value(subject).is_some()
}
