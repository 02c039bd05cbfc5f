//! What is asked by tag, against the real engine: sums, selections, colours, views of two services, tags of frames.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod support;

use std::collections::BTreeMap;

use strobe_explore::{By, Explorer, Selection, Sort, Top, TopRow, View, ddl};
use support::{Engine, engine};

/// 2026-11-02 00:00 UTC.
const DAY: u64 = 1_793_577_600_000_000;
const HOUR: u64 = 3_600_000_000;

/// Stack 100 is main→work→copy, stack 200 main→idle. `shop` copies for 30 s in context 1 and idles for 20 s in context 2;
/// `mail` copies for 5 s in context 3, and in a context without a row of tags for another 7 s.
///
/// The rows of generation 1 are what was said before. `shop` shows main→copy only, `mail` shows `copy` as `duplicate`.
const ROWS: [&str; 5] = [
    "INSERT INTO frames (frame, generation, functions, files, lines, module, build_id, kind, address, reason, day) VALUES
        (1, 1, ['main'], ['app.cc'], [10], '/app', 'ab', 'gnu', 16, '', '2026-11-02'),
        (2, 1, ['work'], ['app.cc'], [20], '/app', 'ab', 'gnu', 32, '', '2026-11-02'),
        (3, 1, ['copy'], ['vector.h'], [30], '/app', 'ab', 'gnu', 48, '', '2026-11-02'),
        (4, 1, ['idle'], ['app.cc'], [40], '/app', 'ab', 'gnu', 64, '', '2026-11-02')",
    "INSERT INTO stacks (stack, stack_high, frames, end, day) VALUES
        (100, 1, [1, 2, 3], 'root', '2026-11-02'), (200, 1, [1, 4], 'root', '2026-11-02')",
    "INSERT INTO tags (stack, context, generation, service, profiler, labels, tags, frame_tags.frame, frame_tags.inline,
        frame_tags.tag, marks.frame, marks.inline, marks.kind, marks.text, schemas, day) VALUES
        (100, 1, 1, 'shop', 'cpu', map(), ['old'], [], [], [], [], [], [], [], ['a@1'], '2026-11-02'),
        (100, 1, 2, 'shop', 'cpu', map('host', 'a'), ['copy=vector', 'io/disk/read'], [2, 0], [0, 0],
            ['kind=memory', 'entry'], [1], [0], ['hidden'], ['noise'], ['a@2'], '2026-11-02'),
        (200, 2, 2, 'shop', 'cpu', map(), ['state=idle'], [], [], [], [], [], [], [], ['a@2'], '2026-11-02'),
        (100, 3, 2, 'mail', 'cpu', map(), ['copy=string'], [], [], [], [2], [0], ['renamed'], ['duplicate'], ['a@2'],
            '2026-11-02')",
    "INSERT INTO samples (service, profiler, time, stack, fleet_weight, run_weight, host, pid, tid, thread, executable,
        container, cpu, cause, run, epoch, sequence, part, context)
        SELECT tupleElement(row, 1), 'cpu', '2026-11-02 01:10:00', tupleElement(row, 2), tupleElement(row, 3), 1e9, 'a', 7, 9,
            'main', '/app', '', 0, 'continuous', toUUID('00000000-0000-0000-0000-000000000001'),
            toUUID('00000000-0000-0000-0000-0000000000e1'), tupleElement(row, 4), 0, tupleElement(row, 4)
        FROM (SELECT arrayJoin([('shop', 100, 30e9, 1), ('shop', 200, 20e9, 2), ('mail', 100, 5e9, 3), ('mail', 100, 7e9, 4)])
            AS row)",
    // A question over whole hours reads totals.
    "INSERT INTO totals_hourly SELECT toStartOfHour(time), service, profiler, toUInt64(stack), sum(fleet_weight),
        sum(run_weight), count() FROM samples GROUP BY ALL",
];

fn day() -> Selection {
    Selection::new(DAY, DAY + 24 * HOUR - 1)
}

async fn filled(test: &str) -> Option<(Engine, Explorer)> {
    let engine = engine(test)?;
    let writer = engine.settings("strobe_writer", test);
    ddl::apply(&writer).await.unwrap();
    for sql in ROWS {
        writer.client().query_raw(sql).execute().await.unwrap();
    }
    let explorer = Explorer::new(&engine.settings("strobe_reader", test));
    Some((engine, explorer))
}

