//! Microsoft's stack tags → a stack schema that says the same.
//!
//! A file of stack tags is XML: `Tag` elements nest and their names join into a path; `Entrypoint` elements name a module
//! and a method, with `*` for any text; the tag of the frame nearest to the leaf is the stack's, unless another has a higher
//! priority; a `HintTag` takes its name from the module (or module and method) of whoever calls its entry points, or is
//! called by them.

use std::collections::BTreeSet;
use std::fmt::Write;

use roxmltree::{Document, Node, ParsingOptions};

use crate::diagnostic::Source;
use crate::error::StackSchemaError;
use crate::examples;
use crate::library::Library;
use crate::limits::{FILE_BYTES_MAX, PATTERN_BYTES_MAX};

/// Most elements of a file: two for each rule that a schema may have, and as many entry points.
const ELEMENTS_MAX: u32 = 100_000;
/// Deepest nesting of tags.
const NESTING_MAX: usize = 32;
/// The key of all tags.
const KEY: &str = "stacktag";

/// What came of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The schema's text.
    pub text: String,
    /// What could not be carried over as it is, with its place in the original.
    pub notes: Vec<Note>,
}

/// Something that could not be carried over as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Line in the original, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// What, and what became of it.
    pub message: String,
}

/// One tag on its way.
struct Tag {
    path: String,
    name: String,
    priority: i32,
    hint: Option<Hint>,
    /// Modules and methods, with stars.
    entries: Vec<(String, String)>,
}

struct Hint {
    callee: bool,
    only_module: bool,
}

struct Importer<'a> {
    document: &'a Document<'a>,
    notes: Vec<Note>,
    tags: Vec<Tag>,
}

/// Returns a schema called `name` that says what a file of stack tags says.
///
/// # Errors
/// [`StackSchemaError::NotStackTags`] where it is no XML, or too big.
pub fn import(name: &str, source: &Source) -> Result<Imported, StackSchemaError> {
    let wrong = |line: u32, column: u32, reason: String| StackSchemaError::NotStackTags {
        file: source.name.to_string(),
        line,
        column,
        reason,
    };
    if source.text.len() > FILE_BYTES_MAX {
        return Err(wrong(1, 1, format!("it is over {FILE_BYTES_MAX} bytes long")));
    }
    let options = ParsingOptions {
        allow_dtd: false,
        nodes_limit: ELEMENTS_MAX,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(&source.text, options).map_err(|error| {
        let place = error.pos();
        wrong(place.row, place.col, error.to_string())
    })?;
    let mut importer = Importer {
        document: &document,
        notes: Vec::new(),
        tags: Vec::new(),
    };
    importer.element(document.root_element(), &mut Vec::new(), 0);
    let Importer { notes, tags, .. } = importer;
    let mut text = format!(
        "schema {}\nabout \"Made of {}.\"\n\nkey {KEY} takes nearest leaf\n",
        identifier(name),
        quoted(&source.name)
    );
    for tag in &tags {
        tag.write(&mut text);
    }
    Ok(Imported {
        text: without_false_examples(text, name),
        notes,
    })
}

impl Importer<'_> {
    fn note(&mut self, node: Node<'_, '_>, message: String) {
        let place = self.document.text_pos_at(node.range().start);
        self.notes.push(Note {
            line: place.row,
            column: place.col,
            message,
        });
    }

    fn element(&mut self, node: Node<'_, '_>, path: &mut Vec<String>, priority: i32) {
        if path.len() > NESTING_MAX {
            self.note(node, format!("tags nest over {NESTING_MAX} deep: left out"));
            return;
        }
        let kind = node.tag_name().name();
        let hint = kind == "HintTag";
        if !hint && kind != "Tag" {
            self.note(node, format!("`{kind}` is no element of stack tags: left out"));
            return;
        }
        let known = ["Name", "Priority", "HintOperator", "OnlyShowModule"];
        for attribute in node.attributes().filter(|one| !known.contains(&one.name())) {
            self.note(
                node,
                format!("`{}` has no meaning here: left out", attribute.name()),
            );
        }
        let priority = self.priority(node, priority);
        let given = node.attribute("Name").unwrap_or("").trim();
        let depth = path.len();
        path.extend(
            given
                .split('\\')
                .filter(|part| !part.is_empty())
                .map(|part| self.part(node, part)),
        );
        let mut tag = Tag {
            path: path.join("/"),
            name: format!("t{:04}-{}", self.tags.len() + 1, identifier(&path.join("."))),
            priority,
            hint: hint.then(|| Hint {
                callee: node.attribute("HintOperator") == Some("Callee"),
                only_module: !node
                    .attribute("OnlyShowModule")
                    .is_some_and(|only| only.eq_ignore_ascii_case("false")),
            }),
            entries: Vec::new(),
        };
        if hint && !matches!(node.attribute("HintOperator"), Some("Callee" | "Caller")) {
            self.note(
                node,
                "`HintOperator` is neither Caller nor Callee: taken as Caller".into(),
            );
        }
        for child in node.children().filter(Node::is_element) {
            if child.tag_name().name() == "Entrypoint" {
                let entry = self.entry(child);
                tag.entries.extend(entry);
            }
        }
        if tag.path.is_empty() && !tag.entries.is_empty() {
            self.note(node, "entry points of a tag without a name: left out".into());
        } else if !tag.entries.is_empty() {
            self.tags.push(tag);
        }
        for child in node.children().filter(Node::is_element) {
            if child.tag_name().name() != "Entrypoint" {
                self.element(child, path, priority);
            }
        }
        path.truncate(depth);
    }

    fn priority(&mut self, node: Node<'_, '_>, outer: i32) -> i32 {
        let Some(given) = node.attribute("Priority") else {
            return outer;
        };
        match given.trim().parse::<i32>() {
            Ok(priority) if priority.abs() <= 1_000 => priority,
            Ok(priority) => {
                let bounded = priority.clamp(-1_000, 1_000);
                self.note(
                    node,
                    format!("priority {priority} is out of range: it became {bounded}"),
                );
                bounded
            }
            Err(_) => {
                self.note(
                    node,
                    format!("priority `{given}` is no number: it became {outer}"),
                );
                outer
            }
        }
    }

    /// Returns a name as it may stand in a tag's path.
    fn part(&mut self, node: Node<'_, '_>, name: &str) -> String {
        let clean: String = name
            .trim()
            .chars()
            .map(|c| match c {
                '/' => '-',
                '{' => '(',
                '}' => ')',
                '"' => '\'',
                c if c.is_control() => ' ',
                c => c,
            })
            .take(PATTERN_BYTES_MAX / 32)
            .collect();
        if clean != name.trim() {
            self.note(
                node,
                format!("the name `{name}` cannot be a tag: it became `{clean}`"),
            );
        }
        clean
    }

    fn entry(&mut self, node: Node<'_, '_>) -> Option<(String, String)> {
        let value = |name: &str| node.attribute(name).unwrap_or("*").trim().to_owned();
        let (module, method) = (value("Module"), value("Method"));
        for attribute in node
            .attributes()
            .filter(|one| !["Module", "Method"].contains(&one.name()))
        {
            self.note(
                node,
                format!("`{}` has no meaning here: left out", attribute.name()),
            );
        }
        for text in [&module, &method] {
            let fits = !text.contains("\\\"") && !text.ends_with('\\') && !text.chars().any(char::is_control);
            if !fits || text.is_empty() || text.len() > PATTERN_BYTES_MAX / 2 {
                self.note(
                    node,
                    format!("`{text}` cannot be a pattern: the entry point is left out"),
                );
                return None;
            }
        }
        Some((module, method))
    }
}

