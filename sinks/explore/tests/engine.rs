//! The query layer against the real engine, through its HTTP front, as reader and as writer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod support;

use regex::Regex;
use strobe_event::{Cause, StackEnd};
use strobe_explore::{By, Explorer, NodeKind, Selection, Sort, View, ddl};
use support::{Engine, engine};

/// 2026-11-02 00:00 UTC: a whole day, so that every kind of total can be asked for.
const DAY: u64 = 1_793_577_600_000_000;
const HOUR: u64 = 3_600_000_000;
const SECOND: u64 = 1_000_000;

/// Frames 1 `main`, 2 `step`, 3 `handle` with `copy` inlined, 4 without symbols; 5 has no row.
///
/// Stacks 100 main→step→handle→copy, 200 main→step→step, 300 main→(no symbols), 500 main→(no row), 600 without
/// frames; 400 has no row.
const ROWS: [&str; 6] = [
    "INSERT INTO frames (frame, generation, functions, files, lines, module, build_id, kind, address, reason, day) VALUES
        (1, 1, ['main'], ['app.cc'], [10], '/app', 'ab', 'gnu', 16, '', '2026-11-02'),
        (2, 1, ['step'], ['step.cc'], [20], '/app', 'ab', 'gnu', 32, '', '2026-11-02'),
        (3, 1, ['handle', 'copy'], ['handle.cc', 'vector.h'], [30, 31], '/lib/x.so', 'cd', 'gnu', 48, '', '2026-11-02'),
        (4, 1, [], [], [], '/lib/y.so', 'ef', 'gnu', 64, 'missing_symbols', '2026-11-02')",
    "INSERT INTO stacks (stack, stack_high, frames, end, day) VALUES
        (100, 1, [1, 2, 3], 'root', '2026-11-01'), (200, 1, [1, 2, 2], 'root', '2026-11-02'),
        (300, 1, [1, 4], 'bad_frame_pointer', '2026-11-02'), (500, 1, [1, 5], 'root', '2026-11-02'),
        (600, 1, [], 'forgotten', '2026-11-02')",
    // The same stack on another day of use, not merged yet.
    "INSERT INTO stacks (stack, stack_high, frames, end, day) VALUES (100, 1, [1, 2, 3], 'root', '2026-11-02')",
    // A row per hour of the day: stack 100 in each with 10 s, others in some hours; host b only in the last.
    "INSERT INTO samples (service, profiler, time, stack, fleet_weight, run_weight, host, pid, tid, thread, executable,
        container, cpu, cause, run, epoch, sequence, part)
        SELECT 'shop', 'cpu', toDateTime64('2026-11-02 00:30:00', 6, 'UTC') + INTERVAL number HOUR, 100, 10e9, 1e9,
            if(number < 23, 'a', 'b'), 7, 8, 'worker', '/app', '', 0, 'continuous',
            toUUID('00000000-0000-0000-0000-000000000001'), toUUID('00000000-0000-0000-0000-0000000000e1'), number, 0
        FROM numbers(24)",
    "INSERT INTO samples (service, profiler, time, stack, fleet_weight, run_weight, host, pid, tid, thread, executable,
        container, cpu, cause, run, epoch, sequence, part) VALUES
        ('shop', 'cpu', '2026-11-02 01:10:00', 200, 20e9, 2e9, 'a', 7, 9, 'main', '/app', '', 0, 'continuous', toUUID('00000000-0000-0000-0000-000000000001'), toUUID('00000000-0000-0000-0000-0000000000e1'), 100, 0),
        ('shop', 'cpu', '2026-11-02 01:10:01', 300, 30e9, 3e9, 'a', 7, 9, 'main', '/app', '', 0, 'continuous', toUUID('00000000-0000-0000-0000-000000000001'), toUUID('00000000-0000-0000-0000-0000000000e1'), 100, 0),
        ('shop', 'cpu', '2026-11-02 01:10:02', 400, 40e9, 4e9, 'a', 7, 9, 'main', '/app', '', 0, 'continuous', toUUID('00000000-0000-0000-0000-000000000001'), toUUID('00000000-0000-0000-0000-0000000000e1'), 100, 0),
        ('shop', 'cpu', '2026-11-02 01:10:03', 500, 50e9, 5e9, 'a', 7, 9, 'main', '/app', '', 0, 'continuous', toUUID('00000000-0000-0000-0000-000000000001'), toUUID('00000000-0000-0000-0000-0000000000e1'), 100, 1),
        ('shop', 'cpu', '2026-11-02 01:10:04', 600, 60e9, 6e9, 'a', 7, 9, 'main', '/app', '', 0, 'continuous', toUUID('00000000-0000-0000-0000-000000000001'), toUUID('00000000-0000-0000-0000-0000000000e1'), 100, 1),
        ('mail', 'cpu', '2026-11-02 01:10:05', 100, 70e9, 7e9, 'b', 3, 3, 'it''s', '/mail', '', 1, 'continuous', toUUID('00000000-0000-0000-0000-000000000002'), toUUID('00000000-0000-0000-0000-0000000000e2'), 1, 0),
        ('shop', 'cpu', '2026-11-02 01:10:06', 200, 0, 9e9, 'a', 7, 9, 'main', '/app', '', 0, 'on_demand', toUUID('00000000-0000-0000-0000-000000000003'), toUUID('00000000-0000-0000-0000-0000000000e1'), 101, 0),
        ('shop', 'off_cpu', '2026-11-02 01:10:07', 100, 5e9, 5e9, 'a', 7, 9, 'main', '/app', '', 0, 'continuous', toUUID('00000000-0000-0000-0000-000000000004'), toUUID('00000000-0000-0000-0000-0000000000e1'), 102, 0)",
    "INSERT INTO totals_hourly SELECT toStartOfHour(time), service, profiler, toUInt64(stack), sum(fleet_weight),
        sum(run_weight), count() FROM samples GROUP BY ALL",
];

