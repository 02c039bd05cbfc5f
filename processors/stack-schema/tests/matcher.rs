//! The matcher against the reference, on schemas and stacks that nobody thought of.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends where it cannot go on"
)]

mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use strobe_stack_schema::folded::FoldedFrame;
use strobe_stack_schema::{Context, Library, Lists, Location, Mark, Matcher, Program, Source};

use reference::{Expected, expected};

/// Frames from a small world, so that conditions often hold and stacks often recur.
fn frame() -> impl Strategy<Value = FoldedFrame> {
    let function = prop_oneof![
        4 => "[ab](::[ab]){0,2}",
        1 => "x<[ab]>::[ab]\\(\\)",
        1 => Just("core::fmt::write".to_owned()),
    ];
    let file = prop_oneof![
        Just(String::new()),
        Just("a.rs".to_owned()),
        Just("lib/b.cpp".to_owned())
    ];
    let module = prop_oneof![
        Just("app".to_owned()),
        Just("libc.so.6".to_owned()),
        Just(String::new())
    ];
    (
        function,
        file,
        module,
        0_u32..4,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |(function, file, module, line, inlined, kernel, unnamed)| FoldedFrame {
                function,
                file,
                module,
                line,
                inlined,
                kernel,
                unnamed,
            },
        )
}

fn text_test() -> impl Strategy<Value = String> {
    prop_oneof![
        "function is \"[ab](::[ab])?\"",
        "function is \\(\"a\", \"b::[ab]\"\\)",
        "function starts \"[ab](::)?\"",
        "function like \"(\\*|[ab]|::|\\*b|a\\*){1,3}\"",
        "function matches \"(\\^?[ab]::[ab]|b\\$|x<\\.>|[ab]{2}|fmt|::)\"",
        "type is \"[ab]\"",
        "type like \"x<\\*>\"",
        "file like \"\\*\\.(rs|cpp)\"",
        "module (is|starts) \"(app|libc)\"",
        "line at (least|most) [0-3]",
        "line is [0-3]",
        "language is (rust|cpp|c)",
    ]
}

fn condition() -> impl Strategy<Value = String> {
    let simple = prop_oneof![
        6 => text_test(),
        1 => "(inlined|kernel|user|unnamed|leaf|root|anything)",
        1 => "depth (at least|at most|is) [1-4]",
        1 => Just("named".to_owned()),
    ];
    simple.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) and ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} or {b})")),
            inner.clone().prop_map(|a| format!("not ({a})")),
            ("(called by|under|calling|over)", inner).prop_map(|(near, a)| format!("{near} ({a})")),
        ]
    })
}

fn stack_condition() -> impl Strategy<Value = String> {
    let simple = prop_oneof![
        ("(any|all|leaf|root)", condition()).prop_map(|(which, a)| format!("{which} ({a})")),
        (condition(), "(calls|reaches)", condition()).prop_map(|(a, by, b)| format!("any ({a}) {by} ({b})")),
        "depth (at least|at most|is) [0-6]".prop_map(|text| text),
        "service (is|like) \"(web|we\\*)\"".prop_map(|text| text),
        "annotation tenant is \"t[1-3]\"".prop_map(|text| text),
        "label tier matches \"g\\.ld\"".prop_map(|text| text),
    ];
    simple.prop_recursive(2, 6, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} and {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} or {b})")),
            inner.prop_map(|a| format!("not ({a})")),
        ]
    })
}

fn action() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "tag stack (one|leaf|root|all|free)=[pqr]",
        1 => "tag stack path/[pq]",
        2 => "tag frame (one|free|leaf)=[pqr]",
        2 => prop_oneof![
            Just("tag stack \"all={caller module}\"".to_owned()),
            Just("tag stack \"leaf={callee function}\"".to_owned()),
            Just("tag stack \"one={type}-{module}\"".to_owned()),
            Just("tag stack \"tenant={annotation tenant}\"".to_owned()),
            Just("tag frame \"free={function}\"".to_owned()),
            Just("tag stack \"path/{file}\"".to_owned()),
        ],
        3 => "(hide|show|fold recursion|fold run|cut callers|cut callees)",
        2 => prop_oneof![
            Just("rename to \"{type}!\"".to_owned()),
            Just("rename to \"by {caller function}\"".to_owned()),
            Just("rename replace \"(a)::\" with \"$1.\"".to_owned()),
            Just("rename shorten templates".to_owned()),
            Just("rename drop suffixes".to_owned()),
        ],
    ]
}

