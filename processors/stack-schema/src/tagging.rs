//! Which tags a stack and its frames get: which of several prevails, and what the places in names are filled with.

use std::borrow::Cow;

use crate::compile::key_of;
use crate::context::Known;
use crate::decide::{Decider, KEPT_BYTES, Place};
use crate::evaluate::Match;
use crate::flat::Flats;
use crate::model::{Subject, Takes};
use crate::outcome::Draft;
use crate::parse::field_of;
use crate::program::{CompiledRule, Program, TagAction, TagKind};
use crate::template::{Part, Template, push_value};
use crate::values::OTHER;

/// A tag that would be given.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    tag: Tag,
    priority: i32,
    /// The frame that it comes from, for keys that go by place.
    at: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
enum Tag {
    Fixed(u32),
    /// A text, and the bytes of it that are the same for each match.
    Made(u32, u32),
}

/// Room to work in; when a stack is decided, it is as it was before.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Lists of flat rules that match, and of each list its frame nearest to the leaf, counted from 1.
    lists: Vec<u32>,
    list_places: Vec<u32>,
    /// Flat rules that match, a bit each, and of each its frame nearest to the leaf.
    matched: Vec<u64>,
    places: Vec<u32>,
    /// Fixed tags that are given, a bit each: their numbers are in the order of their text.
    fixed: Vec<u64>,
    made: Vec<Tag>,
    /// Of each key that takes one tag what prevails so far, and the keys of which there is one.
    best: Vec<Option<Candidate>>,
    keys: Vec<u32>,
}

impl Room {
    /// Makes room for a program's rules, it is always the same program, and for lists of them.
    pub(crate) fn fit(&mut self, program: &Program, lists: usize) {
        if self.list_places.len() < lists {
            self.list_places.resize(lists, 0);
        }
        if self.places.len() != program.rules.len() {
            self.places.resize(program.rules.len(), 0);
            self.matched.resize(program.rules.len().div_ceil(64), 0);
            self.fixed.resize(program.tags.len().div_ceil(64), 0);
            self.best.resize(program.keys.len(), None);
        }
    }

    /// Notes that the flat rules of a list match at a frame; frames come from the root on.
    #[inline]
    pub(crate) fn listed(&mut self, list: u32, at: u32) {
        let place = &mut self.list_places[list as usize];
        if *place == 0 {
            self.lists.push(list);
        }
        *place = at + 1;
    }

    /// Notes which flat rules match by the lists of them that do.
    fn spread(&mut self, flats: &Flats) {
        while let Some(list) = self.lists.pop() {
            let at = std::mem::take(&mut self.list_places[list as usize]) - 1;
            for &rule in flats.tagging_rules(list) {
                let (word, bit) = (&mut self.matched[rule as usize / 64], 1 << (rule % 64));
                let place = &mut self.places[rule as usize];
                *place = if *word & bit == 0 { at } else { at.max(*place) };
                *word |= bit;
            }
        }
    }

    fn give(&mut self, tag: Tag) {
        match tag {
            Tag::Fixed(tag) => self.fixed[tag as usize / 64] |= 1 << (tag % 64),
            Tag::Made(..) => self.made.push(tag),
        }
    }

    /// Adds a tag of the stack. Tags come in the order in which their rules prevail.
    #[inline]
    fn offer(&mut self, program: &Program, key: Option<u32>, next: Candidate) {
        let Some(key) = key else {
            return self.give(next.tag);
        };
        let takes = program.keys[key as usize].1;
        let best = &mut self.best[key as usize];
        match (takes, best) {
            // What stacks get that nothing else tags comes last, and goes where there is something else.
            (Takes::All, Some(_)) => {
                if next.priority > i32::MIN {
                    self.give(next.tag);
                }
            }
            (_, best @ None) => {
                *best = Some(next);
                self.keys.push(key);
                if takes == Takes::All {
                    self.give(next.tag);
                }
            }
            (_, Some(best)) => {
                let nearer = match (takes, best.at, next.at) {
                    (Takes::NearestLeaf | Takes::NearestRoot, None, Some(_)) => true,
                    (Takes::NearestLeaf, Some(best), Some(next)) => next > best,
                    (Takes::NearestRoot, Some(best), Some(next)) => next < best,
                    _ => false,
                };
                if nearer && next.priority == best.priority {
                    *best = next;
                }
            }
        }
    }
}