/// What profiler `cpu` has in the day, fleet view: 24 × 10 of stack 100, 20 to 60 once, 70 of `mail`.
const TOTAL: f64 = 240e9 + 200e9 + 70e9;

fn day() -> Selection {
    Selection::new(DAY, DAY + 24 * HOUR)
}

fn shop() -> Selection {
    Selection {
        service: Some("shop".into()),
        ..day()
    }
}

/// Starts the engine and makes a database with [`ROWS`]; nothing where the engine is not installed.
async fn filled(test: &str) -> Option<(Engine, Explorer)> {
    let engine = engine(test)?;
    let writer = engine.settings("strobe_writer", test);
    ddl::apply(&writer).await.unwrap();
    ddl::apply(&writer).await.expect("tables may be made twice");
    for sql in ROWS {
        writer.client().query_raw(sql).execute().await.unwrap();
    }
    let explorer = Explorer::new(&engine.settings("strobe_reader", test));
    Some((engine, explorer))
}

/// Checks that days, hours and ragged edges give what samples alone give, whichever way a range is cut.
#[tokio::test]
async fn every_way_to_sum_gives_the_same() {
    let Some((_engine, explorer)) = filled("every_way_to_sum_gives_the_same").await else {
        return;
    };
    let ranges = [
        (DAY, DAY + 24 * HOUR),
        (DAY - 24 * HOUR, DAY + 48 * HOUR),
        (DAY - HOUR, DAY + 25 * HOUR),
        (DAY + HOUR, DAY + 23 * HOUR),
        (DAY + HOUR + 602 * SECOND, DAY + 24 * HOUR),
        (DAY, DAY + HOUR + 603 * SECOND),
        (DAY + 1, DAY + 24 * HOUR + 1),
        (DAY + HOUR + 600 * SECOND, DAY + HOUR + 605 * SECOND),
    ];
    for (since_us, until_us) in ranges {
        for view in [View::Fleet, View::Runs] {
            for service in [None, Some("shop".to_owned())] {
                let selection = Selection {
                    view,
                    service,
                    ..Selection::new(since_us, until_us)
                };
                // Every thread matches, and no total knows threads.
                let mut raw = Vec::new();
                for comm in ["worker", "main", "it's"] {
                    let by_thread = Selection {
                        comm: Some(comm.into()),
                        ..selection.clone()
                    };
                    raw.extend(explorer.stack_totals(&by_thread).await.unwrap());
                }
                let sum = |totals: &[strobe_explore::StackTotal], stack| {
                    totals
                        .iter()
                        .filter(|total| total.stack == stack)
                        .map(|total| total.weight)
                        .sum::<f64>()
                };
                let totals = explorer.stack_totals(&selection).await.unwrap();
                for stack in [100, 200, 300, 400, 500, 600] {
                    assert_eq!(
                        sum(&totals, stack),
                        sum(&raw, stack),
                        "stack {stack}: {selection:?}"
                    );
                }
                assert!(
                    totals.windows(2).all(|pair| pair[0].stack < pair[1].stack),
                    "a stack comes once"
                );
            }
        }
    }
    let totals = explorer.stack_totals(&day()).await.unwrap();
    assert_eq!(totals.iter().map(|total| total.weight).sum::<f64>(), TOTAL);
}