/// Returns seconds alone and in all of each row.
fn seconds(top: &Top) -> BTreeMap<String, (f64, f64)> {
    let of_row = |row: &TopRow| (row.name.clone(), (row.self_weight / 1e9, row.total / 1e9));
    top.rows.iter().map(of_row).collect()
}

fn expected(rows: &[(&str, f64, f64)]) -> BTreeMap<String, (f64, f64)> {
    let rows = rows.iter();
    rows.map(|&(name, own, total)| (name.to_owned(), (own, total)))
        .collect()
}

/// Checks sums by tag: what was said before counts no more, a context without a row has no tags, a tag of a frame has alone
/// what was spent in it and in all what was spent below it, and of a key the rest is told.
#[tokio::test]
async fn sums_by_tag_are_those_of_the_newest_rows() {
    let Some((_engine, explorer)) = filled("sums_by_tag_are_those_of_the_newest_rows").await else {
        return;
    };
    let top = explorer.top(&day(), None, By::Tag, Sort::SelfWeight, 100).await;
    let top = top.unwrap();
    assert_eq!(
        seconds(&top),
        expected(&[
            ("copy=vector", 30.0, 30.0),
            ("io/disk/read", 30.0, 30.0),
            ("kind=memory", 30.0, 30.0),
            ("entry", 0.0, 30.0),
            ("state=idle", 20.0, 20.0),
            ("copy=string", 5.0, 5.0),
            ("[untagged]", 7.0, 7.0),
        ])
    );
    assert_eq!(top.total / 1e9, 62.0, "what several tags share counts once");
    for (key, rows) in [
        (
            "copy",
            [("copy=vector", 30.0), ("copy=string", 5.0), ("[no copy]", 27.0)].as_slice(),
        ),
        ("io", &[("io/disk/read", 30.0), ("[no io]", 32.0)]),
        ("io/disk", &[("io/disk/read", 30.0), ("[no io/disk]", 32.0)]),
        ("kind", &[("kind=memory", 30.0), ("[no kind]", 62.0)]),
        ("o", &[("[no o]", 62.0)]),
    ] {
        let top = explorer.top_tags(&day(), None, key, Sort::SelfWeight, 100).await;
        let rows: Vec<_> = rows
            .iter()
            .map(|&(name, seconds)| (name, seconds, seconds))
            .collect();
        assert_eq!(seconds(&top.unwrap()), expected(&rows), "{key}");
    }
}

/// Checks that a selection by tags holds what has all of them, by whole values, keys and outer parts of paths, of stacks and of
/// frames, in the view of the hour and of the day alike.
#[tokio::test]
async fn a_selection_by_tags_holds_what_has_all_of_them() {
    let Some((_engine, explorer)) = filled("a_selection_by_tags_holds_what_has_all_of_them").await else {
        return;
    };
    for (tags, wanted) in [
        (["copy=vector"].as_slice(), 30.0),
        (&["copy"], 35.0),
        (&["io"], 30.0),
        (&["io/disk"], 30.0),
        (&["io/dis"], 0.0),
        (&["kind=memory"], 30.0),
        (&["entry", "copy"], 30.0),
        (&["state", "copy"], 0.0),
        (&["old"], 0.0),
    ] {
        for selection in [day(), Selection::new(DAY, DAY + 24 * HOUR)] {
            let selection = Selection {
                tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
                ..selection
            };
            let totals = explorer.stack_totals(&selection).await.unwrap();
            let sum: f64 = totals.iter().map(|total| total.weight).sum();
            assert_eq!(sum / 1e9, wanted, "{tags:?}");
        }
    }
}

