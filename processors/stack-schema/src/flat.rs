//! Flat rules: those that do the same wherever one condition on a single location holds. Nearly all rules are, and what they
//! do is decided with the location, once, instead of with each stack: the tags of its frame, whether it is hidden, and the
//! rules that tag whatever stack it is on.

use rustc_hash::FxHashMap;

use crate::decide::asks_neighbours;
use crate::limits::ENABLED_RULES_MAX;
use crate::model::{Edit, Takes};
use crate::program::{CompiledRule, FlatTag, Node, NodeIx, Program, StackNode, TagAction, TagKind};
use crate::rename::Step;

/// A number that stands for none: rules, schemas and names are fewer.
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

/// What flat rules do at one location. It is read for each location of each stack that is shown: it fits half a cache line.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where its rules begin among those of all.
    rules: u32,
    frame_tags: u32,
    rule_count: u16,
    frame_tag_count: u16,
    edit_rule: u32,
    hidden_by: u32,
    /// Number of the name that it is shown by.
    name: u32,
    /// The first tag of its frame: few have more.
    tag: u32,
}

/// Bytes of a location's entry, and of the number of its rules that tag stacks.
pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>() + size_of::<u32>();
/// Bytes of a distinct list of rules beside those: its place in the index and in the list.
const LIST_BYTES: usize = 64;
// Rules in force have numbers of 16 bits, and so have the counts of a location.
const _: () = assert!(ENABLED_RULES_MAX <= u16::MAX as usize);
const _: () = assert!(size_of::<Entry>() <= 32);

/// What is to be seen of a location where flat rules tag, hide or rename its frame.
pub(crate) struct Shown<'a> {
    /// The first tag of the location's own frame in the order of their text, and those that follow.
    pub tag: Option<u32>,
    pub more: &'a [FrameTag],
    /// The schema that hides it.
    pub hidden_by: Option<u32>,
    /// The number of the name that it is shown by.
    pub name: Option<u32>,
}

/// What flat rules do at each location.
#[derive(Debug, Default)]
pub(crate) struct Flats {
    list: Vec<Entry>,
    rules: Vec<u32>,
    frame_tags: Vec<FrameTag>,
    /// Of each location the number of the list of its rules that tag stacks: lists are few, and most locations have the
    /// empty one, which is 0.
    tagging: Vec<u32>,
    list_index: FxHashMap<Box<[u32]>, u32>,
    /// The lists one behind the other, and where each ends.
    list_rules: Vec<u32>,
    list_ends: Vec<u32>,
}

impl Flats {
    /// Adds the next location, at which these flat rules match. Returns the bytes that it takes.
    pub(crate) fn add(&mut self, program: &Program, found: &mut [u32]) -> usize {
        // As they prevail.
        found.sort_unstable();
        let start = self.rules.len();
        let rule_of = |rule: &&u32| &program.rules[**rule as usize];
        self.rules.extend_from_slice(found);
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
        self.list.push(Entry {
            rules: start as u32,
            frame_tags: frames as u32,
            rule_count: found.len() as u16,
            frame_tag_count: (self.frame_tags.len() - frames) as u16,
            edit_rule: edits.copied().unwrap_or(NONE),
            hidden_by: hidden_by.unwrap_or(NONE),
            name: NONE,
            tag: self.frame_tags.get(frames).map_or(NONE, |given| given.tag),
        });
        let bytes = 4 * found.len() + size_of::<FrameTag>() * (self.frame_tags.len() - frames);
        bytes + self.add_tagging(found.iter().filter(|rule| !rule_of(rule).stack_tags.is_empty()))
    }

    fn add_tagging<'a>(&mut self, rules: impl Iterator<Item = &'a u32>) -> usize {
        if self.list_ends.is_empty() {
            self.list_ends.push(0);
            self.list_index.insert(Box::default(), 0);
        }
        let start = self.list_rules.len();
        self.list_rules.extend(rules);
        let list = &self.list_rules[start..];
        if let Some(&known) = self.list_index.get(list) {
            self.list_rules.truncate(start);
            self.tagging.push(known);
            return 0;
        }
        let bytes = 8 * list.len() + LIST_BYTES;
        let number = self.list_ends.len() as u32;
        self.list_index.insert(list.into(), number);
        self.list_ends.push(self.list_rules.len() as u32);
        self.tagging.push(number);
        bytes
    }

    fn entry(&self, location: u32) -> &Entry {
        // Numbers of locations come from the interner alone, which adds each of them here.
        &self.list[location as usize]
    }

    /// Returns the number of the list of rules that tag stacks which a location is on; 0 is the list of none.
    #[inline]
    pub(crate) fn tagging(&self, location: u32) -> u32 {
        self.tagging[location as usize]
    }

    /// Returns how many lists of rules that tag stacks there are.
    pub(crate) fn tagging_lists(&self) -> usize {
        self.list_ends.len()
    }

    /// Returns a list of rules that tag stacks, in the order in which they prevail.
    #[inline]
    pub(crate) fn tagging_rules(&self, list: u32) -> &[u32] {
        let list = list as usize;
        let start = list.checked_sub(1).map_or(0, |before| self.list_ends[before]);
        &self.list_rules[start as usize..self.list_ends[list] as usize]
    }

    /// Returns what is to be seen of a location; nothing where flat rules do nothing to its frame.
    #[inline]
    pub(crate) fn shown(&self, location: u32) -> Option<Shown<'_>> {
        let entry = self.entry(location);
        // Where all three are none, so are all of their bits.
        if entry.tag & entry.hidden_by & entry.name == NONE {
            return None;
        }
        let some = |number: u32| (number != NONE).then_some(number);
        let more = match entry.frame_tag_count {
            0 | 1 => &[][..],
            count => &self.frame_tags[entry.frame_tags as usize + 1..][..usize::from(count) - 1],
        };
        Some(Shown {
            tag: some(entry.tag),
            more,
            hidden_by: some(entry.hidden_by),
            name: some(entry.name),
        })
    }

    /// Returns all rules, in the order in which they prevail.
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
    pub(crate) fn hidden_by(&self, location: u32) -> Option<u32> {
        let schema = self.entry(location).hidden_by;
        (schema != NONE).then_some(schema)
    }

    /// Returns the number of the name that the location is shown by, if that is not its own.
    #[inline]
    pub(crate) fn name(&self, location: u32) -> Option<u32> {
        let name = self.entry(location).name;
        (name != NONE).then_some(name)
    }

    /// Says what the location is shown by.
    pub(crate) fn set_name(&mut self, location: u32, name: Option<u32>) {
        self.list[location as usize].name = name.unwrap_or(NONE);
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