/// Checks that a tree holds all weight: named, without a name, without rows; and that cores are over the range.
#[tokio::test]
async fn a_tree_names_what_it_knows_and_what_it_does_not() {
    let Some((_engine, explorer)) = filled("a_tree_names_what_it_knows_and_what_it_does_not").await else {
        return;
    };
    let tree = explorer.tree(&day(), None, 100).await.unwrap();
    let shape: Vec<_> = tree
        .nodes
        .iter()
        .map(|node| (tree.name(node), node.depth, node.total / 1e9))
        .collect();
    assert_eq!(
        shape,
        [
            ("all", 0, 510.0),
            ("main", 1, 410.0),
            ("step", 2, 330.0),
            ("handle", 3, 310.0),
            ("copy", 4, 310.0),
            ("step", 3, 20.0),
            ("[frame not stored]", 2, 50.0),
            ("[binary has no symbols]", 2, 30.0),
            ("[no stack: forgotten]", 1, 60.0),
            ("[stack not stored]", 1, 40.0),
        ]
    );
    assert_eq!(tree.range.cores(tree.nodes[0].total), 510.0 / 86_400.0);
    let cut = explorer.tree(&day(), None, 4).await.unwrap();
    assert_eq!(cut.nodes.len(), 4);
    assert_eq!(cut.nodes[0].total, TOTAL);
    assert!(cut.nodes.iter().any(|node| node.kind == NodeKind::Other));
}

/// Checks self and total per function, line and module: recursion counts once, an inlined function has its own line.
#[tokio::test]
async fn tops_count_recursion_once() {
    let Some((_engine, explorer)) = filled("tops_count_recursion_once").await else {
        return;
    };
    let top = explorer
        .top(&shop(), None, By::Function, Sort::Total, 100)
        .await
        .unwrap();
    let row = |name: &str| top.rows.iter().find(|row| row.name == name).unwrap();
    assert_eq!((row("step").self_weight, row("step").total), (20e9, 260e9));
    assert_eq!((row("copy").self_weight, row("copy").total), (240e9, 240e9));
    assert_eq!(
        (&*row("copy").file, &*row("copy").module),
        ("vector.h", "/lib/x.so")
    );
    assert_eq!(top.total, 440e9);
    assert_eq!(top.rows.iter().map(|row| row.self_weight).sum::<f64>(), top.total);

    let lines = explorer
        .top(&shop(), None, By::Line, Sort::SelfWeight, 1)
        .await
        .unwrap();
    let first = &lines.rows[0];
    assert_eq!(
        (&*first.name, &*first.file, first.line, first.self_weight),
        ("copy", "vector.h", 31, 240e9)
    );
    assert!(lines.row_count > 5);

    let modules = explorer
        .top(&shop(), None, By::Module, Sort::Total, 100)
        .await
        .unwrap();
    let app = modules.rows.iter().find(|row| row.name == "/app").unwrap();
    assert_eq!((app.self_weight, app.total), (20e9, 340e9));
    assert_eq!(
        modules.rows.iter().map(|row| row.self_weight).sum::<f64>(),
        modules.total
    );
}

