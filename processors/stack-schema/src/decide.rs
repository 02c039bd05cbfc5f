//! Rules that match → an outcome: tags (see `tagging`), and marks of what is left out or renamed.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::bits::Bits;
use crate::context::Known;
use crate::evaluate::Match;
use crate::intern::Interner;
use crate::model::Edit;
use crate::outcome::{Draft, Made, Mark};
use crate::program::{CompiledRule, Program};
use crate::rename::Step;
use crate::tagging::Room;
use crate::template::{Part, Template};
use crate::values::Values;

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
    pub filled: FxHashMap<(u32, u32), Option<u32>>,
    /// Tags by service and text: the text's own, or the one that stands for all others.
    pub admitted: FxHashMap<(u32, u32), u32>,
    room: Room,
    draft: Draft,
    pub bytes: usize,
}

/// Bytes of something that is kept.
pub(crate) const KEPT_BYTES: usize = 32;

/// A rule's frames within the stack at hand.
pub(crate) struct Place<'a, const W: usize> {
    pub rule: &'a CompiledRule,
    pub site: &'a Bits<W>,
    pub locations: &'a [u32],
    pub context: Option<&'a Known>,
}

impl<'a> Decider<'a> {
    /// Returns the number of the outcome of a stack, given by its locations: of the flat rules that tag stacks where those
    /// are, and of the others that match, which stand in order.
    pub(crate) fn decide<const W: usize>(
        &mut self,
        matches: &[Match<W>],
        locations: &[u32],
        context: Option<&Known>,
    ) -> u32 {
        let locations = &locations[..locations.len().min(64 * W)];
        let mut outcome = std::mem::take(&mut self.kept.draft);
        outcome.clear();
        let flats = &self.interner.flats;
        let mut room = std::mem::take(&mut self.kept.room);
        room.fit(self.program, flats.tagging_lists());
        // What other rules leave out and rename is decided together with what flat rules do.
        let mut frame_tags = false;
        let whole = &mut outcome.whole;
        for found in matches {
            let rule = &self.program.rules[found.rule as usize];
            frame_tags |= !rule.frame_tags.is_empty();
            whole.left_out |= !rule.edits.is_empty();
            whole.renamed |= !rule.renames.is_empty();
        }
        for (at, &location) in (0..).zip(locations) {
            let list = flats.tagging(location);
            if list != 0 {
                room.listed(list, at);
            }
        }
        self.stack_tags(&mut room, matches, locations, context, &mut outcome.tags);
        self.kept.room = room;
        if frame_tags {
            self.frame_tags(matches, locations, context, &mut outcome);
        }
        if outcome.whole.left_out {
            self.edits(matches, locations, &mut outcome);
        }
        if outcome.whole.renamed {
            self.renames(matches, locations, &mut outcome);
        }
        let number = match context {
            Some(_) => self.made.intern(&outcome),
            None => self.made.append(&outcome),
        };
        self.kept.draft = outcome;
        number
    }

    fn edits<const W: usize>(&self, matches: &[Match<W>], locations: &[u32], outcome: &mut Draft) {
        let (flats, count) = (&self.interner.flats, locations.len());
        let (mut looked_at, mut decided) = (Bits::<W>::NONE, Bits::<W>::NONE);
        for found in matches {
            let rule = &self.program.rules[found.rule as usize];
            let (site, by) = (&found.site, rule.schema);
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
                let fresh = frames.minus(&looked_at);
                looked_at = looked_at.or(&frames);
                for at in fresh.iter() {
                    // A flat rule that prevails decides.
                    if flats
                        .edit_rule(locations[at])
                        .is_some_and(|flat| flat < found.rule)
                    {
                        continue;
                    }
                    decided.insert(at);
                    outcome.marks.extend(mark.map(|mark| (at as u32, mark)));
                }
            }
        }
        for (at, &location) in locations.iter().enumerate() {
            if let Some(by) = flats.hidden_by(location).filter(|_| !decided.contains(at)) {
                outcome.marks.push((at as u32, Mark::Hidden { by }));
            }
        }
        outcome.marks.sort_unstable();
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

