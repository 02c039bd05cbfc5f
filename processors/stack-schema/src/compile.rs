//! Enabled schemas → [`Program`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::diagnostic::Span;
use crate::error::StackSchemaError;
use crate::field::FieldMatcher;
use crate::flat::{self, ask, laid_out};
use crate::library::Library;
use crate::limits::{ENABLED_NODES_MAX, ENABLED_RULES_MAX};
use crate::model::{Action, Cover, Field, Rule, Schema, StackCond, Subject, Takes};
use crate::nodes::{self, Atom, Builder, Triggers};
use crate::parse::captures;
use crate::pattern::Pattern;
use crate::program::{CompiledRule, InForce, Node, NodeIx, Program, StackNode, TagAction, TagKind};
use crate::rename::Step;
use crate::template::{FrameText, Part, Template};

/// The cost of what holds for nearly every location: sums of it stay in range.
const COST_MAX: u64 = u64::MAX >> 20;
/// The priority of what stacks get that nothing else tags: below every rule's.
const OTHERWISE_PRIORITY: i32 = i32::MIN;

/// For each schema its condition and what stands for that, and the order in which they can be answered.
type Gates = (Vec<(StackNode, StackNode)>, Vec<u32>);

/// What is declared of a key: how many tags it takes, by which schemas, and the value of all others.
type Declared = (Takes, Vec<u32>, Option<Arc<str>>);

/// A rule on its way.
struct Draft<'a> {
    schema: u32,
    name: Arc<str>,
    priority: i32,
    rule: Option<&'a Rule>,
    /// The tag of a rule that is none: what stacks get that nothing else tags.
    otherwise: Option<Template>,
}

/// Everything of a program but the tables that it is searched by.
pub(crate) struct Prepared {
    pub builder: Builder,
    gates: Gates,
    pub schemas: Vec<InForce>,
    /// In the order in which they prevail.
    pub rules: Vec<CompiledRule>,
    tags: Vec<Arc<str>>,
    pub keys: Vec<(Arc<str>, Takes)>,
    /// Keeps the definitions that `builder` knows by their place.
    _schemas: Vec<Arc<Schema>>,
}

impl Program {
    /// Returns the program of the schemas that are enabled by name, with all that they include.
    ///
    /// # Errors
    /// [`StackSchemaError::Unknown`] for a name that is not in the library, [`StackSchemaError::TooMuch`] where all
    /// together pass a bound.
    pub fn compile(library: &Library, enabled: &[&str]) -> Result<Self, StackSchemaError> {
        Ok(finish(prepare(library, enabled)?))
    }
}

/// Returns the rules of the schemas that are enabled, in the order in which they prevail.
pub(crate) fn prepare(library: &Library, enabled: &[&str]) -> Result<Prepared, StackSchemaError> {
    let in_force = in_force(library, enabled)?;
    let mut builder = Builder::new();
    let gates = gates(&mut builder, &in_force, enabled);

    let mut keys: BTreeMap<Arc<str>, Declared> = BTreeMap::new();
    for (at, schema) in (0..).zip(&in_force) {
        for key in &schema.keys {
            if key.takes == Takes::All && key.otherwise.is_none() {
                continue;
            }
            let entry = keys.entry(Arc::clone(&key.name));
            entry
                .or_insert((key.takes, Vec::new(), key.otherwise.clone()))
                .1
                .push(at);
        }
    }
    let key_index: FxHashMap<&str, u32> = keys.keys().map(|key| &**key).zip(0..).collect();
    let mut drafts = drafts(&in_force);
    for (key, (_, declared, otherwise)) in &keys {
        let Some(value) = otherwise else { continue };
        let text: Arc<str> = format!("{key}={value}").into();
        drafts.extend(declared.iter().map(|&schema| Draft {
            schema,
            name: format!("otherwise {key}").into(),
            priority: OTHERWISE_PRIORITY,
            rule: None,
            otherwise: Some(Template {
                text: Arc::clone(&text),
                parts: vec![Part::Text(Arc::clone(&text))],
            }),
        }));
    }
    bounded("rules", drafts.len(), ENABLED_RULES_MAX)?;
    drafts.sort_by(|a, b| {
        let order = |draft: &Draft<'_>| (Reverse(draft.priority), draft.schema);
        order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name))
    });

    let tags = fixed_tags(&drafts);
    let tag_index: FxHashMap<&str, u32> = tags.iter().map(|tag| &**tag).zip(0..).collect();
    let mut templates = 0;
    let mut rules = Vec::with_capacity(drafts.len());
    for draft in &drafts {
        let gate = gates.0[draft.schema as usize].1.clone();
        let rule = compiled(&mut builder, draft, gate, &key_index, &tag_index, &mut templates);
        rules.push(rule);
        bounded("conditions", builder.nodes.len(), ENABLED_NODES_MAX)?;
    }
    let schemas = in_force.iter().map(|schema| InForce {
        name: Arc::clone(&schema.name),
        version: schema.version,
    });
    let keys = keys.iter().map(|(name, (takes, ..))| (Arc::clone(name), *takes));
    Ok(Prepared {
        builder,
        gates,
        schemas: schemas.collect(),
        rules,
        tags,
        keys: keys.collect(),
        _schemas: in_force,
    })
}