/// Checks tops by columns of samples, also when stacks decide which samples count.
#[tokio::test]
async fn tops_by_host_service_and_thread() {
    let Some((_engine, explorer)) = filled("tops_by_host_service_and_thread").await else {
        return;
    };
    let names = |top: strobe_explore::Top| -> Vec<(String, f64)> {
        top.rows
            .into_iter()
            .map(|row| (row.name, row.total / 1e9))
            .collect()
    };
    let by = async |selection: &Selection, by| {
        names(explorer.top(selection, None, by, Sort::Total, 9).await.unwrap())
    };
    let named = |pairs: &[(&str, f64)]| {
        pairs
            .iter()
            .map(|(name, weight)| ((*name).to_owned(), *weight))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        by(&day(), By::Service).await,
        named(&[("shop", 440.0), ("mail", 70.0)])
    );
    assert_eq!(by(&day(), By::Host).await, named(&[("a", 430.0), ("b", 80.0)]));
    assert_eq!(
        by(&day(), By::Thread).await,
        named(&[("worker", 240.0), ("main", 200.0), ("it's", 70.0)])
    );
    let copying = Selection {
        focus: Some(Regex::new("^copy$").unwrap()),
        ..day()
    };
    assert_eq!(by(&copying, By::Host).await, named(&[("a", 230.0), ("b", 80.0)]));
    assert_eq!(
        by(&copying, By::Service).await,
        named(&[("shop", 240.0), ("mail", 70.0)])
    );
}

/// Checks every way to narrow a selection, with text that would break SQL if it got there.
#[tokio::test]
async fn selections_narrow() {
    let Some((_engine, explorer)) = filled("selections_narrow").await else {
        return;
    };
    let total =
        async |selection: &Selection| explorer.tree(selection, None, 100).await.unwrap().nodes[0].total / 1e9;
    let text = |text: &str| Some(text.to_owned());
    let regex = |text: &str| Some(Regex::new(text).unwrap());
    assert_eq!(
        total(&Selection {
            host: text("b"),
            ..day()
        })
        .await,
        80.0
    );
    assert_eq!(
        total(&Selection {
            pid: Some(3),
            ..day()
        })
        .await,
        70.0
    );
    assert_eq!(
        total(&Selection {
            comm: text("it's"),
            ..day()
        })
        .await,
        70.0
    );
    assert_eq!(
        total(&Selection {
            service: text("no such' OR 1=1 --\\"),
            ..day()
        })
        .await,
        0.0
    );
    assert_eq!(
        total(&Selection {
            profiler: "off_cpu".into(),
            ..day()
        })
        .await,
        5.0
    );
    assert_eq!(
        total(&Selection {
            focus: regex("handle"),
            ..day()
        })
        .await,
        310.0
    );
    assert_eq!(
        total(&Selection {
            ignore: regex("handle"),
            ..day()
        })
        .await,
        200.0
    );
    assert_eq!(
        total(&Selection {
            focus: regex("step"),
            ignore: regex("copy"),
            ..day()
        })
        .await,
        20.0
    );
    // On demand: nothing in the fleet, its own weight in the view of runs.
    let on_demand = Selection {
        cause: Some(Cause::OnDemand),
        ..day()
    };
    assert_eq!(total(&on_demand).await, 0.0);
    assert_eq!(
        total(&Selection {
            view: View::Runs,
            ..on_demand
        })
        .await,
        9.0
    );
    let run = "00000000000000000000000000000002".parse().unwrap();
    assert_eq!(
        total(&Selection {
            runs: vec![run],
            ..day()
        })
        .await,
        70.0
    );
    assert!(explorer.tree(&Selection::new(DAY, DAY), None, 100).await.is_err());
}

/// Checks a comparison: both sides' weights in one tree and one top, sorted by how far they moved.
#[tokio::test]
async fn a_baseline_stands_beside() {
    let Some((_engine, explorer)) = filled("a_baseline_stands_beside").await else {
        return;
    };
    // One hour with everything, against two hours in which only stack 100 ran.
    let now = Selection {
        service: Some("shop".into()),
        ..Selection::new(DAY + HOUR, DAY + 2 * HOUR)
    };
    let then = Selection {
        service: Some("shop".into()),
        ..Selection::new(DAY + 2 * HOUR, DAY + 4 * HOUR)
    };
    let top = explorer
        .top(&now, Some(&then), By::Function, Sort::Change, 100)
        .await
        .unwrap();
    let copy = top.rows.iter().find(|row| row.name == "copy").unwrap();
    assert_eq!((copy.self_weight, copy.baseline_self), (10e9, 20e9));
    assert_eq!((top.total, top.baseline_total), (210e9, 20e9));
    assert_eq!(
        top.rows.last().unwrap().self_weight,
        0.0,
        "functions that never run alone moved least"
    );
    // The same in cores: 10 s of an hour, 20 s of two.
    assert_eq!(
        top.range.cores(copy.self_weight),
        top.baseline.unwrap().cores(copy.baseline_self)
    );

    let tree = explorer.tree(&now, Some(&then), 100).await.unwrap();
    let copy = tree.nodes.iter().find(|node| tree.name(node) == "copy").unwrap();
    assert_eq!((copy.total, copy.baseline_total), (10e9, 20e9));
    assert!((tree.change_points(copy) - (100.0 * 10.0 / 210.0 - 100.0)).abs() < 1e-9);
}