/// Checks that every view of a selection by tags is of the samples that have them, and of nothing else: sums by whatever there
/// is, by key, over all runs, the tree, and what is exported.
#[tokio::test]
async fn every_view_is_of_what_has_the_tags() {
    let Some((_engine, explorer)) = filled("every_view_is_of_what_has_the_tags").await else {
        return;
    };
    let tagged = Selection {
        tags: vec!["copy=vector".into()],
        ..day()
    };
    let all = [
        By::Function,
        By::Line,
        By::Module,
        By::Service,
        By::Host,
        By::Thread,
        By::Tag,
    ];
    for by in all {
        let top = explorer
            .top(&tagged, None, by, Sort::SelfWeight, 100)
            .await
            .unwrap();
        assert_eq!(top.total / 1e9, 30.0, "{by:?}");
        let compared = explorer
            .top(&day(), Some(&tagged), by, Sort::SelfWeight, 100)
            .await;
        assert_eq!(
            compared.unwrap().total / 1e9,
            62.0,
            "{by:?}: the tags are of the other side alone"
        );
    }
    let layers = explorer
        .top_tags(&tagged, None, "io", Sort::SelfWeight, 100)
        .await;
    assert_eq!(
        seconds(&layers.unwrap()),
        expected(&[("io/disk/read", 30.0, 30.0)])
    );
    let within = Selection {
        view: View::Runs,
        ..tagged.clone()
    };
    let top = explorer
        .top(&within, None, By::Function, Sort::SelfWeight, 100)
        .await;
    assert_eq!(top.unwrap().total, 1e9, "one sample of the four");
    let tree = explorer.tree(&tagged, None, 100).await.unwrap();
    assert_eq!(tree.nodes[0].total / 1e9, 30.0);
    let profile = explorer.profile(&tagged).await.unwrap();
    assert_eq!(profile.stacks.len(), 1);
}

/// Checks that services show the same stack each by its own marks, that nothing is lost or doubled by that, and that raw shows
/// what is there.
#[tokio::test]
async fn services_show_a_stack_each_by_its_own_marks() {
    let Some((_engine, explorer)) = filled("services_show_a_stack_each_by_its_own_marks").await else {
        return;
    };
    let shown = explorer.top(&day(), None, By::Function, Sort::Total, 100).await;
    assert_eq!(
        seconds(&shown.unwrap()),
        expected(&[
            ("main", 0.0, 62.0),
            ("copy", 30.0, 30.0),
            ("work", 0.0, 12.0),
            ("duplicate", 12.0, 12.0),
            ("idle", 20.0, 20.0),
        ])
    );
    let raw = Selection { raw: true, ..day() };
    let raw = explorer.top(&raw, None, By::Function, Sort::Total, 100).await;
    assert_eq!(
        seconds(&raw.unwrap()),
        expected(&[
            ("main", 0.0, 62.0),
            ("copy", 42.0, 42.0),
            ("work", 0.0, 42.0),
            ("idle", 20.0, 20.0),
        ])
    );
}

/// Checks that a function has the colour of what weighs the most among the samples in which it is shown: a stack that two
/// services show differently counts in each with that one's weight.
#[tokio::test]
async fn colours_go_by_what_each_service_shows() {
    let Some((engine, explorer)) = filled("colours_go_by_what_each_service_shows").await else {
        return;
    };
    let values = explorer.values_of_functions(&day(), "copy").await.unwrap();
    let value = |name: &str| values.get(name).map(String::as_str);
    assert_eq!(value("copy"), Some("copy=vector"));
    assert_eq!(value("idle"), Some(""));
    assert_eq!(value("main"), Some("copy=vector"));
    // 12 s of `mail` alone: 7 without a row of tags, 5 with one. The 30 s of `shop` are not shown there.
    assert_eq!(value("work"), Some(""));
    assert_eq!(value("duplicate"), Some(""));
    // What is said anew shows at the next question, also to whoever asked before.
    let writer = engine.settings("strobe_writer", "colours_go_by_what_each_service_shows");
    let sql = "INSERT INTO tags (stack, context, generation, service, profiler, tags, day) VALUES (100, 4, 3, 'mail', 'cpu', \
               ['copy=string'], '2026-11-02')";
    writer.client().query_raw(sql).execute().await.unwrap();
    let values = explorer.values_of_functions(&day(), "copy").await.unwrap();
    assert_eq!(values.get("work").map(String::as_str), Some("copy=string"));
}

