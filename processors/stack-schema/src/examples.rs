//! Examples that stand beside the rules: are they true?

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use crate::context::Context;
use crate::diagnostic::Diagnostic;
use crate::error::StackSchemaError;
use crate::folded;
use crate::library::Library;
use crate::matcher::{Matcher, OutcomeId, StackId};
use crate::model::{Example, Schema, Subject};
use crate::outcome::Lists;
use crate::program::Program;

/// What the examples of one schema gave.
#[derive(Debug, Clone, Default)]
pub struct TestReport {
    /// Examples that are true.
    pub passed: usize,
    /// Those that are not, with what was expected (`-`) and what came (`+`).
    pub failures: Vec<Diagnostic>,
    /// Rules for which some example matches.
    pub shown: BTreeSet<Arc<str>>,
}

/// Runs the examples of a schema, with nothing enabled but that schema and what it includes.
///
/// # Errors
/// [`StackSchemaError`] where there is no such schema or it does not compile.
pub fn test(library: &Library, schema: &str) -> Result<TestReport, StackSchemaError> {
    let known = library
        .get(schema)
        .ok_or_else(|| StackSchemaError::Unknown(schema.to_owned()))?;
    let program = Arc::new(Program::compile(library, &[schema])?);
    let mut matcher = Matcher::new(program);
    let mut report = TestReport::default();
    let of_rules = known.rules.iter().flat_map(|rule| {
        rule.examples
            .iter()
            .map(move |example| (Some(&rule.name), example))
    });
    let of_schema = known.examples.iter().map(|example| (None, example));
    for (rule, example) in of_rules.chain(of_schema) {
        let (stack, outcome, matching) = run(&mut matcher, known, example);
        if let Some(rule) = rule
            && matching
                .iter()
                .any(|(schema, name)| *schema == known.name && name == rule)
        {
            report.shown.insert(Arc::clone(rule));
        }
        match compare(&matcher, example, stack, outcome) {
            Ok(()) => report.passed += 1,
            Err(difference) => report.failures.push(
                known
                    .source
                    .error(example.span, "this example is not true")
                    .with_help(difference),
            ),
        }
    }
    Ok(report)
}

/// Rules that match a stack: schema and name.
type Matching = Vec<(Arc<str>, Arc<str>)>;

fn run(matcher: &mut Matcher, schema: &Schema, example: &Example) -> (StackId, OutcomeId, Matching) {
    let given = |wanted: &Subject| {
        let found = example.context.iter().find(|(subject, _)| subject == wanted);
        found.map(|(_, value)| value.to_string())
    };
    // An example that names no service is one of a service that the schema covers.
    let covered = |wanted: &Subject| {
        let cover = schema.coverage.iter().find(|cover| cover.subject == *wanted)?;
        let likely = cover
            .patterns
            .iter()
            .map(|pattern| pattern.text().replace('*', ""))
            .map(|text| if text.is_empty() { "any".to_owned() } else { text });
        let fits = |text: &String| {
            cover.patterns.iter().any(|pattern| pattern.holds(text))
                && !cover.except.iter().any(|pattern| pattern.holds(text))
        };
        likely.into_iter().find(fits)
    };
    let value = |subject: Subject| given(&subject).or_else(|| covered(&subject)).unwrap_or_default();
    let (service, profiler) = (value(Subject::Service), value(Subject::Profiler));
    let (region, host) = (value(Subject::Region), value(Subject::Host));
    let (mut labels, mut annotations) = (Vec::new(), Vec::new());
    for (subject, value) in &example.context {
        match subject {
            Subject::Label(name) => labels.push((&**name, &**value)),
            Subject::Annotation(name) => annotations.push((&**name, &**value)),
            _ => {}
        }
    }
    let context = matcher.context(&Context {
        service: &service,
        profiler: &profiler,
        region: &region,
        host: &host,
        labels: &labels,
        annotations: &annotations,
    });
    let locations: Vec<_> = example
        .stack
        .iter()
        .map(|frame| matcher.location(&frame.location()))
        .collect();
    let stack = matcher.stack(&locations);
    let outcome = matcher.outcome(stack, context);
    (stack, outcome, matcher.matching(stack, context))
}

fn compare(matcher: &Matcher, example: &Example, stack: StackId, outcome: OutcomeId) -> Result<(), String> {
    let mut difference = String::new();
    let mut lists = Lists::default();
    let outcome = matcher.get(stack, outcome, &mut lists);
    if let Some(expected) = &example.gives {
        let expected: BTreeSet<&str> = expected.iter().map(|tag| &**tag).collect();
        let given: BTreeSet<&str> = outcome.tags.iter().map(|&tag| matcher.tag(tag)).collect();
        for tag in expected.difference(&given) {
            // Writing to a string cannot fail.
            let _ = write!(difference, "\n  - gives {tag}");
        }
        for tag in given.difference(&expected) {
            let _ = write!(difference, "\n  + gives {tag}");
        }
    }
    if let Some(expected) = &example.shows {
        let names: Vec<&str> = example
            .stack
            .iter()
            .map(|frame| frame.function.as_str())
            .collect();
        let mut pieces = Vec::new();
        for line in outcome.view(matcher.program(), matcher.made(), &names) {
            let mut piece = line.name.replace(';', "\\;");
            let tags = outcome
                .frame_tags
                .iter()
                .filter(|(frame, _)| *frame as usize == line.frame);
            let tags: Vec<&str> = tags.map(|&(_, tag)| matcher.tag(tag)).collect();
            if !tags.is_empty() {
                let _ = write!(piece, " {{{}}}", tags.join(", "));
            }
            pieces.push(piece);
        }
        let shown = pieces.join(";");
        if folded::pieces(expected) != folded::pieces(&shown) {
            let _ = write!(difference, "\n  - shows {expected}\n  + shows {shown}");
        }
    }
    if difference.is_empty() {
        Ok(())
    } else {
        Err(difference)
    }
}