/// Checks that names found later replace their absence, in the cache and in SQL, and that nothing doubles.
#[tokio::test]
async fn names_found_later_are_picked_up() {
    let test = "names_found_later_are_picked_up";
    let Some((engine, explorer)) = filled(test).await else {
        return;
    };
    let functions = async || {
        let top = explorer
            .top(&day(), None, By::Function, Sort::Total, 100)
            .await
            .unwrap();
        assert_eq!(top.total, TOTAL);
        top.rows.into_iter().map(|row| row.name).collect::<Vec<_>>()
    };
    assert!(functions().await.contains(&"[binary has no symbols]".to_owned()));
    let later =
        "INSERT INTO frames (frame, generation, functions, files, lines, module, kind, address, day) VALUES
        (4, 2, ['found'], ['found.cc'], [40], '/lib/y.so', 'gnu', 64, '2026-11-02'),
        (5, 2, ['late'], [''], [0], '/app', 'gnu', 80, '2026-11-02')";
    engine
        .settings("strobe_writer", test)
        .client()
        .query_raw(later)
        .execute()
        .await
        .unwrap();
    explorer.refresh().await.unwrap();
    let names = functions().await;
    assert!(
        names.contains(&"found".to_owned()) && names.contains(&"late".to_owned()),
        "{names:?}"
    );
    assert!(
        !names
            .iter()
            .any(|name| name.contains("no symbols") || name.contains("frame not stored")),
        "{names:?}"
    );
    let sql = "SELECT function, sum(fleet_weight) / 1e9 FROM sample_frames WHERE frame IN (4, 5) GROUP BY 1 ORDER BY 1";
    let table = explorer.query(sql).await.unwrap();
    assert_eq!(
        serde_json::to_string(&table.rows).unwrap(),
        r#"[["found",30],["late",50]]"#
    );
}

/// Checks the view of one row per sample and frame: the question of the copied vector is one plain query.
#[tokio::test]
async fn one_query_finds_a_line() {
    let Some((_engine, explorer)) = filled("one_query_finds_a_line").await else {
        return;
    };
    let sql = "SELECT function, file, line, inlined, self, sum(fleet_weight) / 1e9 AS seconds FROM sample_frames
        WHERE service = 'shop' AND profiler = 'cpu' AND function LIKE 'c%' AND file LIKE '%vector%' GROUP BY ALL";
    let table = explorer.query(sql).await.unwrap();
    assert_eq!(
        serde_json::to_string(&table.rows).unwrap(),
        r#"[["copy","vector.h",31,1,1,240]]"#
    );
    assert_eq!(table.columns[2].kind, "UInt32");
    // One self row per sample that has a frame with a row; the two rows of stack 100 do not double it.
    let counts = explorer
        .query("SELECT count(), sum(self) FROM sample_frames WHERE stack = 100 AND profiler = 'cpu'")
        .await;
    assert_eq!(
        serde_json::to_string(&counts.unwrap().rows)
            .unwrap()
            .replace('"', ""),
        "[[100,25]]"
    );
    let mut csv = Vec::new();
    explorer
        .query_to("SELECT 1 AS one, 'a?b' AS two;", "CSVWithNames", &mut csv)
        .await
        .unwrap();
    assert_eq!(String::from_utf8(csv).unwrap(), "\"one\",\"two\"\n1,\"a?b\"\n");
    let refused = explorer
        .query("INSERT INTO samples (service) VALUES ('x')")
        .await
        .unwrap_err();
    assert!(!refused.is_transient());
}

