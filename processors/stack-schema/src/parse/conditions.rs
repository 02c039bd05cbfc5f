//! Conditions: on frames, on stacks, on the context.

use std::sync::Arc;

use super::grammar::{Pair, Rule};
use super::{Reader, span, unquoted};
use crate::diagnostic::Span;
use crate::limits::ALTERNATIVES_MAX;
use crate::model::{Field, Flag, FrameCond, NumberField, Relation, StackCond, Subject};
use crate::name::Language;
use crate::pattern::{Kind, Pattern};

/// Returns one condition for several that are joined.
fn joined<T>(mut list: Vec<T>, join: impl FnOnce(Vec<T>) -> T) -> Option<T> {
    match list.len() {
        0 | 1 => list.pop(),
        _ => Some(join(list)),
    }
}

impl Reader<'_> {
    /// Reads conditions on a frame, joined by `or`.
    pub(super) fn frames(&mut self, pair: Pair<'_>) -> FrameCond {
        let mut any = Vec::new();
        for and in pair
            .into_inner()
            .filter(|pair| pair.as_rule() == Rule::frames_and)
        {
            let mut all = Vec::new();
            for not in and.into_inner().filter(|pair| pair.as_rule() == Rule::frames_not) {
                all.push(self.frame(not));
            }
            any.extend(joined(all, FrameCond::And));
        }
        joined(any, FrameCond::Or).unwrap_or(FrameCond::Anything)
    }

    /// Reads one condition on a frame, with what is before it.
    fn frame(&mut self, pair: Pair<'_>) -> FrameCond {
        let mut negative = false;
        let mut condition = FrameCond::Anything;
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::k_not => negative = !negative,
                Rule::frames => condition = self.frames(pair),
                Rule::text_test => condition = self.text_test(pair),
                Rule::number_test => {
                    let (field, least, most) = self.number_test(pair);
                    condition = FrameCond::Number(field, least, most);
                }
                Rule::language => condition = self.language(pair),
                Rule::relation => condition = self.relation(pair),
                Rule::flag => condition = FrameCond::Flag(flag(pair.as_str())),
                Rule::named => condition = self.named(pair),
                _ => {}
            }
        }
        if negative {
            FrameCond::Not(Box::new(condition))
        } else {
            condition
        }
    }

    fn named(&mut self, pair: Pair<'_>) -> FrameCond {
        let name = pair.as_str();
        if let Some((known, depth)) = self.scope.get(name) {
            self.deepest = self.deepest.max(*depth);
            return FrameCond::Named(Arc::clone(known));
        }
        let near = self.scope.keys().find(|known| {
            known.eq_ignore_ascii_case(name) || known.replace('_', "-") == name.replace('_', "-")
        });
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("say `let {name} = …` above, or include the schema that does"),
        };
        self.wrong_with_help(span(&pair), format!("nothing is called `{name}`"), help);
        FrameCond::Anything
    }

    fn text_test(&mut self, pair: Pair<'_>) -> FrameCond {
        let mut field = Field::Function;
        let mut kind = Kind::Is;
        let mut patterns = Vec::new();
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::field => {
                    field = match pair.as_str() {
                        "type" => Field::Type,
                        "file" => Field::File,
                        "module" => Field::Module,
                        _ => Field::Function,
                    };
                }
                Rule::op => kind = op(pair.as_str()),
                Rule::strings => patterns = self.patterns(kind, pair),
                _ => {}
            }
        }
        let tests = patterns
            .into_iter()
            .map(|pattern| FrameCond::Text(field, pattern));
        joined(tests.collect(), FrameCond::Or).unwrap_or(FrameCond::Anything)
    }

    fn patterns(&mut self, kind: Kind, strings: Pair<'_>) -> Vec<Arc<Pattern>> {
        let at = span(&strings);
        let strings: Vec<Pair<'_>> = strings
            .into_inner()
            .filter(|pair| pair.as_rule() == Rule::string)
            .collect();
        if strings.len() > ALTERNATIVES_MAX {
            self.wrong(at, format!("this list has over {ALTERNATIVES_MAX} texts"));
            return Vec::new();
        }
        let mut patterns = Vec::new();
        for string in &strings {
            patterns.extend(self.pattern(kind, &unquoted(string), span(string)));
        }
        patterns
    }

    fn number_test(&mut self, pair: Pair<'_>) -> (NumberField, u32, u32) {
        let mut field = NumberField::Line;
        let mut form = Rule::n_is;
        let mut number = 0;
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::number_field if pair.as_str() == "depth" => field = NumberField::Depth,
                form_rule @ (Rule::n_least | Rule::n_most | Rule::n_is) => form = form_rule,
                Rule::integer => match pair.as_str().parse::<u32>() {
                    Ok(value) => number = value,
                    Err(_) => self.wrong(span(&pair), "this must be a number from 0 on"),
                },
                _ => {}
            }
        }
        match form {
            Rule::n_least => (field, number, u32::MAX),
            Rule::n_most => (field, 0, number),
            _ => (field, number, number),
        }
    }

    fn language(&mut self, pair: Pair<'_>) -> FrameCond {
        for name in pair.into_inner().filter(|pair| pair.as_rule() == Rule::name) {
            if let Some(language) = Language::from_name(name.as_str()) {
                return FrameCond::Language(language);
            }
            let known: Vec<&str> = Language::ALL.iter().map(|(name, _)| *name).collect();
            self.wrong_with_help(
                span(&name),
                format!("`{}` is no language that is told apart", name.as_str()),
                format!("use one of {}", known.join(", ")),
            );
        }
        FrameCond::Anything
    }

    fn relation(&mut self, pair: Pair<'_>) -> FrameCond {
        let mut relation = Relation::Under;
        let mut other = FrameCond::Anything;
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::near => {
                    relation = match pair.into_inner().next().map(|form| form.as_rule()) {
                        Some(Rule::near_by) => Relation::CalledBy,
                        Some(Rule::near_calling) => Relation::Calling,
                        Some(Rule::near_over) => Relation::Over,
                        _ => Relation::Under,
                    };
                }
                Rule::operand => other = self.frame(pair),
                _ => {}
            }
        }
        FrameCond::Near(relation, Arc::new(other))
    }

    /// Reads conditions on a stack, joined by `or`.
    pub(super) fn stack(&mut self, pair: Pair<'_>) -> StackCond {
        let mut any = Vec::new();
        for and in pair.into_inner().filter(|pair| pair.as_rule() == Rule::stack_and) {
            let mut all = Vec::new();
            for not in and.into_inner().filter(|pair| pair.as_rule() == Rule::stack_not) {
                all.push(self.stack_not(not));
            }
            any.extend(joined(all, StackCond::And));
        }
        joined(any, StackCond::Or).unwrap_or(StackCond::And(Vec::new()))
    }

    fn stack_not(&mut self, pair: Pair<'_>) -> StackCond {
        let mut negative = false;
        let mut condition = StackCond::And(Vec::new());
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::k_not => negative = !negative,
                Rule::stack => condition = self.stack(pair),
                Rule::some => condition = StackCond::Any(Arc::new(self.path(pair))),
                Rule::edge => condition = self.edge(pair),
                Rule::context_test => condition = self.context_test(pair),
                Rule::number_test => {
                    let at = span(&pair);
                    let (field, least, most) = self.number_test(pair);
                    if field == NumberField::Line {
                        self.wrong_with_help(at, "a stack has no line", "say `any (line …)`");
                    }
                    condition = StackCond::Depth(least, most);
                }
                _ => {}
            }
        }
        if negative {
            StackCond::Not(Box::new(condition))
        } else {
            condition
        }
    }

    /// Reads `any A calls B reaches C`: a frame that is A and calls one that is B and is over one that is C.
    fn path(&mut self, pair: Pair<'_>) -> FrameCond {
        let mut steps: Vec<(Relation, FrameCond)> = Vec::new();
        let mut relation = Relation::Calling;
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::p_calls => relation = Relation::Calling,
                Rule::p_reaches => relation = Relation::Over,
                Rule::operand => {
                    let frame = self.frame(pair);
                    steps.push((relation, frame));
                }
                _ => {}
            }
        }
        let mut path: Option<(Relation, FrameCond)> = None;
        for (relation, frame) in steps.into_iter().rev() {
            let frame = match path {
                Some((next, tail)) => FrameCond::And(vec![frame, FrameCond::Near(next, Arc::new(tail))]),
                None => frame,
            };
            path = Some((relation, frame));
        }
        path.map_or(FrameCond::Anything, |(_, frame)| frame)
    }

    fn edge(&mut self, pair: Pair<'_>) -> StackCond {
        let mut which = Rule::q_all;
        let mut frame = FrameCond::Anything;
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::operand => frame = self.frame(pair),
                form => which = form,
            }
        }
        let frame = Arc::new(frame);
        match which {
            Rule::q_leaf => StackCond::Leaf(frame),
            Rule::q_root => StackCond::Root(frame),
            _ => StackCond::All(frame),
        }
    }

    fn context_test(&mut self, pair: Pair<'_>) -> StackCond {
        let mut subject = Subject::Service;
        let mut kind = Kind::Is;
        let mut patterns = Vec::new();
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::subject => subject = self.subject(pair),
                Rule::op => kind = op(pair.as_str()),
                Rule::strings => patterns = self.patterns(kind, pair),
                _ => {}
            }
        }
        let tests = patterns
            .into_iter()
            .map(|pattern| StackCond::Context(subject.clone(), pattern));
        joined(tests.collect(), StackCond::Or).unwrap_or(StackCond::And(Vec::new()))
    }

    /// Reads a value of the context that is asked for or given.
    pub(super) fn subject(&mut self, pair: Pair<'_>) -> Subject {
        let at = span(&pair);
        let mut of = Rule::s_service;
        let mut name = String::new();
        for pair in pair.into_inner() {
            match pair.as_rule() {
                Rule::name => pair.as_str().clone_into(&mut name),
                Rule::string => name = unquoted(&pair),
                form => of = form,
            }
        }
        self.named_subject(of, &name, at)
    }

    fn named_subject(&mut self, of: Rule, name: &str, at: Span) -> Subject {
        if matches!(of, Rule::s_label | Rule::s_annotation) && name.is_empty() {
            self.wrong(at, "this has no name");
        }
        match of {
            Rule::s_profiler => Subject::Profiler,
            Rule::s_region => Subject::Region,
            Rule::s_host => Subject::Host,
            Rule::s_label => Subject::Label(name.into()),
            Rule::s_annotation => Subject::Annotation(name.into()),
            _ => Subject::Service,
        }
    }
}

fn op(text: &str) -> Kind {
    match text {
        "like" => Kind::Like,
        "starts" => Kind::Starts,
        "matches" => Kind::Matches,
        _ => Kind::Is,
    }
}

fn flag(text: &str) -> Flag {
    match text {
        "inlined" => Flag::Inlined,
        "kernel" => Flag::Kernel,
        "user" => Flag::User,
        "leaf" => Flag::Leaf,
        "root" => Flag::Root,
        _ => Flag::Unnamed,
    }
}