fn bounded(what: &'static str, count: usize, limit: usize) -> Result<(), StackSchemaError> {
    if count > limit {
        return Err(StackSchemaError::TooMuch { what, count, limit });
    }
    Ok(())
}

/// Returns what is enabled and what that includes, by name.
fn in_force(library: &Library, enabled: &[&str]) -> Result<Vec<Arc<Schema>>, StackSchemaError> {
    let mut found: BTreeMap<Arc<str>, Arc<Schema>> = BTreeMap::new();
    let mut next: Vec<Arc<str>> = enabled.iter().map(|&name| name.into()).collect();
    while let Some(name) = next.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let schema = library
            .get(&name)
            .ok_or_else(|| StackSchemaError::Unknown(name.to_string()))?;
        next.extend(schema.includes.iter().map(|(name, _)| Arc::clone(name)));
        found.insert(name, Arc::clone(schema));
    }
    Ok(found.into_values().collect())
}

/// Returns for each schema whether it is in force, as a condition on the context: it covers the sample, and is enabled or
/// included by one that is in force. With it the test of the context that stands for that, where it is no constant; they
/// are numbered from behind: the first is `u32::MAX`. And the order in which they can be answered.
fn gates(builder: &mut Builder, schemas: &[Arc<Schema>], enabled: &[&str]) -> Gates {
    let place: FxHashMap<&str, usize> = schemas.iter().map(|schema| &*schema.name).zip(0..).collect();
    let mut includers: Vec<Vec<usize>> = vec![Vec::new(); schemas.len()];
    for (at, schema) in schemas.iter().enumerate() {
        for (name, _) in &schema.includes {
            if let Some(&included) = place.get(&**name) {
                includers[included].push(at);
            }
        }
    }
    let mut made: Vec<Option<(StackNode, StackNode)>> = vec![None; schemas.len()];
    let mut order = Vec::new();
    // Includers come first; includes do not go round, so that each go makes at least one more.
    for _ in 0..schemas.len() {
        for at in 0..schemas.len() {
            if made[at].is_some() || includers[at].iter().any(|&includer| made[includer].is_none()) {
                continue;
            }
            let covers = schemas[at]
                .coverage
                .iter()
                .map(|cover| covered(builder, cover))
                .collect();
            let mut parts = vec![nodes::all(covers)];
            if !enabled.contains(&&*schemas[at].name) {
                let by = includers[at]
                    .iter()
                    .filter_map(|&includer| made[includer].as_ref().map(|(_, gate)| gate.clone()));
                parts.push(nodes::one_of(by.collect()));
            }
            let whole = nodes::all(parts);
            let gate = match whole {
                StackNode::True | StackNode::False => whole.clone(),
                _ => StackNode::Context(gate_number(at)),
            };
            made[at] = Some((whole, gate));
            order.push(at as u32);
        }
    }
    let made = made
        .into_iter()
        .map(|gate| gate.unwrap_or((StackNode::False, StackNode::False)));
    (made.collect(), order)
}

fn gate_number(schema: usize) -> u32 {
    u32::MAX - schema as u32
}

