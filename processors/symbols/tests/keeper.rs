//! Symbol files from upload to answer: made once, used first, proved before they are trusted.

// The lints make exceptions for test functions, not for what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use object::{Object, ObjectSection, ObjectSymbol};
use strobe_event::{BinaryKind, BuildId, Reason};
use strobe_store::{BinaryKey, State, Store};
use strobe_symbols::file::VERSION;
use strobe_symbols::{
    Binaries, ConvertLimits, Converter, Hint, Keeper, Limits, Outcome, Resolved, Symbolizer,
};
use support::{Bench, CHECKOUT, PROGRAM, REFUND, chain, function, have, run, worker};

fn keeper_with(bench: &Bench, name: &str, limits: ConvertLimits) -> Keeper {
    let store = Store::in_folder(bench.path("store")).unwrap();
    let converter = Converter {
        worker: worker(),
        debug_folders: Vec::new(),
        limits,
    };
    Keeper::new(
        Binaries::of_folder(store),
        converter,
        bench.path(name),
        name.to_owned(),
    )
    .unwrap()
}

fn keeper(bench: &Bench, name: &str) -> Keeper {
    keeper_with(bench, name, ConvertLimits::default())
}

fn key(id: &BuildId) -> BinaryKey {
    BinaryKey {
        kind: BinaryKind::Gnu,
        id: id.clone(),
    }
}

fn symbols_of(bench: &Bench, id: &BuildId) -> std::path::PathBuf {
    bench.path("store").join(key(id).symbols(VERSION))
}

/// Compiles the program; returns its id in the store and all addresses of two of its functions.
fn shop(bench: &mut Bench) -> Option<(BuildId, Vec<u64>)> {
    if !have("g++") || !have("nm") {
        return None;
    }
    let binary = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let addresses = [CHECKOUT, REFUND].into_iter().flat_map(|name| {
        let (start, length) = function(&binary, name);
        start..start + length
    });
    Some((bench.store_file(&binary), addresses.collect()))
}

fn names(symbolizer: &mut Symbolizer, id: &BuildId, addresses: &[u64]) -> Vec<Resolved> {
    symbolizer.resolve(BinaryKind::Gnu, id, addresses).unwrap()
}

/// Checks that a symbol file answers every address as the binary itself does, without the worker.
#[test]
fn a_symbol_file_answers_as_the_binary_does() {
    let mut bench = Bench::new();
    let Some((id, addresses)) = shop(&mut bench) else {
        return;
    };
    let mut from_binary = bench.symbolizer(Limits::default());
    let expected = names(&mut from_binary, &id, &addresses);
    assert_eq!(from_binary.telemetry().file_lookups, 0);
    assert!(matches!(
        keeper(&bench, "keeper").attempt(&key(&id)).unwrap(),
        Outcome::Made { .. }
    ));
    let mut from_file = bench.symbolizer(Limits::default());
    assert_eq!(names(&mut from_file, &id, &addresses), expected);
    let seen = from_file.telemetry();
    assert_eq!((seen.requests, seen.files_open), (0, 1), "the worker was asked");
    assert_eq!(seen.file_lookups, addresses.len() as u64);
    // With the file alone: the binary may be gone by then.
    fs::remove_file(bench.path("store").join(key(&id).executable())).unwrap();
    assert_eq!(
        names(&mut bench.symbolizer(Limits::default()), &id, &addresses),
        expected
    );
}

/// Checks that a symbolizer asks for the file that it lacks, and uses it once it is there.
#[test]
fn a_missing_file_is_asked_for_and_then_used() {
    let mut bench = Bench::new();
    let Some((id, addresses)) = shop(&mut bench) else {
        return;
    };
    let (hints, hinted) = std::sync::mpsc::sync_channel(8);
    let mut settings = bench.settings(Limits {
        missing_time: Duration::ZERO,
        ..Limits::default()
    });
    settings.hints = Some(hints);
    let mut symbolizer = Symbolizer::new(settings).unwrap();
    let (first, rest) = addresses.split_at(10);
    names(&mut symbolizer, &id, first);
    assert_eq!(symbolizer.telemetry().requests, 1);
    assert_eq!(hinted.try_recv().unwrap(), Hint::Convert(key(&id)));
    keeper(&bench, "keeper").attempt(&key(&id)).unwrap();
    let named = names(&mut symbolizer, &id, rest);
    assert!(named.iter().all(|name| matches!(name, Resolved::Symbols(_))));
    let seen = symbolizer.telemetry();
    assert_eq!((seen.requests, seen.file_lookups), (1, rest.len() as u64));
}