impl Decider<'_> {
    /// Leaves in `tags`, in the order of their text, those that the stack gets. The lists of flat rules that match are noted in
    /// `room`.
    pub(crate) fn stack_tags<const W: usize>(
        &mut self,
        room: &mut Room,
        matches: &[Match<W>],
        locations: &[u32],
        context: Option<&Known>,
        tags: &mut Vec<u32>,
    ) {
        let program = self.program;
        room.spread(&self.interner.flats);
        let mut others = matches.iter().peekable();
        for word in 0..room.matched.len() {
            let mut rules = std::mem::take(&mut room.matched[word]);
            while rules != 0 {
                // Rules are numbered with 32 bits.
                let number = word as u32 * 64 + rules.trailing_zeros();
                rules &= rules - 1;
                while let Some(found) = others.next_if(|found| found.rule < number) {
                    self.offer(room, found, locations, context);
                }
                let at = Some(room.places[number as usize]);
                let (start, end) = program.flat_tags[number as usize];
                for given in &program.flat_tags_given[start as usize..end as usize] {
                    let tag = Tag::Fixed(given.tag);
                    let priority = given.priority;
                    room.offer(program, given.key, Candidate { tag, priority, at });
                }
            }
        }
        for found in others {
            self.offer(room, found, locations, context);
        }
        while let Some(key) = room.keys.pop() {
            let best = room.best[key as usize].take();
            if program.keys[key as usize].1 != Takes::All
                && let Some(best) = best
            {
                room.give(best.tag);
            }
        }
        for (word, bits) in (0..).zip(&mut room.fixed) {
            let mut bits = std::mem::take(bits);
            while bits != 0 {
                tags.push(word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        if !room.made.is_empty() {
            for tag in room.made.drain(..) {
                tags.push(self.tag(tag, context));
            }
            tags.sort_unstable_by(|&a, &b| self.made.order(a, b));
            tags.dedup();
        }
    }

    fn offer<const W: usize>(
        &mut self,
        room: &mut Room,
        found: &Match<W>,
        locations: &[u32],
        context: Option<&Known>,
    ) {
        let program = self.program;
        let rule = &program.rules[found.rule as usize];
        let place = Place {
            rule,
            site: &found.site,
            locations,
            context,
        };
        let at = found.site.highest();
        for action in &rule.stack_tags {
            if let Some(tag) = self.candidate(&place, action, at) {
                let next = Candidate {
                    tag,
                    priority: rule.priority,
                    at: at.map(|at| at as u32),
                };
                room.offer(program, action.key, next);
            }
        }
    }

    /// Adds the tags of frames, in order, that rules give which are not flat: those of which a frame takes one where nothing that
    /// prevails has given one. What flat rules give to a frame is replaced by what prevails over it.
    pub(crate) fn frame_tags<const W: usize>(
        &mut self,
        matches: &[Match<W>],
        locations: &[u32],
        context: Option<&Known>,
        outcome: &mut Draft,
    ) {
        let (program, flats) = (self.program, &self.interner.flats);
        let mut taken: Vec<(u32, usize)> = Vec::new();
        for found in matches {
            let rule = &program.rules[found.rule as usize];
            let place = Place {
                rule,
                site: &found.site,
                locations,
                context,
            };
            for action in &rule.frame_tags {
                // Where no other rule gives a tag of the key, none is in the way.
                let one = action.key.filter(|&key| {
                    program.keys[key as usize].1 != Takes::All && program.frame_rules_of_key[key as usize] > 1
                });
                for at in found.site.iter() {
                    let of_flats = flats.frame_tags(locations[at]);
                    let mut of_flat = None;
                    if let Some(key) = one {
                        of_flat = of_flats.iter().find(|given| given.key == Some(key));
                        if taken.contains(&(key, at)) || of_flat.is_some_and(|given| given.rule < found.rule)
                        {
                            continue;
                        }
                    }
                    let Some(tag) = self.candidate(&place, action, Some(at)) else {
                        continue;
                    };
                    let tag = self.tag(tag, context);
                    taken.extend(one.map(|key| (key, at)));
                    let new = (at as u32, tag);
                    let old = of_flat.filter(|given| given.tag != tag);
                    outcome.replaced.extend(old.map(|given| (new.0, given.tag)));
                    if of_flats.iter().any(|given| given.tag == tag) {
                        continue;
                    }
                    let known = outcome
                        .frame_tags
                        .binary_search_by(|known| self.made.order_of_frames(known, &new));
                    if let Err(free) = known {
                        outcome.frame_tags.insert(free, new);
                    }
                }
            }
        }
    }

    #[inline]
    fn candidate<const W: usize>(
        &mut self,
        place: &Place<'_, W>,
        action: &TagAction,
        at: Option<usize>,
    ) -> Option<Tag> {
        let (template, number) = match &action.what {
            TagKind::Fixed(tag) => return Some(Tag::Fixed(*tag)),
            TagKind::Made(template, number) => (template, *number),
        };
        let same = match template.parts.first() {
            Some(Part::Text(first)) => first.len(),
            _ => 0,
        };
        // Where all places are of one location, its text is made once.
        let source = place.source(template, at);
        if let Some(location) = source
            && let Some(known) = self.kept.filled.get(&(location, number))
        {
            return known.map(|text| Tag::Made(text, same as u32));
        }
        let text = self
            .fill(place, template, at)
            .map(|text| self.made.tags.intern(&text));
        if let Some(location) = source {
            self.kept.bytes += KEPT_BYTES;
            self.kept.filled.insert((location, number), text);
        }
        text.map(|text| Tag::Made(text, same as u32))
    }

    fn tag(&mut self, tag: Tag, context: Option<&Known>) -> u32 {
        let (text, same) = match tag {
            Tag::Fixed(tag) => return tag,
            Tag::Made(text, same) => (text, same as usize),
        };
        let service = context.map_or(u32::MAX, |context| context.service);
        if let Some(&known) = self.kept.admitted.get(&(service, text)) {
            if known != text {
                self.values.refused += 1;
            }
            return known;
        }
        let name = context.and_then(|context| context.value(self.program, &Subject::Service));
        let spelled = self.made.tags.get(text).to_owned();
        let start = &spelled[..same.min(spelled.len())];
        let key = key_of(&spelled).unwrap_or(start);
        let tag = if self.values.admit(name.unwrap_or(""), key, &spelled) {
            text
        } else {
            let start = key_of(start).map_or(start, |key| &start[..=key.len()]);
            self.made.tags.intern(&format!("{start}{OTHER}"))
        };
        self.kept.bytes += KEPT_BYTES;
        self.kept.admitted.insert((service, text), tag);
        tag
    }

    /// Returns a text with its places filled; nothing where one of them has nothing to fill it.
    pub(crate) fn fill<const W: usize>(
        &self,
        place: &Place<'_, W>,
        template: &Template,
        at: Option<usize>,
    ) -> Option<String> {
        let mut made = String::with_capacity(template.text.len() + 16);
        for part in &template.parts {
            let value = match part {
                Part::Text(text) => {
                    made.push_str(text);
                    continue;
                }
                Part::Own(field) | Part::Caller(field) | Part::Callee(field) => {
                    self.interner.text(place.of(part, at)?, field_of(*field)).into()
                }
                Part::Group(name) => Cow::Owned(self.captured(place.rule, name, place.of(part, at)?)?),
                Part::Context(subject) => place.context?.value(self.program, subject)?.into(),
            };
            if value.is_empty() {
                return None;
            }
            push_value(&mut made, &value);
        }
        Some(made)
    }

    fn captured(&self, rule: &CompiledRule, name: &str, location: u32) -> Option<String> {
        rule.regexes().find_map(|(field, regex)| {
            let found = regex.captures(self.interner.text(location, field).as_bytes())?;
            let group = match name.parse::<usize>() {
                Ok(number) => found.get(number),
                Err(_) => found.name(name),
            };
            group.map(|group| String::from_utf8_lossy(group.as_bytes()).into_owned())
        })
    }
}