fn covered(builder: &mut Builder, cover: &Cover) -> StackNode {
    let mut any = |patterns: &[Arc<Pattern>]| {
        let tests = patterns.iter().map(|pattern| {
            if pattern.text() == "*" {
                return StackNode::True;
            }
            StackNode::Context(builder.context_test(&cover.subject, pattern))
        });
        nodes::one_of(tests.collect())
    };
    let inside = any(&cover.patterns);
    match any(&cover.except) {
        StackNode::False => inside,
        StackNode::True => StackNode::False,
        outside => nodes::all(vec![inside, StackNode::Not(Box::new(outside))]),
    }
}

fn drafts(schemas: &[Arc<Schema>]) -> Vec<Draft<'_>> {
    let mut drafts = Vec::new();
    for (at, schema) in (0..).zip(schemas) {
        drafts.extend(schema.rules.iter().map(|rule| Draft {
            schema: at,
            name: Arc::clone(&rule.name),
            priority: rule.priority,
            rule: Some(rule),
            otherwise: None,
        }));
    }
    drafts
}

fn fixed_tags(drafts: &[Draft<'_>]) -> Vec<Arc<str>> {
    let mut tags = BTreeSet::new();
    for draft in drafts {
        let actions = draft.rule.map_or(&[][..], |rule| &rule.actions);
        for action in actions {
            if let Action::TagStack(template) | Action::TagFrame(template) = action
                && template.is_fixed()
            {
                tags.insert(Arc::clone(&template.text));
            }
        }
        tags.extend(draft.otherwise.iter().map(|template| Arc::clone(&template.text)));
    }
    tags.into_iter().collect()
}

fn compiled(
    builder: &mut Builder,
    draft: &Draft<'_>,
    gate: StackNode,
    keys: &FxHashMap<&str, u32>,
    tags: &FxHashMap<&str, u32>,
    templates: &mut u32,
) -> CompiledRule {
    let mut action = |template: &Template| TagAction {
        what: match tags.get(&*template.text) {
            Some(&tag) if template.is_fixed() => TagKind::Fixed(tag),
            _ => {
                *templates += 1;
                TagKind::Made(Arc::new(template.clone()), *templates)
            }
        },
        key: key_of(&template.text).and_then(|key| keys.get(key).copied()),
    };
    let mut made = CompiledRule {
        schema: draft.schema,
        name: Arc::clone(&draft.name),
        span: draft.rule.map_or_else(Span::default, |rule| rule.span),
        priority: draft.priority,
        on: None,
        when: StackNode::True,
        stack_tags: draft.otherwise.iter().map(&mut action).collect(),
        frame_tags: Vec::new(),
        edits: Vec::new(),
        renames: Vec::new(),
        captures: Vec::new(),
        needs_context: false,
    };
    let mut when = vec![gate];
    if let Some(rule) = draft.rule {
        if let Some(on) = &rule.on {
            let node = builder.frame(on);
            made.on = Some(builder.stage(node));
            made.captures = captures(on);
        }
        when.extend(
            rule.when
                .as_ref()
                .map(|condition: &StackCond| builder.stack(condition)),
        );
        for one in &rule.actions {
            match one {
                Action::TagStack(template) => made.stack_tags.push(action(template)),
                Action::TagFrame(template) => made.frame_tags.push(action(template)),
                Action::Edit(edit) => made.edits.push(*edit),
                Action::Rename(step) => made.renames.push(Step::clone(step)),
            }
        }
        for one in made.stack_tags.iter().chain(&made.frame_tags) {
            let TagKind::Made(template, _) = &one.what else {
                continue;
            };
            // Values are counted by service.
            made.needs_context = true;
            builder.subject(&Subject::Service);
            for part in &template.parts {
                if let Part::Context(subject) = part {
                    builder.subject(subject);
                }
            }
        }
    }
    if made.on == Some(Builder::FALSE) {
        when.push(StackNode::False);
    }
    made.when = nodes::all(when);
    made
}

/// Returns the key of a tag: what stands before its `=`.
pub(crate) fn key_of(tag: &str) -> Option<&str> {
    tag.split_once('=').map(|(key, _)| key)
}

fn finish(prepared: Prepared) -> Program {
    let Prepared {
        mut builder,
        gates: (gates, gate_order),
        schemas,
        mut rules,
        tags,
        keys,
        _schemas,
    } = prepared;
    // Gates are tests like any other from here on; their numbers follow those of the patterns.
    let patterns = builder.context.len() as u32;
    let renumber = |node: &mut StackNode| renumber(node, patterns);
    let mut gates: Vec<StackNode> = gates.into_iter().map(|(whole, _)| whole).collect();
    gates.iter_mut().for_each(&renumber);
    rules.iter_mut().for_each(|rule| renumber(&mut rule.when));

    let mut terms_of_atom = vec![Vec::new(); builder.atoms.len()];
    let mut cost_of_term: FxHashMap<NodeIx, u64> = FxHashMap::default();
    for (pure, term) in std::mem::take(&mut builder.terms) {
        let (cost, atoms) = match builder.triggers(pure) {
            Some((cost, atoms)) => (cost, atoms.to_vec()),
            None => (COST_MAX, builder.tests(pure)),
        };
        cost_of_term.insert(term, cost);
        for atom in atoms {
            terms_of_atom[atom as usize].push((pure, term));
        }
    }
    let mut search = TermSearch {
        nodes: &builder.nodes,
        cost: &cost_of_term,
        known: FxHashMap::default(),
    };
    let (mut rules_of_term, mut rules_always, mut rules_of_context) =
        (FxHashMap::<NodeIx, Vec<u32>>::default(), Vec::new(), Vec::new());
    let mut asked = vec![false; builder.nodes.len()];
    let mut flat_of_term = FxHashMap::<NodeIx, Vec<u32>>::default();
    let (mut flat_tags, mut flat_tags_given) = (vec![(0, 0); rules.len()], Vec::new());
    for (at, rule) in (0..).zip(&rules) {
        if rule.when == StackNode::False {
            continue;
        }
        if let Some(term) = flat::term(rule, &builder.nodes) {
            flat_of_term.entry(term).or_default().push(at);
            let start = flat_tags_given.len() as u32;
            flat_tags_given.extend(flat::tags(rule));
            flat_tags[at as usize] = (start, flat_tags_given.len() as u32);
            continue;
        }
        ask(rule, &builder.nodes, &mut asked);
        if rule.on.is_none() && rule.when == StackNode::True {
            rules_always.push(at);
            continue;
        }
        if rule.on.is_none() && asks_context_alone(&rule.when) {
            rules_of_context.push(at);
            continue;
        }
        let by_frames = rule.on.and_then(|on| search.of_frames(on));
        let found = [by_frames, search.of_stack(&rule.when)]
            .into_iter()
            .flatten()
            .min_by_key(|(cost, _)| *cost);
        match found {
            Some((_, terms)) => {
                for &term in terms.iter() {
                    rules_of_term.entry(term).or_default().push(at);
                }
            }
            None => rules_always.push(at),
        }
    }

    let (rules_of_term, rules_by_term) = laid_out(rules_of_term, builder.nodes.len());
    let (flat_of_term, flat_rules) = laid_out(flat_of_term, builder.nodes.len());
    let mut frame_rules_of_key = vec![0; keys.len()];
    for action in rules.iter().flat_map(|rule| &rule.frame_tags) {
        if let Some(key) = action.key {
            frame_rules_of_key[key as usize] += 1;
        }
    }
    let mut fields: [Vec<(u32, Arc<Pattern>)>; 4] = Default::default();
    let (mut lines, mut flags, mut languages) = (Vec::new(), Vec::new(), Vec::new());
    for (number, atom) in (0..).zip(std::mem::take(&mut builder.atoms)) {
        match atom {
            Atom::Text(field, pattern) => fields[field as usize].push((number, pattern)),
            Atom::Line(least, most) => lines.push((least, most, number)),
            Atom::Flag(flag) => flags.push((flag, number)),
            Atom::Language(language) => languages.push((language, number)),
        }
    }
    let mut of_subject: Vec<Vec<(u32, Arc<Pattern>)>> = vec![Vec::new(); builder.subjects.len()];
    for (number, (subject, pattern)) in (0..).zip(std::mem::take(&mut builder.context)) {
        of_subject[subject as usize].push((number, pattern));
    }
    let [function, types, file, module] = fields.map(FieldMatcher::new);
    debug_assert_eq!(Field::Module as usize, 3, "fields stand in the order of the enum");
    let asks_files = !file.is_empty() || !languages.is_empty() || rules.iter().any(takes_a_file);
    Program {
        schemas,
        rules,
        tags,
        keys,
        function,
        types,
        file,
        module,
        lines,
        flags,
        languages,
        asks_files,
        atoms: terms_of_atom.len(),
        terms_of_atom,
        nodes: builder.nodes,
        asked,
        flat_of_term,
        flat_rules,
        flat_tags,
        flat_tags_given,
        frame_rules_of_key,
        rules_of_term,
        rules_by_term,
        rules_always,
        rules_of_context,
        subjects: builder.subjects,
        context: of_subject.into_iter().map(FieldMatcher::new).collect(),
        context_patterns: patterns,
        gates,
        gate_order,
    }
}

/// Returns whether a tag or a name is made of a file.
fn takes_a_file(rule: &CompiledRule) -> bool {
    let tags = rule.stack_tags.iter().chain(&rule.frame_tags);
    let made = tags.filter_map(|tag| match &tag.what {
        TagKind::Made(template, _) => Some(&**template),
        TagKind::Fixed(_) => None,
    });
    let names = rule.renames.iter().filter_map(|step| match step {
        Step::To(template) => Some(template),
        _ => None,
    });
    let is_file = |part: &Part| {
        matches!(
            part,
            Part::Own(FrameText::File) | Part::Caller(FrameText::File) | Part::Callee(FrameText::File)
        )
    };
    made.chain(names)
        .any(|template| template.parts.iter().any(is_file))
        || rule.captures.iter().any(|(field, _)| *field == Field::File)
}

fn renumber(node: &mut StackNode, patterns: u32) {
    match node {
        // Patterns are fewer than half of all numbers: gates count down from the highest.
        StackNode::Context(number) if *number > u32::MAX / 2 => *number = patterns + (u32::MAX - *number),
        StackNode::And(list) | StackNode::Or(list) => list.iter_mut().for_each(|one| renumber(one, patterns)),
        StackNode::Not(inner) => renumber(inner, patterns),
        _ => {}
    }
}

fn asks_context_alone(node: &StackNode) -> bool {
    match node {
        StackNode::True | StackNode::False | StackNode::Context(_) => true,
        StackNode::And(list) | StackNode::Or(list) => list.iter().all(asks_context_alone),
        StackNode::Not(inner) => asks_context_alone(inner),
        _ => false,
    }
}

/// Finds terms of which one must hold somewhere in a stack that a condition holds for, and what they cost.
struct TermSearch<'a> {
    nodes: &'a [Node],
    cost: &'a FxHashMap<NodeIx, u64>,
    known: FxHashMap<NodeIx, Option<Triggers>>,
}