fn rule(name: usize) -> impl Strategy<Value = String> {
    let on = prop_oneof![3 => condition(), 1 => Just("function matches \"^(?<first>[ab])::(?<rest>.+)\"".to_owned())];
    let when = prop::option::weighted(0.4, stack_condition());
    (on, when, prop::collection::vec(action(), 1..4), -2_i32..3).prop_map(
        move |(on, when, actions, priority)| {
            let when = when.map_or_else(String::new, |when| format!(" when {when}"));
            let captured = if on.contains("?<first>") {
                " tag stack \"all={first}.{2}\""
            } else {
                ""
            };
            format!(
                "rule r{name} priority {priority} {{ on {on}{when} {}{captured} }}\n",
                actions.join(" ")
            )
        },
    )
}

fn stack_rule(name: usize) -> impl Strategy<Value = String> {
    (stack_condition(), "tag stack (one|leaf|all|free)=[st]")
        .prop_map(move |(when, tag)| format!("rule s{name} {{ when {when} {tag} }}\n"))
}

const KEYS: &str = "key one takes one otherwise none\nkey leaf takes nearest leaf\nkey root takes nearest root\n\
    key all takes all otherwise none\n";

/// Three schemas: `base`, which the others may include.
fn schemas() -> impl Strategy<Value = Vec<String>> {
    let rules = || {
        (rule(1), rule(2), stack_rule(1), rule(3), any::<[bool; 4]>()).prop_map(|(a, b, s, c, on)| {
            [a, b, s, c]
                .into_iter()
                .zip(on)
                .filter(|(_, on)| *on)
                .map(|(rule, _)| rule)
                .collect::<String>()
        })
    };
    let cover = prop_oneof![
        3 => Just(""),
        1 => Just("services we*\n"),
        1 => Just("services * except web\n"),
        1 => Just("profilers cpu\nregions \"eu*\"\n"),
    ];
    let named = "let named = function is \"a::b\" or kernel\n";
    (
        rules(),
        rules(),
        rules(),
        cover.clone(),
        cover,
        any::<[bool; 2]>(),
    )
        .prop_map(
            move |(base, one, two, cover_base, cover_one, [includes_one, includes_two])| {
                let head = |includes: bool| match includes {
                    true => "include base\n".to_owned(),
                    false => format!("{KEYS}{named}"),
                };
                vec![
                    format!("schema base\n{cover_base}{KEYS}{named}{base}"),
                    format!("schema one\n{cover_one}{}{one}", head(includes_one)),
                    format!("schema two\n{}{two}", head(includes_two)),
                ]
            },
        )
}

fn parse(texts: &[String]) -> Library {
    let sources: Vec<Source> = (1..)
        .zip(texts)
        .map(|(at, text)| Source::new(&format!("{at}.stacks"), text))
        .collect();
    Library::parse(&sources).unwrap_or_else(|error| panic!("{error}\n{}", texts.join("\n---\n")))
}

fn actual(matcher: &mut Matcher, stack: &[FoldedFrame], context: &Context<'_>) -> Expected {
    let locations: Vec<_> = stack
        .iter()
        .map(|frame| matcher.location(&frame.location()))
        .collect();
    let id = matcher.stack(&locations);
    let context = matcher.context(context);
    let outcome = matcher.outcome(id, context);
    let mut lists = Lists::default();
    let outcome = matcher.get(id, outcome, &mut lists);
    let schema = |by: u32| matcher.program().schemas()[by as usize].name.to_string();
    let mut made = Expected {
        tags: outcome
            .tags
            .iter()
            .map(|&tag| matcher.tag(tag).to_owned())
            .collect(),
        frame_tags: outcome
            .frame_tags
            .iter()
            .map(|&(frame, tag)| (frame as usize, matcher.tag(tag).to_owned()))
            .collect(),
        left_out: BTreeMap::new(),
        renamed: BTreeMap::new(),
    };
    for &(frame, mark) in outcome.marks {
        let how = match mark {
            Mark::Hidden { by } => ("hidden", schema(by)),
            Mark::Folded { by } => ("folded", schema(by)),
            Mark::Cut { by } => ("cut", schema(by)),
            Mark::Renamed { name } => {
                made.renamed.insert(frame as usize, matcher.name(name).to_owned());
                continue;
            }
        };
        assert!(
            made.left_out.insert(frame as usize, how).is_none(),
            "two marks leave one frame out"
        );
    }
    made
}