/// Checks stacks for exports, and the share of complete ones.
#[tokio::test]
async fn profiles_hold_whole_stacks() {
    let Some((_engine, explorer)) = filled("profiles_hold_whole_stacks").await else {
        return;
    };
    let profile = explorer.profile(&shop()).await.unwrap();
    assert_eq!(
        profile.stacks.iter().map(|stack| stack.weight).sum::<f64>(),
        440e9
    );
    let runs = explorer
        .profile(&Selection {
            view: View::Runs,
            ..shop()
        })
        .await
        .unwrap();
    assert_eq!(runs.stacks.iter().map(|stack| stack.samples).sum::<u64>(), 30);
    let heaviest = profile
        .stacks
        .iter()
        .max_by(|a, b| a.weight.total_cmp(&b.weight))
        .unwrap();
    assert_eq!((heaviest.samples, heaviest.frames.len()), (24, 3));
    let leaf = &profile.frames[heaviest.frames[2] as usize];
    assert_eq!(
        (leaf.lines[0].function.as_str(), leaf.lines[1].function.as_str()),
        ("handle", "copy")
    );
    assert_eq!((leaf.build_id.as_str(), leaf.address), ("cd", 48));

    let completeness = explorer.completeness(&shop()).await.unwrap();
    assert_eq!(
        (completeness.total, completeness.complete, completeness.not_stored),
        (440e9, 310e9, 40e9)
    );
    let ends = [
        (StackEnd::Root, 310e9),
        (StackEnd::Forgotten, 60e9),
        (StackEnd::BadFramePointer, 30e9),
    ];
    assert_eq!(completeness.by_end, ends);
    assert_eq!(completeness.share(), Some(31.0 / 44.0));
}

/// Checks that totals that were taken back, as a sink does before it writes a range anew, leave nothing behind.
#[tokio::test]
async fn totals_that_were_taken_back_are_gone() {
    let test = "totals_that_were_taken_back_are_gone";
    let Some((engine, explorer)) = filled(test).await else {
        return;
    };
    let client = engine.settings("strobe_writer", test).client();
    let back = "INSERT INTO totals_hourly SELECT hour, service, profiler, stack, -fleet_weight, -run_weight, \
        -toInt64(samples) FROM totals_hourly WHERE service = 'mail'";
    client.query_raw(back).execute().await.unwrap();
    let mail = Selection {
        service: Some("mail".into()),
        ..day()
    };
    for optimized in [false, true] {
        for view in [View::Fleet, View::Runs] {
            // By day, and by hour.
            assert_eq!(
                explorer
                    .stack_totals(&Selection { view, ..mail.clone() })
                    .await
                    .unwrap(),
                [],
                "{optimized}"
            );
            let hours = Selection {
                service: mail.service.clone(),
                view,
                ..Selection::new(DAY, DAY + 23 * HOUR)
            };
            assert_eq!(explorer.stack_totals(&hours).await.unwrap(), [], "{optimized}");
        }
        client
            .query_raw("OPTIMIZE TABLE totals_hourly FINAL")
            .execute()
            .await
            .unwrap();
    }
    assert_eq!(explorer.stack_totals(&shop()).await.unwrap().len(), 6);
}

