//! What declarations say, and which are refused.

use super::*;

/// Checks that every declaration that is compiled in is whole, and within its own limits.
#[test]
fn what_is_compiled_in_is_whole() {
    let profilers = Profilers::read(None).unwrap();
    assert_eq!(profilers.all().count(), BUILT_IN.len());
    for profiler in profilers.all() {
        assert!(!profiler.about.is_empty(), "{}", profiler.name);
        assert!(profiler.about.len() <= 80, "{}", profiler.name);
    }
}

/// Checks that an unknown key, an unknown word and an unknown profiler are refused, and the nearest named.
#[test]
fn what_is_unknown_names_the_nearest() {
    let good = BUILT_IN[0].1;
    let wrong_key = good.replace("symbolization", "symbolisation");
    let error = Profiler::parse(&wrong_key).unwrap_err();
    assert!(error.contains("did you mean `symbolization`?"), "{error}");
    let wrong_word = good.replace("nanoseconds", "nanosecond");
    let error = Profiler::parse(&wrong_word).unwrap_err();
    assert!(error.contains("did you mean `nanoseconds`?"), "{error}");
    let error = Profilers::read(None).unwrap().get("cpuu").unwrap_err();
    assert!(error.contains("did you mean `cpu`?"), "{error}");
}

/// Checks that what makes no sense is refused by name, and that limits bind whoever asks.
#[test]
fn nonsense_and_what_is_over_limits_is_refused() {
    let good = BUILT_IN[0].1;
    for (from, to, part) in [
        ("hz = 101", "hz = 0", "`rate`"),
        ("hz = 101", "period = 5", "`rate`"),
        ("hz = 101", "hz = 100000", "up to 1999 Hz"),
        ("name = \"cpu\"", "name = \"c p u\"", "`name`"),
        ("cost_us = 10", "cost_us = 0", "`cost_us`"),
        ("\"30s\"", "\"11m\"", "lasts"),
        ("\"10m\"", "\"2h\"", "duration_max"),
        (
            "{ software = \"cpu-clock\" }",
            "{ breakpoint = {} }",
            "give a `period`",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        let error = Profiler::parse(&good.replace(from, to)).unwrap_err();
        assert!(error.contains(part), "{to}: {error}");
    }
    let cpu = Profiler::parse(good).unwrap();
    let second = Duration::from_secs(1);
    assert!(cpu.check_ask(second, Rate::Hz(1_999)).is_ok());
    assert!(cpu.check_ask(second, Rate::Hz(2_000)).is_err());
    assert!(cpu.check_ask(second, Rate::Period(5)).is_err());
    assert!(cpu.check_ask(second / 2, Rate::Hz(101)).is_err());
}

/// Checks that a file of a folder takes the place of what is compiled in, and that a wrong one is named.
#[test]
fn a_folder_overrides_what_is_compiled_in() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cpu.toml");
    std::fs::write(&file, BUILT_IN[0].1.replace("hz = 101", "hz = 11")).unwrap();
    let profilers = Profilers::read(Some(folder.path())).unwrap();
    assert_eq!(profilers.get("cpu").unwrap().rate, Rate::Hz(11));
    std::fs::write(folder.path().join("other.toml"), BUILT_IN[0].1).unwrap();
    let error = Profilers::read(Some(folder.path())).unwrap_err().to_string();
    assert!(
        error.contains("other.toml") && error.contains("not as its file"),
        "{error}"
    );
}
