//! Rules that match → tags and marks: which of several prevails, and what the places in names are filled with.

use std::borrow::Cow;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::bits::Bits;
use crate::compile::key_of;
use crate::context::Known;
use crate::evaluate::Hit;
use crate::intern::Interner;
use crate::model::{Edit, Subject, Takes};
use crate::outcome::{Draft, Made, Mark};
use crate::parse::field_of;
use crate::program::{CompiledRule, Program, TagAction, TagKind};
use crate::rename::Step;
use crate::template::{Part, Template, push_value};
use crate::values::{OTHER, Values};

/// Everything that deciding reads, and the tables that it fills.
pub(crate) struct Decider<'a> {
    pub program: &'a Program,
    pub interner: &'a Interner,
    pub made: &'a mut Made,
    pub values: &'a mut Values,
    pub kept: &'a mut Kept,
}

/// What was decided before, and room to work in.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Names of locations by the steps that apply to them (hashed): `None` where the name stays.
    renamed: FxHashMap<(u32, u64), Option<u32>>,
    /// Texts of templates whose places are all of one location, by that.
    filled: FxHashMap<(u32, u32), Option<u32>>,
    /// Tags by service and text: the text's own, or the one that stands for all others.
    admitted: FxHashMap<(u32, u32), u32>,
    candidates: Vec<Candidate>,
    best: Vec<Option<usize>>,
    draft: Draft,
    pub bytes: usize,
}

/// Bytes of something that is kept.
const KEPT_BYTES: usize = 32;

/// A tag that would be given.
#[derive(Debug)]
struct Candidate {
    tag: Tag,
    key: Option<u32>,
    priority: i32,
    /// The frame that it comes from, for keys that go by place.
    at: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Tag {
    Fixed(u32),
    /// A text, and the bytes of it that are the same for each match.
    Made(u32, usize),
}

/// A rule's frames within the stack at hand.
struct Place<'a, const W: usize> {
    rule: &'a CompiledRule,
    site: &'a Bits<W>,
    locations: &'a [u32],
    context: Option<&'a Known>,
}