impl TermSearch<'_> {
    fn of_frames(&mut self, at: NodeIx) -> Option<Triggers> {
        if let Some(known) = self.known.get(&at) {
            return known.clone();
        }
        let nodes = self.nodes;
        let made = match &nodes[at as usize] {
            Node::Term(_) => Some((self.cost.get(&at).copied().unwrap_or(COST_MAX), Rc::from([at]))),
            Node::Near(_, other) => self.of_frames(*other),
            Node::And(list) => {
                let parts = list.iter().filter_map(|&child| self.of_frames(child));
                parts.min_by_key(|(cost, _)| *cost)
            }
            Node::Or(list) => nodes::joined(list.iter().map(|&child| self.of_frames(child))),
            _ => None,
        };
        self.known.insert(at, made.clone());
        made
    }

    fn of_stack(&mut self, node: &StackNode) -> Option<Triggers> {
        match node {
            StackNode::Any(frames)
            | StackNode::All(frames)
            | StackNode::LeafIn(frames)
            | StackNode::RootIn(frames) => self.of_frames(*frames),
            StackNode::And(list) => {
                let parts = list.iter().filter_map(|one| self.of_stack(one));
                parts.min_by_key(|(cost, _)| *cost)
            }
            StackNode::Or(list) => nodes::joined(list.iter().map(|one| self.of_stack(one))),
            _ => None,
        }
    }
}
