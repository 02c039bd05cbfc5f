//! Flat rules: those that do the same wherever one condition on a single location holds. Nearly all rules are, and what they
//! do is decided with the location, once, instead of with each stack: the tags of its frame, whether it is hidden, and the
//! rules that tag whatever stack it is on.

use rustc_hash::FxHashMap;

use crate::decide::asks_neighbours;
use crate::limits::ENABLED_RULES_MAX;
use crate::model::{Edit, Takes};
use crate::program::{CompiledRule, FlatTag, Node, NodeIx, Program, StackNode, TagAction, TagKind};
use crate::rename::Step;

/// A number that stands for none: rules, keys and schemas are fewer.
const NONE: u32 = u32::MAX;

/// A tag of the frame at a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameTag {
    pub tag: u32,
    /// The key, where a frame takes one tag of it.
    pub key: Option<u32>,
    /// The rule that gives it.
    pub rule: u32,
}

/// What flat rules do at one location. It is read for each location of each stack that is new: it fits half a cache line.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where its rules begin among those of all: those that tag stacks stand before the others.
    rules: u32,
    frame_tags: u32,
    tagging_count: u16,
    rule_count: u16,
    frame_tag_count: u16,
    /// Whether one of its rules renames.
    renames: bool,
    /// Whether nothing is to be done there.
    is_plain: bool,
    edit_rule: u32,
    hidden_by: u32,
}

/// Bytes of a location's entry.
pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>();
// Rules in force have numbers of 16 bits, and so have the counts of a location.
const _: () = assert!(ENABLED_RULES_MAX <= u16::MAX as usize);

/// What flat rules do at a location that they do something at.
pub(crate) struct Done<'a> {
    /// The rules that tag stacks, in the order in which they prevail.
    pub tagging: &'a [u32],
    /// The tags of the location's own frame, in the order of their text.
    pub frame_tags: &'a [FrameTag],
    /// The schema that hides it.
    pub hidden_by: Option<u32>,
    /// Whether it has another name.
    pub renames: bool,
}

/// What flat rules do at each location.
#[derive(Debug, Default)]
pub(crate) struct Flats {
    list: Vec<Entry>,
    rules: Vec<u32>,
    frame_tags: Vec<FrameTag>,
}

impl Flats {
    /// Adds the next location, at which these flat rules match. Returns the bytes that it takes.
    pub(crate) fn add(&mut self, program: &Program, found: &mut [u32]) -> usize {
        // As they prevail.
        found.sort_unstable();
        let start = self.rules.len();
        let rule_of = |rule: &&u32| &program.rules[**rule as usize];
        let tags_stacks = |rule: &&u32| !rule_of(rule).stack_tags.is_empty();
        self.rules.extend(found.iter().filter(tags_stacks));
        let tagging = self.rules.len();
        self.rules.extend(found.iter().filter(|rule| !tags_stacks(rule)));
        let frames = self.frame_tags.len();
        for &rule in &*found {
            for action in &program.rules[rule as usize].frame_tags {
                let TagKind::Fixed(tag) = action.what else {
                    continue;
                };
                let one = |key: &u32| program.keys[*key as usize].1 != Takes::All;
                let key = action.key.filter(one);
                let mut given = self.frame_tags[frames..].iter();
                if !given.any(|known| known.tag == tag || (key.is_some() && known.key == key)) {
                    self.frame_tags.push(FrameTag { tag, key, rule });
                }
            }
        }
        // Numbers of fixed tags are in the order of their text.
        self.frame_tags[frames..].sort_unstable_by_key(|given| given.tag);
        let edits = found.iter().find(|rule| !rule_of(rule).edits.is_empty());
        let hidden_by = edits.map(|rule| rule_of(&rule)).and_then(|rule| {
            let hides = matches!(rule.edits.first(), Some(Edit::Hide));
            hides.then_some(rule.schema)
        });
        let renames = found.iter().any(|rule| !rule_of(&rule).renames.is_empty());
        let counts = [
            tagging - start,
            self.rules.len() - start,
            self.frame_tags.len() - frames,
        ];
        self.list.push(Entry {
            rules: start as u32,
            frame_tags: frames as u32,
            tagging_count: counts[0] as u16,
            rule_count: counts[1] as u16,
            frame_tag_count: counts[2] as u16,
            renames,
            is_plain: counts[0] == 0 && counts[2] == 0 && hidden_by.is_none() && !renames,
            edit_rule: edits.copied().unwrap_or(NONE),
            hidden_by: hidden_by.unwrap_or(NONE),
        });
        4 * found.len() + size_of::<FrameTag>() * (self.frame_tags.len() - frames)
    }

    fn entry(&self, location: u32) -> &Entry {
        // Numbers of locations come from the interner alone, which adds each of them here.
        &self.list[location as usize]
    }

