//! Rules: what they do, and their examples.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::grammar::{Pair, Rule};
use super::{Reader, span, unquoted};
use crate::diagnostic::Span;
use crate::folded;
use crate::model::{self, Action, Edit, Example, FrameCond, Subject};
use crate::pattern;
use crate::rename::Step;
use crate::template::{FrameText, Part, Template};

/// Priorities go from minus this to this: enough for every team to stand above and below every other.
const PRIORITY_MAX: i32 = 1_000;
/// Most actions of a rule: more are several rules.
const ACTIONS_MAX: usize = 64;

impl Reader<'_> {
    pub(super) fn rule(&mut self, pair: Pair<'_>) -> model::Rule {
        let mut rule = model::Rule {
            name: "".into(),
            span: Span::default(),
            priority: 0,
            on: None,
            when: None,
            actions: Vec::new(),
            examples: Vec::new(),
        };
        // Places of what needs frames, or what regular expressions captured: proved when the whole rule is known.
        let mut templates: Vec<(Span, Template, bool)> = Vec::new();
        let mut on_frames: Option<Span> = None;
        for pair in pair.into_inner() {
            let at = span(&pair);
            match pair.as_rule() {
                Rule::name => (rule.name, rule.span) = (pair.as_str().into(), at),
                Rule::integer => rule.priority = self.priority(&pair),
                Rule::on => {
                    if rule.on.is_some() {
                        self.wrong_with_help(
                            at,
                            "this rule has its `on` already",
                            "join both with `and` or `or`",
                        );
                    }
                    let frames = pair.into_inner().find(|pair| pair.as_rule() == Rule::frames);
                    rule.on = frames.map(|frames| Arc::new(self.frames(frames)));
                }
                Rule::when => {
                    if rule.when.is_some() {
                        self.wrong_with_help(
                            at,
                            "this rule has its `when` already",
                            "join both with `and` or `or`",
                        );
                    }
                    let stack = pair.into_inner().find(|pair| pair.as_rule() == Rule::stack);
                    rule.when = stack.map(|stack| self.stack(stack));
                }
                Rule::tag => {
                    let Some((on_stack, template)) = self.tag(pair) else {
                        continue;
                    };
                    if !on_stack {
                        on_frames.get_or_insert(at);
                    }
                    templates.push((at, template.clone(), false));
                    rule.actions.push(if on_stack {
                        Action::TagStack(template)
                    } else {
                        Action::TagFrame(template)
                    });
                }
                Rule::rename => {
                    on_frames.get_or_insert(at);
                    if let Some(step) = self.rename(pair) {
                        if let Step::To(template) = &step {
                            templates.push((at, template.clone(), true));
                        }
                        rule.actions.push(Action::Rename(step));
                    }
                }
                Rule::example => rule.examples.extend(self.example(pair)),
                _ => {
                    if let Some(edit) = edit(pair) {
                        on_frames.get_or_insert(at);
                        rule.actions.push(Action::Edit(edit));
                    }
                }
            }
        }
        self.prove(&rule, on_frames, &templates);
        rule
    }

    fn prove(&mut self, rule: &model::Rule, on_frames: Option<Span>, templates: &[(Span, Template, bool)]) {
        if rule.actions.is_empty() {
            self.wrong_with_help(
                rule.span,
                format!("rule `{}` does nothing", rule.name),
                "say `tag stack …`, `tag frame …`, `hide`, `fold …`, `cut …` or `rename …`",
            );
        }
        if rule.actions.len() > ACTIONS_MAX {
            self.wrong(
                rule.span,
                format!("rule `{}` does over {ACTIONS_MAX} things", rule.name),
            );
        }
        if rule.on.is_none() && rule.when.is_none() && on_frames.is_none() {
            self.wrong_with_help(
                rule.span,
                format!("rule `{}` says neither `on` which frames nor `when`", rule.name),
                "for all frames say `on anything`",
            );
        }
        if let (Some(at), None) = (on_frames, &rule.on) {
            self.wrong_with_help(
                at,
                "this is about frames, but the rule names none",
                "say `on …` first",
            );
        }
        let groups = rule.on.as_deref().map_or_else(Vec::new, captures);
        for (at, template, names_frame) in templates {
            for part in &template.parts {
                match part {
                    Part::Group(name) => {
                        let known = groups.iter().any(|(_, pattern)| has_group(pattern, name));
                        if !known {
                            self.wrong_with_help(
                                *at,
                                format!("nothing captures `{{{name}}}`"),
                                "name a group of a `matches` in this rule's `on`: (?<name>…)",
                            );
                        }
                    }
                    Part::Own(_) | Part::Caller(_) | Part::Callee(_) if rule.on.is_none() => {
                        self.wrong_with_help(
                            *at,
                            "this takes its value from a frame, but the rule names none",
                            "say `on …` first",
                        );
                    }
                    Part::Context(_) if *names_frame => {
                        self.wrong(*at, "a frame's name cannot depend on the context: a tag can");
                    }
                    _ => {}
                }
            }
        }
    }

    fn priority(&mut self, number: &Pair<'_>) -> i32 {
        match number.as_str().parse::<i32>() {
            Ok(value) if value.abs() <= PRIORITY_MAX => value,
            _ => {
                self.wrong(
                    span(number),
                    format!("a priority is a number from -{PRIORITY_MAX} to {PRIORITY_MAX}"),
                );
                0
            }
        }
    }

    fn tag(&mut self, pair: Pair<'_>) -> Option<(bool, Template)> {
        let mut on_stack = true;
        let mut template = None;
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::on_frame => on_stack = false,
                Rule::tag_text => {
                    let at = span(&pair);
                    let text = tag_text(pair);
                    template = self.template(&text, at);
                    if let Some(Err(reason)) = template.as_ref().map(prove_tag) {
                        self.wrong_with_help(
                            at,
                            reason,
                            "a tag is `key=value`, or a path like `io/disk/read`",
                        );
                    }
                }
                _ => {}
            }
        }
        template.map(|template| (on_stack, template))
    }

    fn template(&mut self, text: &str, at: Span) -> Option<Template> {
        match Template::new(text) {
            Ok(template) => Some(template),
            Err(reason) => {
                self.wrong_with_help(
                    at,
                    reason,
                    "in braces stands a group's name, or: function, type, module, file, caller …, callee …, label …, \
                     annotation …, service, profiler, region, host",
                );
                None
            }
        }
    }

    fn rename(&mut self, pair: Pair<'_>) -> Option<Step> {
        let form = pair.into_inner().find(|pair| pair.as_rule() != Rule::k_rename)?;
        let kind = form.as_rule();
        let strings: Vec<(String, Span)> = form
            .into_inner()
            .filter(|pair| pair.as_rule() == Rule::string)
            .map(|string| (unquoted(&string), span(&string)))
            .collect();
        match (kind, strings.as_slice()) {
            (Rule::rename_to, [(text, at)]) => self.template(text, *at).map(Step::To),
            (Rule::rename_replace, [(text, at), (with, _)]) => {
                if text.len() > crate::limits::PATTERN_BYTES_MAX
                    || with.len() > crate::limits::PATTERN_BYTES_MAX
                {
                    self.wrong(*at, "this pattern or what replaces it is too long");
                    return None;
                }
                match pattern::regex(text) {
                    Ok((regex, is_large)) => {
                        self.count_large(is_large, *at);
                        Some(Step::Replace(Box::new(regex), with.as_str().into()))
                    }
                    Err(reason) => {
                        self.wrong(*at, reason);
                        None
                    }
                }
            }
            (Rule::rename_templates, _) => Some(Step::ShortenTemplates),
            (Rule::rename_suffixes, _) => Some(Step::DropSuffixes),
            _ => None,
        }
    }

    pub(super) fn example(&mut self, pair: Pair<'_>) -> Option<Example> {
        let at = span(&pair);
        let mut stack = String::new();
        let mut context: Vec<(Subject, Arc<str>)> = Vec::new();
        let mut gives: Option<Vec<Arc<str>>> = None;
        let mut shows = None;
        let mut first: Option<Span> = None;
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::string => {
                    first.get_or_insert(span(&pair));
                    stack.push_str(&unquoted(&pair));
                }
                Rule::setting => {
                    let mut subject = Subject::Service;
                    for pair in pair.into_inner() {
                        match pair.as_rule() {
                            Rule::subject => subject = self.subject(pair),
                            Rule::string => context.push((subject.clone(), unquoted(&pair).into())),
                            _ => {}
                        }
                    }
                }
                Rule::gives => {
                    let tags = pair.into_inner().filter(|pair| pair.as_rule() == Rule::tag_text);
                    gives = Some(tags.map(|tag| tag_text(tag).into()).collect());
                }
                Rule::shows => {
                    let strings = pair.into_inner().filter(|pair| pair.as_rule() == Rule::string);
                    shows = Some(strings.map(|string| unquoted(&string)).collect::<String>());
                }
                _ => {}
            }
        }
        let place = first.unwrap_or(at);
        if gives.is_none() && shows.is_none() {
            self.wrong_with_help(
                place,
                "this example expects nothing",
                "say which tags the stack `gives` (`gives nothing` for none), what it `shows`, or both",
            );
        }
        match folded::parse(&stack) {
            Ok(stack) => Some(Example {
                stack,
                context,
                gives,
                shows,
                span: place,
            }),
            Err(reason) => {
                self.wrong(place, reason);
                None
            }
        }
    }
}