/// Checks that both sides of the accounting are put together, and that two agents with one name are found.
#[tokio::test]
async fn status_puts_both_sides_together() {
    let test = "status_puts_both_sides_together";
    let Some((engine, explorer)) = filled(test).await else {
        return;
    };
    let client = engine.settings("strobe_writer", test).client();
    let rows = [
        "INSERT INTO runs (run, host, profiler, cause, state, time, taken, spooled, idle, batches, drops, epoch, sequence)
            SELECT toUUID('00000000-0000-0000-0000-000000000001'), 'a', 'cpu', 'continuous', state,
            toDateTime64('2026-11-02 00:00:00', 6, 'UTC') + INTERVAL state HOUR, taken, taken - 3, 11, 25,
            map('ring_full', 3), toUUID('00000000-0000-0000-0000-0000000000e1'), 200 + state
            FROM (SELECT 2 AS state, 0 AS taken UNION ALL SELECT 3, 40)",
        "INSERT INTO batches (host, epoch, sequence, part, run, profiler, cause, start_time, end_time, samples, taken, drops)
            VALUES ('a', toUUID('00000000-0000-0000-0000-0000000000e1'), 100, 0, toUUID('00000000-0000-0000-0000-000000000001'), 'cpu', 'continuous', '2026-11-02 01:00:00', '2026-11-02 01:10:00', 3, 8, map('ring_full', 3, 'thinned', 1)),
            ('a', toUUID('00000000-0000-0000-0000-0000000000e1'), 100, 1, toUUID('00000000-0000-0000-0000-000000000001'), 'cpu', 'continuous', '2026-11-02 01:00:00', '2026-11-02 01:10:00', 2, 0, map()),
            ('a', toUUID('00000000-0000-0000-0000-0000000000e9'), 7, 0, toUUID('00000000-0000-0000-0000-000000000009'), 'cpu', 'continuous', '2026-11-02 01:05:00', '2026-11-02 01:15:00', 4, 4, map()),
            ('b', toUUID('00000000-0000-0000-0000-0000000000e2'), 1, 0, toUUID('00000000-0000-0000-0000-000000000002'), 'cpu', 'continuous', '2026-11-02 01:10:00', '2026-11-02 01:20:00', 1, 1, map())",
    ];
    for sql in rows {
        client.query_raw(sql).execute().await.unwrap();
    }
    let status = explorer.status(DAY).await.unwrap();
    let run = |number: u8| {
        status
            .runs
            .iter()
            .find(|run| run.run == format!("{number:032}"))
            .unwrap()
    };
    let first = run(1);
    assert_eq!(
        (&*first.state, first.taken, first.stored, first.batches_stored),
        ("finished", 40, 29, 1)
    );
    assert_eq!(
        first.dropped,
        [("ring_full".to_owned(), 3), ("thinned".to_owned(), 1)].into()
    );
    assert_eq!((first.under_way(), first.excess()), (7, 0));
    let killed = run(9);
    assert_eq!(
        (&*killed.state, killed.taken, killed.stored, killed.under_way()),
        ("", 4, 0, 4)
    );
    assert_eq!((run(2).stored, run(2).under_way()), (1, 0));
    let several = &status.hosts_with_several_epochs_alive;
    assert_eq!(several.len(), 1);
    assert_eq!((&*several[0].host, several[0].epochs.len()), ("a", 2));
    assert!(several[0].epochs[0].epoch.ends_with("e1"));
    assert!(explorer.status(DAY + 24 * HOUR).await.unwrap().runs.is_empty());
}

/// Checks that every sample of a service counts once, as whole or by the reason why its stack is cut.
#[tokio::test]
async fn stacks_are_whole_or_cut_for_a_reason() {
    let test = "stacks_are_whole_or_cut_for_a_reason";
    let Some((_engine, explorer)) = filled(test).await else {
        return;
    };
    let ends = explorer.stack_ends(DAY).await.unwrap();
    assert!(!ends.cut);
    let of = |name: &str| {
        let mut services = ends.services.iter();
        services.find(|service| service.service == name).unwrap()
    };
    let (shop, mail) = (of("shop"), of("mail"));
    assert_eq!((shop.samples, shop.complete), (31, 24 + 2 + 1 + 1));
    let cut = ["bad_frame_pointer", "forgotten", "not_stored"].map(|end| (end.to_owned(), 1));
    assert_eq!(shop.cut, cut.into());
    assert_eq!((mail.samples, mail.complete, mail.cut.len()), (1, 1, 0));
    let later = explorer.stack_ends(DAY + 24 * HOUR).await.unwrap();
    assert!(later.services.is_empty());
}

/// Checks that a table that was made before an end was thought of takes that end as well, once the tables are applied again, and
/// that the views show it.
#[tokio::test]
async fn an_older_table_learns_new_ends() {
    let test = "an_older_table_learns_new_ends";
    let Some((engine, explorer)) = filled(test).await else {
        return;
    };
    let settings = engine.settings("strobe_writer", test);
    let client = settings.client();
    let before =
        "ALTER TABLE stacks MODIFY COLUMN end Enum8('root' = 1, 'bad_frame_pointer' = 4, 'forgotten' = 8)";
    client.query_raw(before).execute().await.unwrap();
    let row = "INSERT INTO stacks (stack, stack_high, frames, end, day) VALUES (400, 1, [1, 2], 'no_table', '2026-11-02')";
    assert!(client.query_raw(row).execute().await.is_err());
    strobe_explore::ddl::apply(&settings).await.unwrap();
    client.query_raw(row).execute().await.unwrap();
    let table = explorer
        .query("SELECT DISTINCT toString(end) FROM sample_frames WHERE stack = 400")
        .await
        .unwrap();
    assert_eq!(table.rows, [[serde_json::json!("no_table")]]);
}