    /// Returns what is done at a location; nothing where that is nothing.
    #[inline]
    pub(crate) fn done(&self, location: u32) -> Option<Done<'_>> {
        let entry = self.entry(location);
        if entry.is_plain {
            return None;
        }
        Some(Done {
            tagging: &self.rules[entry.rules as usize..][..entry.tagging_count.into()],
            frame_tags: &self.frame_tags[entry.frame_tags as usize..][..entry.frame_tag_count.into()],
            hidden_by: (entry.hidden_by != NONE).then_some(entry.hidden_by),
            renames: entry.renames,
        })
    }

    /// Returns all rules; those that tag stacks come first.
    pub(crate) fn rules(&self, location: u32) -> &[u32] {
        let entry = self.entry(location);
        &self.rules[entry.rules as usize..][..entry.rule_count.into()]
    }

    /// Returns the tags of the location's own frame, in the order of their text.
    pub(crate) fn frame_tags(&self, location: u32) -> &[FrameTag] {
        let entry = self.entry(location);
        &self.frame_tags[entry.frame_tags as usize..][..entry.frame_tag_count.into()]
    }

    /// Returns the rule that decides whether the location is shown, if one does.
    pub(crate) fn edit_rule(&self, location: u32) -> Option<u32> {
        let rule = self.entry(location).edit_rule;
        (rule != NONE).then_some(rule)
    }

    /// Returns the schema that hides the location, if one does.
    #[inline]
    pub(crate) fn hidden_by(&self, location: u32) -> Option<u32> {
        let schema = self.entry(location).hidden_by;
        (schema != NONE).then_some(schema)
    }
}

/// Returns lists one behind the other, and for each node where its own begins and ends.
pub(crate) fn laid_out(lists: FxHashMap<NodeIx, Vec<u32>>, nodes: usize) -> (Vec<(u32, u32)>, Vec<u32>) {
    let (mut places, mut all) = (vec![(0, 0); nodes], Vec::new());
    for (node, list) in lists {
        let start = all.len() as u32;
        all.extend(list);
        places[node as usize] = (start, all.len() as u32);
    }
    (places, all)
}

/// Returns the term of a rule that is flat: it matches wherever that holds, whatever else is on the stack and in the context,
/// and what it does there is the same in every stack.
pub(crate) fn term(rule: &CompiledRule, nodes: &[Node]) -> Option<NodeIx> {
    let term = rule
        .on
        .filter(|&on| matches!(nodes[on as usize], Node::Term(_)))?;
    let fixed = |tag: &TagAction| matches!(tag.what, TagKind::Fixed(_));
    let edits = |edit: &Edit| matches!(edit, Edit::Hide | Edit::Show);
    let renames = |step: &Step| match step {
        Step::To(template) => !asks_neighbours(template),
        _ => true,
    };
    let is_flat = rule.when == StackNode::True
        && !rule.needs_context
        && rule.stack_tags.iter().chain(&rule.frame_tags).all(fixed)
        && rule.edits.iter().all(edits)
        && rule.renames.iter().all(renames);
    is_flat.then_some(term)
}

/// Returns the tags that a flat rule gives to stacks.
pub(crate) fn tags(rule: &CompiledRule) -> impl Iterator<Item = FlatTag> {
    rule.stack_tags.iter().filter_map(|action| match action.what {
        TagKind::Fixed(tag) => Some(FlatTag {
            tag,
            key: action.key,
            priority: rule.priority,
        }),
        TagKind::Made(..) => None,
    })
}

/// Notes the terms that a rule's conditions ask for as sets of frames.
pub(crate) fn ask(rule: &CompiledRule, nodes: &[Node], asked: &mut [bool]) {
    fn frames(at: NodeIx, nodes: &[Node], asked: &mut [bool]) {
        // Children come before parents, and shared ones are looked at once.
        if std::mem::replace(&mut asked[at as usize], true) {
            return;
        }
        match &nodes[at as usize] {
            Node::Near(_, other) | Node::Not(other) => frames(*other, nodes, asked),
            Node::And(list) | Node::Or(list) => list.iter().for_each(|&one| frames(one, nodes, asked)),
            _ => {}
        }
    }
    fn stack(node: &StackNode, nodes: &[Node], asked: &mut [bool]) {
        match node {
            StackNode::Any(at) | StackNode::All(at) | StackNode::LeafIn(at) | StackNode::RootIn(at) => {
                frames(*at, nodes, asked);
            }
            StackNode::And(list) | StackNode::Or(list) => {
                list.iter().for_each(|one| stack(one, nodes, asked))
            }
            StackNode::Not(inner) => stack(inner, nodes, asked),
            _ => {}
        }
    }
    rule.on.iter().for_each(|&on| frames(on, nodes, asked));
    stack(&rule.when, nodes, asked);
}