fn edit(pair: Pair<'_>) -> Option<Edit> {
    let kind = pair.as_rule();
    let form = pair.into_inner().last().map(|form| form.as_rule());
    match (kind, form) {
        (Rule::hide, _) => Some(Edit::Hide),
        (Rule::show, _) => Some(Edit::Show),
        (Rule::fold, Some(Rule::f_run)) => Some(Edit::FoldRun),
        (Rule::fold, _) => Some(Edit::FoldRecursion),
        (Rule::cut, Some(Rule::c_callees)) => Some(Edit::CutCallees),
        (Rule::cut, _) => Some(Edit::CutCallers),
        _ => None,
    }
}

fn tag_text(pair: Pair<'_>) -> String {
    match pair.clone().into_inner().next() {
        Some(string) if string.as_rule() == Rule::string => unquoted(&string),
        _ => pair.as_str().to_owned(),
    }
}

fn prove_tag(template: &Template) -> Result<(), String> {
    let text = &*template.text;
    let first = match template.parts.first() {
        Some(Part::Text(first)) => &**first,
        Some(_) if text.contains('=') => return Err("the key of a tag must be spelled out".into()),
        Some(_) => return Err("a tag must begin with a text that is spelled out".into()),
        None => return Err("a tag cannot be empty".into()),
    };
    let path = text.split_once('=').map_or(text, |(_, value)| value);
    if let Some((key, _)) = text.split_once('=')
        && (key.is_empty() || !first.starts_with(&format!("{key}=")))
    {
        return Err("the key of a tag must be spelled out".into());
    }
    if path.is_empty() || path.split('/').any(str::is_empty) {
        return Err("a part of this tag is empty".into());
    }
    if text.chars().any(char::is_control) {
        return Err("a tag cannot hold control characters".into());
    }
    Ok(())
}