impl Decider<'_> {
    /// Returns the number of the outcome of rules that match, which stand in order. `locations` are those of the stack.
    pub(crate) fn decide<const W: usize>(
        &mut self,
        hits: &[Hit<W>],
        locations: &[u32],
        context: Option<&Known>,
    ) -> u32 {
        let count = locations.len().min(64 * W);
        let locations = &locations[..count];
        let mut outcome = std::mem::take(&mut self.kept.draft);
        outcome.clear();
        let mut candidates = std::mem::take(&mut self.kept.candidates);
        candidates.clear();
        // Which frames have their tag of a key already.
        let mut taken: Vec<(u32, Bits<W>)> = Vec::new();
        let (mut edits, mut renames) = (false, false);
        for hit in hits {
            let rule = &self.program.rules[hit.rule as usize];
            let place = Place {
                rule,
                site: &hit.site,
                locations,
                context,
            };
            for action in &rule.stack_tags {
                let at = hit.site.highest();
                if let Some(tag) = self.candidate(&place, action, at) {
                    candidates.push(Candidate {
                        tag,
                        key: action.key,
                        priority: rule.priority,
                        at,
                    });
                }
            }
            for action in &rule.frame_tags {
                self.frame_tags(&place, action, &mut taken, &mut outcome.frame_tags);
            }
            edits |= !rule.edits.is_empty();
            renames |= !rule.renames.is_empty();
        }
        self.prevail(&mut candidates);
        for candidate in &candidates {
            let tag = self.tag(candidate.tag, context);
            outcome.tags.push(tag);
        }
        self.kept.candidates = candidates;
        let made = &self.made;
        outcome.tags.sort_unstable_by(|&a, &b| made.order(a, b));
        outcome.tags.dedup();
        outcome
            .frame_tags
            .sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| made.order(a.1, b.1)));
        outcome.frame_tags.dedup();
        if edits {
            self.edits(hits, locations, &mut outcome);
        }
        if renames {
            self.renames(hits, locations, &mut outcome);
        }
        let number = self.made.intern(&outcome);
        self.kept.draft = outcome;
        number
    }

    /// Tags a rule's frames, but those that have a tag of the key already where the key takes one: rules come in the order
    /// in which they prevail.
    fn frame_tags<const W: usize>(
        &mut self,
        place: &Place<'_, W>,
        action: &TagAction,
        taken: &mut Vec<(u32, Bits<W>)>,
        tags: &mut Vec<(u32, u32)>,
    ) {
        let one = action
            .key
            .filter(|&key| self.program.keys[key as usize].1 != Takes::All);
        let of_key = one.map(|key| {
            taken
                .iter()
                .position(|(known, _)| *known == key)
                .unwrap_or_else(|| {
                    taken.push((key, Bits::NONE));
                    taken.len() - 1
                })
        });
        let fresh = of_key.map_or(*place.site, |at| place.site.minus(&taken[at].1));
        for at in fresh.iter() {
            let Some(tag) = self.candidate(place, action, Some(at)) else {
                continue;
            };
            let tag = self.tag(tag, place.context);
            tags.push((at as u32, tag));
            if let Some(of_key) = of_key {
                taken[of_key].1.insert(at);
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
            return known.map(|text| Tag::Made(text, same));
        }
        let text = self
            .fill(place, template, at)
            .map(|text| self.made.tags.intern(&text));
        if let Some(location) = source {
            self.kept.bytes += KEPT_BYTES;
            self.kept.filled.insert((location, number), text);
        }
        text.map(|text| Tag::Made(text, same))
    }

    /// Leaves of each key that takes one tag the one that prevails. Candidates stand in the order in which rules prevail.
    fn prevail(&mut self, candidates: &mut Vec<Candidate>) {
        let keys = &self.program.keys;
        let best = &mut self.kept.best;
        best.clear();
        best.resize(keys.len(), None);
        for (index, candidate) in candidates.iter().enumerate() {
            let Some(key) = candidate.key.map(|key| key as usize) else {
                continue;
            };
            let Some(first) = best[key] else {
                best[key] = Some(index);
                continue;
            };
            let nearer = match (keys[key].1, candidates[first].at, candidate.at) {
                (Takes::NearestLeaf | Takes::NearestRoot, None, Some(_)) => true,
                (Takes::NearestLeaf, Some(best), Some(next)) => next > best,
                (Takes::NearestRoot, Some(best), Some(next)) => next < best,
                _ => false,
            };
            if nearer && candidate.priority == candidates[first].priority {
                best[key] = Some(index);
            }
        }
        let mut index = 0;
        candidates.retain(|candidate| {
            let stays = match candidate.key.map(|key| key as usize) {
                None => true,
                // What stacks get that nothing else tags goes as soon as there is something else, which comes first.
                Some(key) if keys[key].1 == Takes::All => {
                    candidate.priority > i32::MIN || best[key] == Some(index)
                }
                Some(key) => best[key] == Some(index),
            };
            index += 1;
            stays
        });
    }

    fn tag(&mut self, tag: Tag, context: Option<&Known>) -> u32 {
        let (text, same) = match tag {
            Tag::Fixed(tag) => return tag,
            Tag::Made(text, same) => (text, same),
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
    fn fill<const W: usize>(
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

    fn edits<const W: usize>(&self, hits: &[Hit<W>], locations: &[u32], outcome: &mut Draft) {
        let count = locations.len();
        let mut decided = Bits::<W>::NONE;
        let first = outcome.marks.len();
        for hit in hits {
            let rule = &self.program.rules[hit.rule as usize];
            let (site, by) = (&hit.site, rule.schema);
            for edit in &rule.edits {
                let (frames, mark) = match edit {
                    Edit::Show => (*site, None),
                    Edit::Hide => (*site, Some(Mark::Hidden { by })),
                    Edit::FoldRun => (site.and(&site.callees()), Some(Mark::Folded { by })),
                    Edit::FoldRecursion => (self.recursion(site, locations), Some(Mark::Folded { by })),
                    Edit::CutCallers => {
                        let above = site.lowest().map_or(Bits::NONE, Bits::first);
                        (above, Some(Mark::Cut { by }))
                    }
                    Edit::CutCallees => (site.below(count), Some(Mark::Cut { by })),
                };
                let fresh = frames.minus(&decided);
                decided = decided.or(&frames);
                if let Some(mark) = mark {
                    outcome.marks.extend(fresh.iter().map(|at| (at as u32, mark)));
                }
            }
        }
        outcome.marks[first..].sort_unstable();
    }

    /// Returns the frames whose function came before in the same unbroken run.
    fn recursion<const W: usize>(&self, site: &Bits<W>, locations: &[u32]) -> Bits<W> {
        let mut again = Bits::NONE;
        let mut met = FxHashSet::default();
        let mut next = 0;
        for at in site.iter() {
            if at != next {
                met.clear();
            }
            next = at + 1;
            if !met.insert(self.interner.function(locations[at])) {
                again.insert(at);
            }
        }
        again
    }

    fn renames<const W: usize>(&mut self, hits: &[Hit<W>], locations: &[u32], outcome: &mut Draft) {
        // Few rules rename; a frame's list of them is told by a hash of their numbers.
        let mut rules: Vec<(&CompiledRule, &Bits<W>, u64)> = Vec::new();
        let mut frames = Bits::NONE;
        let mut of_place = false;
        for hit in hits {
            let rule = &self.program.rules[hit.rule as usize];
            if rule.renames.is_empty() {
                continue;
            }
            frames = frames.or(&hit.site);
            // A name made of neighbours is another one in another stack.
            of_place |= rule
                .renames
                .iter()
                .any(|step| matches!(step, Step::To(template) if asks_neighbours(template)));
            rules.push((rule, &hit.site, u64::from(hit.rule) + 1));
        }
        for at in frames.iter() {
            let location = locations[at];
            let list = rules
                .iter()
                .filter(|(_, site, _)| site.contains(at))
                .fold(0_u64, |list, (.., number)| {
                    (list.rotate_left(5) ^ number).wrapping_mul(HASH_FACTOR)
                });
            let name = match self.kept.renamed.get(&(location, list)) {
                Some(&known) if !of_place => known,
                _ => {
                    let name = self.renamed_to(&rules, at, locations);
                    if !of_place {
                        self.kept.bytes += KEPT_BYTES;
                        self.kept.renamed.insert((location, list), name);
                    }
                    name
                }
            };
            if let Some(name) = name {
                outcome.marks.push((at as u32, Mark::Renamed { name }));
            }
        }
    }

    fn renamed_to<const W: usize>(
        &mut self,
        rules: &[(&CompiledRule, &Bits<W>, u64)],
        at: usize,
        locations: &[u32],
    ) -> Option<u32> {
        let own = self.interner.shown(locations[at]);
        let mut name = own.to_owned();
        for &(rule, site, _) in rules.iter().filter(|(_, site, _)| site.contains(at)) {
            let place = Place {
                rule,
                site,
                locations,
                context: None,
            };
            for step in &rule.renames {
                if let Step::To(template) = step {
                    // A whole name that somebody chose: what prevails less does not touch it.
                    if let Some(chosen) = self.fill(&place, template, Some(at)) {
                        return (chosen != own).then(|| self.made.names.intern(&chosen));
                    }
                } else {
                    name = step.apply(&name);
                }
            }
        }
        (name != own && !name.is_empty()).then(|| self.made.names.intern(&name))
    }
}

/// An odd number whose bits look drawn: the fractional part of the golden ratio.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl<const W: usize> Place<'_, W> {
    /// Returns the location that a part of a template is filled from.
    fn of(&self, part: &Part, at: Option<usize>) -> Option<u32> {
        let at = at?;
        let frame = match part {
            Part::Caller(_) => (0..at).rev().find(|&frame| !self.site.contains(frame))?,
            Part::Callee(_) => (at + 1..self.locations.len()).find(|&frame| !self.site.contains(frame))?,
            _ => at,
        };
        Some(self.locations[frame])
    }

    /// Returns the location that all places of a template are filled from, if it is one and the context is not asked.
    fn source(&self, template: &Template, at: Option<usize>) -> Option<u32> {
        let mut source = None;
        for part in &template.parts {
            let of = match part {
                Part::Text(_) => continue,
                Part::Context(_) => return None,
                part => self.of(part, at)?,
            };
            if source.is_some_and(|known| known != of) {
                return None;
            }
            source = Some(of);
        }
        source
    }
}

fn asks_neighbours(template: &Template) -> bool {
    let near = |part: &Part| matches!(part, Part::Caller(_) | Part::Callee(_));
    template.parts.iter().any(near)
}