const CONTEXTS: [Context<'_>; 4] = [
    Context {
        service: "web",
        profiler: "cpu",
        region: "eu-1",
        host: "h",
        labels: &[("tier", "gold")],
        annotations: &[("tenant", "t1")],
    },
    Context {
        service: "web",
        profiler: "wall",
        region: "",
        host: "",
        labels: &[],
        annotations: &[("tenant", "t2"), ("x", "y")],
    },
    Context {
        service: "batch",
        profiler: "cpu",
        region: "eu",
        host: "",
        labels: &[("tier", "old")],
        annotations: &[],
    },
    Context {
        service: "",
        profiler: "",
        region: "",
        host: "",
        labels: &[],
        annotations: &[],
    },
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 400, ..ProptestConfig::default() })]

    /// Checks that the matcher makes of any stack what the reference makes of it, in every context, also when it is asked
    /// a second time.
    #[test]
    fn the_matcher_agrees_with_the_reference(
        texts in schemas(),
        stacks in prop::collection::vec(prop::collection::vec(frame(), 1..9), 1..5),
        enabled in prop_oneof![Just(vec!["one"]), Just(vec!["one", "two"]), Just(vec!["base", "two"])],
    ) {
        let library = parse(&texts);
        let program = Arc::new(Program::compile(&library, &enabled).unwrap());
        let mut matcher = Matcher::new(program);
        for _ in 0..2 {
            for stack in &stacks {
                for context in &CONTEXTS {
                    let expected = expected(&library, &enabled, stack, context);
                    prop_assert_eq!(actual(&mut matcher, stack, context), expected, "{}", texts.join("---\n"));
                }
            }
        }
    }

    /// Checks the same for stacks that are deeper than one and than four words of a set.
    #[test]
    fn deep_stacks_agree_with_the_reference(
        texts in schemas(),
        piece in prop::collection::vec(frame(), 1..9),
        depth in prop_oneof![60_usize..70, 120_usize..130, 250_usize..300],
    ) {
        let library = parse(&texts);
        let stack: Vec<FoldedFrame> = piece.iter().cycle().take(depth).cloned().collect();
        let mut matcher = Matcher::new(Arc::new(Program::compile(&library, &["one", "two"]).unwrap()));
        for context in &CONTEXTS[..2] {
            let expected = expected(&library, &["one", "two"], &stack, context);
            prop_assert_eq!(actual(&mut matcher, &stack, context), expected, "{}", texts.join("---\n"));
        }
    }

    /// Checks that neither the order of files nor that of rules within them changes anything.
    #[test]
    fn order_does_not_matter(
        texts in schemas(),
        stacks in prop::collection::vec(prop::collection::vec(frame(), 1..7), 1..4),
    ) {
        let turned: Vec<String> = texts.iter().rev().map(|text| {
            let (rules, mut head): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("rule "));
            head.extend(rules.into_iter().rev());
            head.join("\n")
        }).collect();
        let matcher = |texts: &[String]| Matcher::new(Arc::new(Program::compile(&parse(texts), &["two", "one"]).unwrap()));
        let (mut one, mut other) = (matcher(&texts), matcher(&turned));
        for stack in &stacks {
            for context in &CONTEXTS {
                prop_assert_eq!(actual(&mut one, stack, context), actual(&mut other, stack, context));
            }
        }
    }

    /// Checks that the shares of a key that takes one, with a tag for all others, add up to the whole, and that edits
    /// change no weight: a stack shows at least one line.
    #[test]
    fn an_exclusive_key_adds_up_to_the_whole(
        texts in schemas(),
        stacks in prop::collection::vec((prop::collection::vec(frame(), 1..7), 1_u64..1_000), 1..8),
    ) {
        // The key must be declared by a schema that covers all of the samples.
        let covering: Vec<String> = texts.iter().map(|text| {
            let narrows = |line: &&str| ["services", "profilers", "regions"].iter().any(|word| line.starts_with(word));
            text.lines().filter(|line| !narrows(line)).collect::<Vec<_>>().join("\n")
        }).collect();
        let library = parse(&covering);
        let program = Arc::new(Program::compile(&library, &["two"]).unwrap());
        let mut matcher = Matcher::new(Arc::clone(&program));
        let mut of_tags: BTreeMap<String, u64> = BTreeMap::new();
        let mut total = 0;
        for (stack, weight) in &stacks {
            let tags: BTreeSet<String> = actual(&mut matcher, stack, &CONTEXTS[0]).tags;
            total += weight;
            for tag in tags.into_iter().filter(|tag| tag.starts_with("one=")) {
                *of_tags.entry(tag).or_default() += weight;
            }
            let locations: Vec<_> = stack.iter().map(|frame| matcher.location(&frame.location())).collect();
            let id = matcher.stack(&locations);
            let context = matcher.context(&CONTEXTS[0]);
            let outcome = matcher.outcome(id, context);
            let names: Vec<&str> = stack.iter().map(|frame| frame.function.as_str()).collect();
            prop_assert!(!matcher.get(id, outcome, &mut Lists::default()).view(&program, matcher.made(), &names).is_empty());
        }
        prop_assert_eq!(of_tags.values().sum::<u64>(), total);
    }
}