impl Tag {
    /// Writes the rule, or the two that a hint takes.
    fn write(&self, text: &mut String) {
        let priority = match self.priority {
            0 => String::new(),
            priority => format!(" priority {priority}"),
        };
        let tag = format!("{KEY}={}", quoted(&self.path));
        let on = self.condition();
        let example = self.example();
        // Writing to a string cannot fail.
        let _ = match &self.hint {
            None => write!(
                text,
                "\nrule {}{priority} {{\n    on {on}\n    tag stack \"{tag}\"\n    tag frame \"{tag}\"\n    {example}\n}}\n",
                self.name
            ),
            Some(hint) => {
                let (side, near) = match hint.callee {
                    true => ("callee", "called by"),
                    false => ("caller", "calling"),
                };
                let (theirs, own) = match hint.only_module {
                    true => (format!("{{{side} module}}"), "{module}".to_owned()),
                    false => (
                        format!("{{{side} module}}!{{{side} function}}"),
                        "{module}!{function}".to_owned(),
                    ),
                };
                write!(
                    text,
                    "\n# Named by the {side}; the entry point's own tag where there is none.\n\
                     rule {name}{priority} {{\n    on {on}\n    tag stack \"{tag}/{theirs}\"\n    tag stack \"{tag}\"\n    \
                     tag frame \"{tag}\"\n    {example}\n}}\n\n\
                     # The {side} carries the tag.\n\
                     rule {name}-{side}{priority} {{\n    on {near} ({on}) and not ({on})\n    tag frame \"{tag}/{own}\"\n    \
                     {neighbour}\n}}\n",
                    name = self.name,
                    neighbour = self.neighbour(hint),
                )
            }
        };
    }

