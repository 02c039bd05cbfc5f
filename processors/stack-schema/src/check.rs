//! What a schema says that cannot have been meant: rules that nothing shows, that never match, that never prevail.

use std::sync::Arc;

use crate::compile::{self, Prepared};
use crate::diagnostic::Diagnostic;
use crate::error::StackSchemaError;
use crate::examples;
use crate::library::Library;
use crate::model::{Edit, Takes};
use crate::nodes::Builder;
use crate::program::{CompiledRule, StackNode, TagKind};

/// Steps that comparing two conditions may take: beyond them nothing is claimed.
const STEPS_MAX: u32 = 10_000;

/// Looks a schema over. Problems stand in the order of the text; a schema with an error among them is to be refused.
///
/// A rule without an example in which it matches is an error, and a warning where `untested` rules are allowed.
///
/// # Errors
/// [`StackSchemaError`] where there is no such schema or it does not compile.
pub fn check(library: &Library, schema: &str, untested: bool) -> Result<Vec<Diagnostic>, StackSchemaError> {
    let report = examples::test(library, schema)?;
    let prepared = compile::prepare(library, &[schema])?;
    let Some(known) = library.get(schema) else {
        return Err(StackSchemaError::Unknown(schema.to_owned()));
    };
    let mut found: Vec<(u32, Diagnostic)> = Vec::new();
    let is_own = |rule: &&CompiledRule| {
        *prepared.schemas[rule.schema as usize].name == *schema
            && known.rules.iter().any(|one| one.name == rule.name)
    };
    for rule in prepared.rules.iter().filter(is_own) {
        let span = rule.span;
        if rule.when == StackNode::False {
            let message = format!("rule `{}` can never match", rule.name);
            found.push((span.start, known.source.warning(span, message)));
            continue;
        }
        if let Some(other) = shadowed_by(&prepared, rule) {
            let whose = &prepared.schemas[other.schema as usize].name;
            let message = format!("rule `{}` never prevails", rule.name);
            let help = format!(
                "wherever it matches, `{}` of `{whose}` does too and prevails: give this one a higher priority",
                other.name
            );
            found.push((span.start, known.source.warning(span, message).with_help(help)));
        }
        if !report.shown.contains(&rule.name) {
            let message = format!("rule `{}` has no example in which it matches", rule.name);
            let problem = if untested {
                known.source.warning(span, message)
            } else {
                known.source.error(span, message)
            };
            let help = "add one: example \"main;f;g\" gives …";
            found.push((span.start, problem.with_help(help)));
        }
    }
    found.sort_by_key(|(start, _)| *start);
    let problems = found.into_iter().map(|(_, problem)| problem);
    Ok(problems.chain(report.failures).collect())
}

/// Returns the rule that prevails wherever this one matches, if there is one.
fn shadowed_by<'a>(prepared: &'a Prepared, rule: &CompiledRule) -> Option<&'a CompiledRule> {
    let edits_only = rule.stack_tags.is_empty() && rule.frame_tags.is_empty() && rule.renames.is_empty();
    let one_key = || {
        let key = rule.stack_tags.first()?.key?;
        let alone = rule.frame_tags.is_empty() && rule.edits.is_empty() && rule.renames.is_empty();
        let same = rule.stack_tags.iter().all(|tag| tag.key == Some(key));
        (alone && same && prepared.keys[key as usize].1 != Takes::All).then_some(key)
    };
    let key = one_key();
    if key.is_none() && !(edits_only && rule.edits.iter().all(|edit| sets_alone(*edit))) {
        return None;
    }
    let before = prepared.rules.iter().take_while(|other| !is_same(other, rule));
    before.into_iter().find(|other| {
        let prevails = match key {
            Some(key) => {
                let by_place = prepared.keys[key as usize].1 != Takes::One;
                // Where the place decides among equals, only a higher priority is sure to prevail; and a tag that is made
                // of the match may have nothing to be made of.
                (!by_place || other.priority > rule.priority)
                    && other
                        .stack_tags
                        .iter()
                        .any(|tag| tag.key == Some(key) && matches!(tag.what, TagKind::Fixed(_)))
            }
            None => other.edits.iter().any(|edit| sets_alone(*edit)),
        };
        prevails && holds_wherever(&prepared.builder, rule, other)
    })
}

/// Returns whether an edit is of the rule's frames and no others.
fn sets_alone(edit: Edit) -> bool {
    matches!(edit, Edit::Hide | Edit::Show)
}

fn is_same(a: &CompiledRule, b: &CompiledRule) -> bool {
    a.schema == b.schema && Arc::ptr_eq(&a.name, &b.name)
}

/// Returns whether `wide` matches wherever `narrow` does, as far as that shows.
fn holds_wherever(builder: &Builder, narrow: &CompiledRule, wide: &CompiledRule) -> bool {
    let (Some(narrow_on), Some(wide_on)) = (narrow.on, wide.on) else {
        return false;
    };
    let mut steps = STEPS_MAX;
    let when = wide.when == StackNode::True || wide.when == narrow.when;
    when && builder.implies(narrow_on, wide_on, &mut steps)
}