    /// Marks what is renamed where rules rename that are not flat.
    fn renames<const W: usize>(&mut self, matches: &[Match<W>], locations: &[u32], outcome: &mut Draft) {
        let program = self.program;
        let renames = |found: &&Match<W>| !program.rules[found.rule as usize].renames.is_empty();
        let others: Vec<&Match<W>> = matches.iter().filter(renames).collect();
        for (at, &location) in locations.iter().enumerate() {
            let name = match others.iter().any(|found| found.site.contains(at)) {
                true => self.name_here(&others, at, locations),
                false => self.interner.flats.name(location),
            };
            if let Some(name) = name {
                outcome.marks.push((at as u32, Mark::Renamed { name }));
            }
        }
    }

    /// Returns the number of the name that flat rules give a location; nothing where it keeps its own.
    pub(crate) fn flat_name(&mut self, location: u32) -> Option<u32> {
        let site = Bits::<1>::first(1);
        let rules: Vec<(u32, &Bits<1>)> = self.flat_renames(location).map(|rule| (rule, &site)).collect();
        if rules.is_empty() {
            return None;
        }
        self.renamed_to(rules, 0, &[location])
    }

    fn flat_renames(&self, location: u32) -> impl Iterator<Item = u32> + use<'a> {
        let program = self.program;
        let rules = self.interner.flats.rules(location).iter().copied();
        rules.filter(|&rule| !program.rules[rule as usize].renames.is_empty())
    }

    /// Returns the name of a location that rules which are not flat rename here, together with the flat ones.
    fn name_here<const W: usize>(
        &mut self,
        others: &[&Match<W>],
        at: usize,
        locations: &[u32],
    ) -> Option<u32> {
        let location = locations[at];
        let mut own = Bits::<W>::NONE;
        own.insert(at);
        let mut rules: Vec<(u32, &Bits<W>)> = self.flat_renames(location).map(|rule| (rule, &own)).collect();
        let here = others.iter().filter(|found| found.site.contains(at));
        rules.extend(here.map(|found| (found.rule, &found.site)));
        rules.sort_unstable_by_key(|(rule, _)| *rule);
        // A name made of neighbours is another one in another stack.
        let of_place = rules.iter().any(|(rule, _)| {
            let steps = &self.program.rules[*rule as usize].renames;
            steps
                .iter()
                .any(|step| matches!(step, Step::To(template) if asks_neighbours(template)))
        });
        if of_place {
            return self.renamed_to(rules, at, locations);
        }
        // A list of rules is told by a hash of their numbers.
        let list = rules.iter().fold(0_u64, |list, (rule, _)| {
            (list.rotate_left(5) ^ (u64::from(*rule) + 1)).wrapping_mul(HASH_FACTOR)
        });
        if let Some(&known) = self.kept.renamed.get(&(location, list)) {
            return known;
        }
        let name = self.renamed_to(rules, at, locations);
        self.kept.bytes += KEPT_BYTES;
        self.kept.renamed.insert((location, list), name);
        name
    }

    /// Returns what rules, in the order in which they prevail, call a frame, if that is not its own name.
    fn renamed_to<const W: usize>(
        &mut self,
        rules: Vec<(u32, &Bits<W>)>,
        at: usize,
        locations: &[u32],
    ) -> Option<u32> {
        let own = self.interner.shown(locations[at]);
        let mut name = own.to_owned();
        for (rule, site) in rules {
            let rule = &self.program.rules[rule as usize];
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
    pub(crate) fn of(&self, part: &Part, at: Option<usize>) -> Option<u32> {
        let at = at?;
        let frame = match part {
            Part::Caller(_) => (0..at).rev().find(|&frame| !self.site.contains(frame))?,
            Part::Callee(_) => (at + 1..self.locations.len()).find(|&frame| !self.site.contains(frame))?,
            _ => at,
        };
        Some(self.locations[frame])
    }

    /// Returns the location that all places of a template are filled from, if it is one and the context is not asked.
    pub(crate) fn source(&self, template: &Template, at: Option<usize>) -> Option<u32> {
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

pub(crate) fn asks_neighbours(template: &Template) -> bool {
    let near = |part: &Part| matches!(part, Part::Caller(_) | Part::Callee(_));
    template.parts.iter().any(near)
}