/// Returns the regular expressions of a condition that capture from the frame itself, in the order of the text.
pub(crate) fn captures(condition: &FrameCond) -> Vec<(model::Field, Arc<pattern::Pattern>)> {
    let mut found = Vec::new();
    collect(condition, &mut found, &mut FxHashSet::default());
    found
}

/// `seen` holds the definitions that were looked into: without it, definitions that each name another twice would take
/// time exponential in their number.
fn collect(
    condition: &FrameCond,
    found: &mut Vec<(model::Field, Arc<pattern::Pattern>)>,
    seen: &mut FxHashSet<*const FrameCond>,
) {
    match condition {
        FrameCond::Text(field, pattern) => {
            let groups = pattern.regex().map_or(1, regex::bytes::Regex::captures_len);
            let known = found
                .iter()
                .any(|(other, seen)| other == field && seen == pattern);
            if groups > 1 && !known {
                found.push((*field, Arc::clone(pattern)));
            }
        }
        FrameCond::And(list) | FrameCond::Or(list) => list.iter().for_each(|one| collect(one, found, seen)),
        FrameCond::Named(inner) if seen.insert(Arc::as_ptr(inner)) => collect(inner, found, seen),
        _ => {}
    }
}

/// Returns whether an expression has a group of this name or number.
pub(crate) fn has_group(pattern: &pattern::Pattern, name: &str) -> bool {
    let Some(regex) = pattern.regex() else {
        return false;
    };
    match name.parse::<usize>() {
        Ok(number) => (1..regex.captures_len()).contains(&number),
        Err(_) => regex.capture_names().flatten().any(|known| known == name),
    }
}

/// Returns the field of a frame that a place names.
pub(crate) fn field_of(text: FrameText) -> model::Field {
    match text {
        FrameText::Function => model::Field::Function,
        FrameText::Type => model::Field::Type,
        FrameText::Module => model::Field::Module,
        FrameText::File => model::Field::File,
    }
}
