//! What schemas would do to samples, before anyone enables them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::context::Context;
use crate::location::Location;
use crate::matcher::Matcher;
use crate::outcome::{Lists, Mark};
use crate::program::Program;

/// Counts what a program makes of samples.
#[derive(Debug)]
pub struct Trial {
    matcher: Matcher,
    lists: Lists,
    total: f64,
    untagged: f64,
    hidden: f64,
    frames: f64,
    left_out: f64,
    renamed: f64,
    tags: BTreeMap<String, f64>,
    frame_tags: BTreeMap<String, f64>,
}

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialReport {
    /// Weight of all samples.
    pub total: f64,
    /// Share of those without any tag.
    pub untagged: f64,
    /// Share of those of which nothing is left to be seen but by which schema.
    pub hidden: f64,
    /// Share of frames that are left out, each by the weight of its sample.
    pub frames_left_out: f64,
    /// Share of frames that are shown by another name.
    pub frames_renamed: f64,
    /// Tags of stacks with their shares of the weight, largest first.
    pub tags: Vec<(String, f64)>,
    /// Tags of frames with the shares of the weight whose stacks hold such a frame, largest first.
    pub frame_tags: Vec<(String, f64)>,
}

impl Trial {
    /// Returns a trial of a program.
    pub fn new(program: Arc<Program>) -> Self {
        Self {
            matcher: Matcher::new(program),
            lists: Lists::default(),
            total: 0.0,
            untagged: 0.0,
            hidden: 0.0,
            frames: 0.0,
            left_out: 0.0,
            renamed: 0.0,
            tags: BTreeMap::new(),
            frame_tags: BTreeMap::new(),
        }
    }

    /// Adds samples of one stack, root first, with their weight.
    pub fn add(&mut self, stack: &[Location<'_>], context: &Context<'_>, weight: f64) {
        self.matcher.begin(0);
        let locations: Vec<_> = stack
            .iter()
            .map(|location| self.matcher.location(location))
            .collect();
        let id = self.matcher.stack(&locations);
        let context = self.matcher.context(context);
        let outcome = self.matcher.outcome(id, context);
        let outcome = self.matcher.get(id, outcome, &mut self.lists);
        self.total += weight;
        self.frames += weight * stack.len() as f64;
        if outcome.tags.is_empty() {
            self.untagged += weight;
        }
        for &tag in outcome.tags {
            *self.tags.entry(self.matcher.tag(tag).to_owned()).or_default() += weight;
        }
        let mut of_frames: Vec<u32> = outcome.frame_tags.iter().map(|(_, tag)| *tag).collect();
        of_frames.sort_unstable();
        of_frames.dedup();
        for tag in of_frames {
            *self
                .frame_tags
                .entry(self.matcher.tag(tag).to_owned())
                .or_default() += weight;
        }
        let is_out = |mark: &&(u32, Mark)| mark.1.left_out_by().is_some();
        let out = outcome.marks.iter().filter(is_out).count();
        self.left_out += weight * out as f64;
        self.renamed += weight * (outcome.marks.len() - out) as f64;
        if out == stack.len() && out > 0 {
            self.hidden += weight;
        }
    }

    /// Returns what came out so far.
    pub fn report(&self) -> TrialReport {
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let shares = |map: &BTreeMap<String, f64>| {
            let mut list: Vec<(String, f64)> = map
                .iter()
                .map(|(tag, weight)| (tag.clone(), share(*weight, self.total)))
                .collect();
            list.sort_by(|a, b| b.1.total_cmp(&a.1));
            list
        };
        TrialReport {
            total: self.total,
            untagged: share(self.untagged, self.total),
            hidden: share(self.hidden, self.total),
            frames_left_out: share(self.left_out, self.frames),
            frames_renamed: share(self.renamed, self.frames),
            tags: shares(&self.tags),
            frame_tags: shares(&self.frame_tags),
        }
    }
}