/// Checks that a key takes 1,000 values per service, that the next ones are `other` and counted, and that another day
/// begins anew.
#[test]
fn values_of_a_key_are_bounded_per_service_and_day() {
    let text = "schema v\nrule r { on root tag stack \"id={function}\" }\n".to_owned();
    let mut matcher = Matcher::new(Arc::new(Program::compile(&parse(&[text]), &["v"]).unwrap()));
    let tags = |matcher: &mut Matcher, service: &str, range: std::ops::Range<usize>| {
        let mut tags = BTreeSet::new();
        for number in range {
            let frame = FoldedFrame {
                function: format!("f{number}"),
                ..FoldedFrame::default()
            };
            let context = Context {
                service,
                ..Context::default()
            };
            tags.extend(actual(matcher, &[frame], &context).tags);
        }
        tags
    };
    matcher.begin(1);
    let given = tags(&mut matcher, "a", 0..1_500);
    assert_eq!(given.len(), 1_001);
    assert!(given.contains("id=other"));
    assert_eq!(matcher.refused_values(), 500);
    assert_eq!(
        tags(&mut matcher, "b", 1_400..1_500).len(),
        100,
        "another service has its own"
    );
    assert!(matcher.begin(2), "another day forgets");
    assert_eq!(tags(&mut matcher, "a", 1_200..1_500).len(), 300);
}

/// Checks that stacks keep their numbers and outcomes while the index of them grows, and that those which differ in a single
/// location, or in the order of locations, are not taken for each other.
#[test]
fn stacks_keep_their_numbers_while_more_come() {
    let text = "schema v\nrule r { on leaf and function is \"f7\" tag stack lucky=yes }\n".to_owned();
    let program = Arc::new(Program::compile(&parse(&[text]), &["v"]).unwrap());
    let mut matcher = Matcher::new(program);
    let context = matcher.context(&CONTEXTS[0]);
    let names: Vec<String> = (0..40).map(|number| format!("f{number}")).collect();
    let locations = names.iter().map(|name| {
        matcher.location(&Location {
            function: name,
            ..Location::default()
        })
    });
    let locations: Vec<_> = locations.collect();
    let stacks = || (0..40_usize).flat_map(|a| (0..40).flat_map(move |b| (0..40).map(move |c| [a, b, c])));
    let mut lists = Lists::default();
    for go in 0..2 {
        for (number, stack) in stacks().enumerate() {
            let id = matcher.stack(&stack.map(|at| locations[at]));
            assert_eq!(id.index(), number, "{stack:?} in go {go}");
            let outcome = matcher.outcome(id, context);
            let tags = matcher.get(id, outcome, &mut lists).tags.len();
            assert_eq!(tags, usize::from(stack[2] == 7), "{stack:?} in go {go}");
        }
        assert_eq!(matcher.known(), (40, 64_000));
    }
}

/// Checks that a matcher keeps to its memory: it forgets between batches and answers the same afterwards.
#[test]
fn memory_is_bounded() {
    let text = "schema v\nrule r { on function like \"*7\" tag stack lucky=yes }\n".to_owned();
    let program = Arc::new(Program::compile(&parse(&[text]), &["v"]).unwrap());
    let mut matcher = Matcher::new(program).with_memory(1 << 20);
    let mut forgot = 0;
    for batch in 0..50 {
        forgot += usize::from(matcher.begin(0));
        for number in 0..1_000 {
            let frame = FoldedFrame {
                function: format!("batch{batch}::function{number}"),
                ..FoldedFrame::default()
            };
            let made = actual(&mut matcher, &[frame], &CONTEXTS[0]);
            assert_eq!(made.tags.contains("lucky=yes"), number % 10 == 7);
        }
        assert!(matcher.bytes() < 2 << 20, "{} bytes", matcher.bytes());
    }
    assert!(forgot > 3);
}