/// Checks that a function has the colour of the tags of its own frames, under the name that is shown, and that what is left out
/// has none.
#[tokio::test]
async fn tags_of_frames_colour_their_own_functions() {
    let Some((engine, explorer)) = filled("tags_of_frames_colour_their_own_functions").await else {
        return;
    };
    let colours = async |key: &str| {
        let values = explorer.values_of_functions(&day(), key).await.unwrap();
        let coloured = values.into_iter().filter(|(_, value)| !value.is_empty());
        coloured.collect::<Vec<_>>()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(colours("kind").await, [pair("copy", "kind=memory")]);
    assert_eq!(colours("entry").await, [pair("main", "entry")]);
    // Of the key that tags the stack as a whole, the frame's own tag prevails where it stands, also over more weight. What
    // `shop` leaves out has no box, and what `mail` shows by another name has its colour there.
    let writer = engine.settings("strobe_writer", "tags_of_frames_colour_their_own_functions");
    let sql = "INSERT INTO tags (stack, context, generation, service, profiler, tags, frame_tags.frame, frame_tags.inline, \
               frame_tags.tag, marks.frame, marks.inline, marks.kind, marks.text, day) VALUES \
               (100, 1, 3, 'shop', 'cpu', ['copy=vector'], [1], [0], ['copy=hidden'], [1], [0], ['hidden'], ['noise'], \
               '2026-11-02'), \
               (100, 3, 3, 'mail', 'cpu', ['copy=string'], [2, 0], [0, 0], ['copy=leaf', 'copy=entry'], [2], [0], ['renamed'], \
               ['duplicate'], '2026-11-02')";
    writer.client().query_raw(sql).execute().await.unwrap();
    assert_eq!(
        colours("copy").await,
        [
            pair("copy", "copy=vector"),
            pair("duplicate", "copy=leaf"),
            pair("main", "copy=entry"),
        ]
    );
}

/// Checks that the view of frames has the tags of each location, and every sample as often as its stack has locations.
#[tokio::test]
async fn the_view_of_frames_has_their_tags() {
    let Some((engine, _explorer)) = filled("the_view_of_frames_has_their_tags").await else {
        return;
    };
    let reader = engine
        .settings("strobe_reader", "the_view_of_frames_has_their_tags")
        .client();
    let sql = "SELECT toString(service), function, toUInt64(round(sum(fleet_weight) / 1e9)), arrayStringConcat(any(frame_tags), \
               ' ') FROM tagged_frames GROUP BY service, function ORDER BY service, function";
    let rows = reader
        .query_raw(sql)
        .fetch_all::<(String, String, u64, String)>()
        .await;
    let rows = rows.unwrap();
    let rows: Vec<_> = rows
        .iter()
        .map(|(service, function, seconds, tags)| (&**service, &**function, *seconds, &**tags))
        .collect();
    assert_eq!(
        rows,
        [
            ("mail", "copy", 12, ""),
            ("mail", "main", 12, ""),
            ("mail", "work", 12, ""),
            ("shop", "copy", 30, "kind=memory"),
            ("shop", "idle", 20, ""),
            ("shop", "main", 50, "entry"),
            ("shop", "work", 30, ""),
        ]
    );
}

/// Checks that what schemas are tried on has each context with its values, those that are stored beside it too.
#[tokio::test]
async fn stacks_to_be_tagged_have_the_values_of_their_contexts() {
    let Some((_engine, explorer)) = filled("stacks_to_be_tagged_have_the_values_of_their_contexts").await
    else {
        return;
    };
    let contexts = explorer.context_values().await.unwrap();
    let stored = explorer.taggable(&day(), &contexts, false).await.unwrap();
    assert_eq!(stored.unknown, 0.0);
    let mut found: Vec<_> = stored
        .stacks
        .iter()
        .map(|stack| (stack.context, stack.values.len(), stack.weight / 1e9))
        .collect();
    found.sort_by_key(|stack| stack.0);
    assert_eq!(found, [(1, 3, 30.0), (2, 2, 20.0), (3, 2, 5.0), (4, 2, 7.0)]);
    let first = stored.stacks.iter().find(|stack| stack.context == 1).unwrap();
    let host = ("host".to_owned(), "a".to_owned());
    assert!(first.values.contains(&host));
    let stored = explorer.taggable(&day(), &contexts, true).await.unwrap();
    let hosts = stored
        .stacks
        .iter()
        .map(|stack| stack.values.iter().filter(|value| **value == host).count());
    assert_eq!(hosts.collect::<Vec<_>>(), [1; 4], "each knows its host once");
}