    fn condition(&self) -> String {
        let modules: BTreeSet<&str> = self.entries.iter().map(|(module, _)| module.as_str()).collect();
        // One condition for each module, with all of its methods.
        let parts = modules.into_iter().map(|module| {
            let methods: BTreeSet<&str> = self
                .entries
                .iter()
                .filter(|(other, _)| other == module)
                .map(|(_, method)| method.as_str())
                .collect();
            let mut tests = Vec::new();
            if module != "*" {
                tests.push(format!("module {}", pattern(&[module.to_owned()])));
            }
            if !methods.contains("*") {
                let spelled = methods.into_iter().flat_map(|method| {
                    // Their methods have no parameters; our C++ functions do.
                    let with_parameters = format!("{method}(*");
                    let open = method.ends_with('*') || method.contains('(');
                    std::iter::once(method.to_owned()).chain((!open).then_some(with_parameters))
                });
                tests.push(format!("function {}", pattern(&spelled.collect::<Vec<_>>())));
            }
            match tests.len() {
                0 => "anything".to_owned(),
                _ => tests.join(" and "),
            }
        });
        parts.collect::<Vec<_>>().join("\n       or ")
    }

    /// Returns the first entry point as a frame of an example; nothing where its name means something in examples.
    fn entry_frame(&self) -> Option<String> {
        let (module, method) = self
            .entries
            .first()
            .map_or(("", ""), |(module, method)| (module, method));
        let spelled = |text: &str| match text.replace('*', "") {
            text if text.trim().is_empty() => "any".to_owned(),
            text => quoted(&text),
        };
        if format!("{module}{method}").contains(['{', '}', ',', ';', '"', '\\']) {
            return None;
        }
        Some(format!("{} {{module {}}}", spelled(method), spelled(module)))
    }

    fn example(&self) -> String {
        let tag = format!("{KEY}={}", quoted(&self.path));
        let Some(frame) = self.entry_frame() else {
            return String::new();
        };
        match &self.hint {
            None => format!("example \"main;{frame}\" gives \"{tag}\""),
            Some(hint) if hint.callee => format!("example \"main;{frame}\" gives \"{tag}\""),
            Some(hint) => {
                let named = if hint.only_module {
                    "app.exe"
                } else {
                    "app.exe!work"
                };
                format!("example \"main;work {{module app.exe}};{frame}\" gives \"{tag}/{named}\"")
            }
        }
    }

    fn neighbour(&self, hint: &Hint) -> String {
        let tag = format!("{KEY}={}", quoted(&self.path));
        let Some(frame) = self.entry_frame() else {
            return String::new();
        };
        let own = frame.split(" {").next().unwrap_or_default().to_owned();
        let named = if hint.only_module {
            "app.exe"
        } else {
            "app.exe!work"
        };
        match hint.callee {
            true => format!(
                "example \"main;{frame};work {{module app.exe}}\" gives \"{tag}/{named}\"\n        shows \"main;{own} \
                 {{{tag}}};work {{{tag}/{named}}}\""
            ),
            false => format!(
                "example \"main;work {{module app.exe}};{frame}\"\n        shows \"main;work {{{tag}/{named}}};{own} {{{tag}}}\""
            ),
        }
    }
}

/// Leaves out the examples that are not true because another tag prevails on the same frame, or names overlap.
fn without_false_examples(text: String, name: &str) -> String {
    let source = Source::new("imported", &text);
    let Ok(report) =
        Library::parse(&[source]).and_then(|library| examples::test(&library, &identifier(name)))
    else {
        return text;
    };
    let false_lines: BTreeSet<u32> = report.failures.iter().map(|failure| failure.line).collect();
    let mut kept = String::with_capacity(text.len());
    let mut skip_shows = false;
    for (number, line) in (1..).zip(text.lines()) {
        let drop = false_lines.contains(&number) || (skip_shows && line.trim_start().starts_with("shows "));
        skip_shows = drop;
        if !drop {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

fn pattern(texts: &[String]) -> String {
    let word = if texts.iter().any(|text| text.contains('*')) {
        "like"
    } else {
        "is"
    };
    let list: Vec<String> = texts.iter().map(|text| format!("\"{}\"", quoted(text))).collect();
    match list.as_slice() {
        [one] => format!("{word} {one}"),
        many => format!("{word} ({})", many.join(", ")),
    }
}

fn quoted(text: &str) -> String {
    text.replace('"', "\\\"")
}

/// Returns a text as it may be a name in a schema.
fn identifier(text: &str) -> String {
    let made: String = text
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' || c == '_' {
                c
            } else {
                '-'
            }
        })
        .take(60)
        .collect();
    if made.starts_with(|c: char| c.is_ascii_alphabetic()) {
        made
    } else {
        format!("s-{made}")
    }
}