/// Checks that many keepers of one store make the symbol file of a binary once.
#[test]
fn keepers_of_one_store_make_a_file_once() {
    let mut bench = Bench::new();
    let Some((id, _)) = shop(&mut bench) else { return };
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let (bench, id) = (&bench, &id);
        let keepers = (0..6).map(|number| {
            scope.spawn(move || {
                keeper(bench, &format!("keeper{number}"))
                    .attempt(&key(id))
                    .unwrap()
            })
        });
        keepers
            .collect::<Vec<_>>()
            .into_iter()
            .map(|keeper| keeper.join().unwrap())
            .collect()
    });
    let made = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Made { .. }))
        .count();
    assert_eq!(made, 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| matches!(
        outcome,
        Outcome::Made { .. } | Outcome::Busy | Outcome::AlreadyThere
    )));
    assert_eq!(
        keeper(&bench, "later").attempt(&key(&id)).unwrap(),
        Outcome::AlreadyThere
    );
    assert_eq!(claims_of(&bench, &id).len(), 1);
}

/// Checks that a scan finds what nobody has asked for, and that a binary of which nothing can be made is recorded with
/// its reason, is not tried again before its time, and does not stop the others.
#[test]
fn a_scan_makes_what_can_be_made_and_records_the_rest() {
    let mut bench = Bench::new();
    let text = bench.store(b"#!/bin/sh\nexit 0\n");
    let Some((id, _)) = shop(&mut bench) else { return };
    let mut keeper = keeper(&bench, "keeper");
    keeper.scan(&|| false).unwrap();
    assert!(symbols_of(&bench, &id).is_file());
    let Outcome::NotDue(failure) = keeper.attempt(&key(&text)).unwrap() else {
        panic!("it was tried again at once")
    };
    assert_eq!(
        (failure.reason.as_str(), failure.attempts),
        (Reason::Damaged.name(), 1)
    );
    assert!(failure.retry_at > failure.at + 60);
    let left: Vec<_> = fs::read_dir(bench.path("keeper")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Checks that a binary which is too much for the worker's memory or time costs its own attempt alone: the reason is
/// recorded, and the next binary is served by the same keeper.
#[test]
fn a_binary_over_the_limits_costs_itself_alone() {
    let mut bench = Bench::new();
    let big = bench.store_file(&std::env::current_exe().unwrap());
    let Some((id, _)) = shop(&mut bench) else { return };
    let little = ConvertLimits {
        memory_bytes: 8 << 20,
        ..ConvertLimits::default()
    };
    let mut keeper = keeper_with(&bench, "keeper", little);
    let Outcome::Failed(failure) = keeper.attempt(&key(&big)).unwrap() else {
        panic!("8 MiB were enough")
    };
    assert!(
        [Reason::BinaryRefused.name(), Reason::OverLimit.name()].contains(&failure.reason.as_str()),
        "{failure:?}"
    );
    assert!(matches!(keeper.attempt(&key(&id)).unwrap(), Outcome::Made { .. }));
    let late = bench.store_file(&std::env::current_exe().unwrap());
    let hurried = ConvertLimits {
        time: Duration::from_millis(1),
        ..ConvertLimits::default()
    };
    let Outcome::Failed(failure) = keeper_with(&bench, "hurried", hurried)
        .attempt(&key(&late))
        .unwrap()
    else {
        panic!("a millisecond was enough")
    };
    assert_eq!(failure.reason, Reason::OverLimit.name());
}

/// Checks that a damaged symbol file, at the door or in the middle, is left alone, and that names come from the binary.
#[test]
fn a_damaged_symbol_file_is_left_alone() {
    let mut bench = Bench::new();
    let Some((id, addresses)) = shop(&mut bench) else {
        return;
    };
    keeper(&bench, "keeper").attempt(&key(&id)).unwrap();
    let expected = names(&mut bench.symbolizer(Limits::default()), &id, &addresses);
    let place = symbols_of(&bench, &id);
    let good = fs::read(&place).unwrap();
    let mut other_version = good.clone();
    other_version[8] ^= 1;
    for bad in [
        b"".to_vec(),
        b"nonsense".to_vec(),
        other_version,
        good[..600].to_vec(),
    ] {
        fs::write(&place, &bad).unwrap();
        let mut symbolizer = bench.symbolizer(Limits::default());
        assert_eq!(names(&mut symbolizer, &id, &addresses), expected);
        let seen = symbolizer.telemetry();
        assert_eq!(
            (seen.files_damaged, seen.worker_deaths),
            (1, 0),
            "{} bytes",
            bad.len()
        );
    }
}

/// Checks that a forged binary under a build id that is known already changes nothing: neither the stored binary, nor its
/// symbol file, nor the names.
#[test]
fn a_forged_binary_changes_no_names() {
    let mut bench = Bench::new();
    let Some((id, addresses)) = shop(&mut bench) else {
        return;
    };
    let mut keeper = keeper(&bench, "keeper");
    keeper.attempt(&key(&id)).unwrap();
    let expected = names(&mut bench.symbolizer(Limits::default()), &id, &addresses);
    let forged = bench.compile("g++", &PROGRAM.replace("shop", "evil"), &["-g", "-O2"], "evil");
    let store = Store::in_folder(bench.path("store")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let put = runtime
        .block_on(store.put(&key(&id), fs::File::open(&forged).unwrap(), None))
        .unwrap();
    assert_eq!(put, strobe_store::Put::AlreadyThere);
    assert_eq!(keeper.attempt(&key(&id)).unwrap(), Outcome::AlreadyThere);
    let found = names(&mut bench.symbolizer(Limits::default()), &id, &addresses);
    assert_eq!(found, expected);
    assert!(chain(&found[0])[0].0.starts_with("shop::"));
}

/// Checks that what hosts run and nobody has uploaded is recorded with where it was seen, once it is said.
#[test]
fn a_missing_binary_is_recorded_as_wanted() {
    let bench = Bench::new();
    let id = BuildId::new(&[9; 20]).unwrap();
    let (hints, hinted) = std::sync::mpsc::sync_channel(8);
    let hint = Hint::Missing {
        key: key(&id),
        path: "/opt/app".to_owned(),
        host: "web-1".to_owned(),
    };
    hints.send(hint).unwrap();
    drop(hints);
    keeper(&bench, "keeper").run(&hinted, || false);
    let store = Store::in_folder(bench.path("store")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let wanted = runtime.block_on(store.wanted(&key(&id))).unwrap().unwrap();
    assert_eq!(
        (wanted.path.as_str(), wanted.host.as_str()),
        ("/opt/app", "web-1")
    );
    let holding = runtime.block_on(store.holding(&key(&id), VERSION)).unwrap();
    assert_eq!(
        holding.state(strobe_store::index::now(), Duration::from_secs(60)),
        State::Wanted
    );
}

fn quick() -> Limits {
    Limits {
        missing_time: Duration::ZERO,
        renew_time: Duration::ZERO,
        ..Limits::default()
    }
}

fn lines(names: &[Resolved]) -> usize {
    let known =
        |name: &&Resolved| matches!(name, Resolved::Symbols(levels) if levels.iter().any(|at| at.line != 0));
    names.iter().filter(known).count()
}

/// Checks that debug information which arrives after a symbol file was made of the bare binary makes a better one, and that
/// names which were given before are given anew.
#[test]
fn late_debug_information_makes_a_better_file() {
    let mut bench = Bench::new();
    if !have("g++") || !have("nm") || !have("objcopy") {
        return;
    }
    let whole = bench.compile("g++", PROGRAM, &["-g", "-O2"], "shop");
    let addresses: Vec<u64> = [CHECKOUT, REFUND]
        .into_iter()
        .flat_map(|name| {
            let (start, length) = function(&whole, name);
            start..start + length
        })
        .collect();
    let (bare, debug) = (bench.path("bare"), bench.path("debug"));
    run("objcopy", &["--strip-debug", path_text(&whole), path_text(&bare)]);
    run(
        "objcopy",
        &["--only-keep-debug", path_text(&whole), path_text(&debug)],
    );
    let id = bench.store_file(&bare);
    let mut symbolizer = bench.symbolizer(quick());
    // Three answers of one symbolizer: by the worker, by the first file, by the better one.
    assert_eq!(lines(&names(&mut symbolizer, &id, &addresses)), 0);
    assert!(matches!(
        keeper(&bench, "first").attempt(&key(&id)).unwrap(),
        Outcome::Made { facts, .. } if !facts.debug_info
    ));
    assert_eq!(lines(&names(&mut symbolizer, &id, &addresses)), 0);
    fs::copy(&debug, bench.path("store").join(key(&id).debuginfo())).unwrap();
    let mut later = keeper(&bench, "later");
    assert!(matches!(
        later.attempt(&key(&id)).unwrap(),
        Outcome::Made { facts, .. } if facts.debug_info
    ));
    assert_eq!(later.attempt(&key(&id)).unwrap(), Outcome::AlreadyThere);
    let found = names(&mut symbolizer, &id, &addresses);
    assert_eq!(lines(&found), addresses.len());
    assert_eq!(symbolizer.telemetry().files_renewed, 2);
    let mut of_whole = Bench::new();
    let id = of_whole.store_file(&whole);
    assert_eq!(
        found,
        names(&mut of_whole.symbolizer(Limits::default()), &id, &addresses)
    );
}

/// Checks that a side file which makes the answer worse, damaged debug information that comes late, does not replace a good
/// symbol file, and is not tried again and again.
#[test]
fn what_is_worse_does_not_replace_what_is_good() {
    let mut bench = Bench::new();
    let Some((id, addresses)) = shop(&mut bench) else {
        return;
    };
    keeper(&bench, "first").attempt(&key(&id)).unwrap();
    let good = fs::read(symbols_of(&bench, &id)).unwrap();
    let expected = names(&mut bench.symbolizer(Limits::default()), &id, &addresses);
    // Debug information whose first unit cannot be read, so that nothing of it can.
    let mut bytes = fs::read(bench.path("shop")).unwrap();
    let info = {
        let elf = object::File::parse(bytes.as_slice()).unwrap();
        elf.section_by_name(".debug_info")
            .unwrap()
            .file_range()
            .unwrap()
            .0
    };
    bytes[info as usize + 4] = 99;
    fs::write(bench.path("store").join(key(&id).debuginfo()), bytes).unwrap();
    let mut later = keeper(&bench, "later");
    assert_eq!(later.attempt(&key(&id)).unwrap(), Outcome::AlreadyThere);
    assert_eq!(fs::read(symbols_of(&bench, &id)).unwrap(), good);
    let found = names(&mut bench.symbolizer(Limits::default()), &id, &addresses);
    assert_eq!(found, expected);
    let claims = |bench: &Bench| claims_of(bench, &id);
    let before = claims(&bench);
    assert_eq!(
        keeper(&bench, "third").attempt(&key(&id)).unwrap(),
        Outcome::AlreadyThere
    );
    assert_eq!(claims(&bench), before, "it was tried again");
}

fn claims_of(bench: &Bench, id: &BuildId) -> Vec<String> {
    let names = fs::read_dir(symbols_of(bench, id).parent().unwrap()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("claim")).collect()
}

/// Checks that a binary which has ended the worker twice is named all the same once its symbol file is there: the keeper's
/// limits are wider than those of the worker that answers meanwhile.
#[test]
fn a_refused_binary_is_named_by_its_later_file() {
    let mut bench = Bench::new();
    let own = std::env::current_exe().unwrap();
    let id = bench.store_file(&own);
    let mut symbolizer = bench.symbolizer(Limits {
        memory_bytes: 3 << 20,
        ..quick()
    });
    let addresses: Vec<u64> = {
        let bytes = fs::read(&own).unwrap();
        let elf = object::File::parse(bytes.as_slice()).unwrap();
        let functions = elf
            .symbols()
            .filter(|symbol| symbol.kind() == object::SymbolKind::Text);
        functions
            .filter(|symbol| symbol.size() > 0)
            .map(|symbol| symbol.address())
            .step_by(9)
            .collect()
    };
    let refused = names(&mut symbolizer, &id, &addresses);
    assert_eq!(refused[0], Resolved::Unknown(Reason::BinaryRefused));
    assert!(matches!(
        keeper(&bench, "keeper").attempt(&key(&id)).unwrap(),
        Outcome::Made { .. }
    ));
    let found = names(&mut symbolizer, &id, &addresses);
    let named = found
        .iter()
        .filter(|name| matches!(name, Resolved::Symbols(_)))
        .count();
    assert_eq!(named, addresses.len());
}

/// Checks that a damaged symbol file which a symbolizer has met is made anew, and then used by the same symbolizer.
#[test]
fn a_damaged_symbol_file_is_made_anew() {
    let mut bench = Bench::new();
    let Some((id, addresses)) = shop(&mut bench) else {
        return;
    };
    let mut first = keeper(&bench, "keeper");
    first.attempt(&key(&id)).unwrap();
    let good = fs::read(symbols_of(&bench, &id)).unwrap();
    let (hints, hinted) = std::sync::mpsc::sync_channel(8);
    let mut settings = bench.settings(quick());
    settings.hints = Some(hints);
    let mut symbolizer = Symbolizer::new(settings).unwrap();
    fs::write(symbols_of(&bench, &id), &good[..good.len() / 2]).unwrap();
    names(&mut symbolizer, &id, &addresses[..10]);
    let hint = hinted.try_recv().unwrap();
    assert_eq!(hint, Hint::Damaged(key(&id)));
    let (again, heard) = std::sync::mpsc::sync_channel(8);
    // Whoever calls a whole file damaged is not believed.
    again.send(hint).unwrap();
    again.send(Hint::Damaged(key(&id))).unwrap();
    drop(again);
    first.run(&heard, || false);
    assert_eq!(fs::read(symbols_of(&bench, &id)).unwrap(), good);
    let counts = first.counts();
    assert_eq!(counts.repaired.load(std::sync::atomic::Ordering::Relaxed), 1);
    names(&mut symbolizer, &id, &addresses);
    assert_eq!(symbolizer.telemetry().file_lookups, addresses.len() as u64);
}

/// Checks that an attempt which fails for a reason that the binary is not to blame for leaves no claim: the next keeper need
/// not wait until it is taken for dead.
#[test]
fn a_keeper_without_a_worker_leaves_no_claim() {
    let mut bench = Bench::new();
    let Some((id, _)) = shop(&mut bench) else { return };
    let store = Store::in_folder(bench.path("store")).unwrap();
    let converter = Converter {
        worker: vec!["/nonexistent/worker".into()],
        debug_folders: Vec::new(),
        limits: ConvertLimits::default(),
    };
    let mut broken = Keeper::new(
        Binaries::of_folder(store),
        converter,
        bench.path("broken"),
        "broken".to_owned(),
    )
    .unwrap();
    assert!(broken.attempt(&key(&id)).is_err());
    assert_eq!(claims_of(&bench, &id), Vec::<String>::new());
    assert!(matches!(
        keeper(&bench, "keeper").attempt(&key(&id)).unwrap(),
        Outcome::Made { .. }
    ));
}

/// Checks that a crowd of hints does not keep a binary waiting that a scan alone finds.
#[test]
fn hints_do_not_starve_the_scan() {
    let mut bench = Bench::new();
    let Some((id, _)) = shop(&mut bench) else { return };
    let (hints, hinted) = std::sync::mpsc::sync_channel(300);
    for number in 0..300_u16 {
        let unknown = BuildId::new(&[&[7; 8][..], &number.to_be_bytes()].concat()).unwrap();
        hints.send(Hint::Convert(key(&unknown))).unwrap();
    }
    let mut keeper = keeper(&bench, "keeper");
    let turns = std::cell::Cell::new(0);
    // Ten turns: the hints alone would take three hundred.
    keeper.run(&hinted, || {
        turns.set(turns.get() + 1);
        turns.get() > 10
    });
    assert!(symbols_of(&bench, &id).is_file());
    drop(hints);
}

/// Checks that many files within a small budget answer right, and that the budget holds between batches.
#[test]
fn many_files_share_a_budget() {
    if !have("g++") || !have("nm") {
        return;
    }
    let mut bench = Bench::new();
    let own = std::env::current_exe().unwrap();
    let mut keeper = keeper(&bench, "keeper");
    let ids: Vec<BuildId> = (0..4).map(|_| bench.store_file(&own)).collect();
    for id in &ids {
        assert!(matches!(keeper.attempt(&key(id)).unwrap(), Outcome::Made { .. }));
    }
    let text = run("nm", &["-S", "--defined-only", path_text(&own)]);
    let addresses: Vec<u64> = text
        .lines()
        .filter(|line| line.contains(" t ") || line.contains(" T "))
        .filter_map(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok())
        .step_by(7)
        .collect();
    let mut unlimited = bench.symbolizer(Limits::default());
    let expected = names(&mut unlimited, &ids[0], &addresses);
    let budget = 1 << 20;
    let mut symbolizer = bench.symbolizer(Limits {
        file_bytes: budget,
        ..Limits::default()
    });
    for id in &ids {
        for (part, expected) in addresses.chunks(500).zip(expected.chunks(500)) {
            assert_eq!(names(&mut symbolizer, id, part), expected);
            let held = symbolizer.telemetry().file_bytes;
            assert!(held <= budget as u64 * 5 / 2, "{held}");
        }
    }
    let seen = symbolizer.telemetry();
    assert!(seen.file_evictions > 0 && seen.requests == 0, "{seen:?}");
}

fn path_text(path: &Path) -> &str {
    path.to_str().unwrap()
}
