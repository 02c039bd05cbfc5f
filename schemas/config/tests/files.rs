//! Files as people write them: what they mean, and what is said where they mean nothing.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

use proptest::prelude::*;
use strobe_config::{ConfigError, Fleet, Pattern};
use strobe_event::ConfigFile;
use strobe_sampling::config::{LimitConfig, LimitsConfig};

fn file(name: &str, text: &str) -> ConfigFile {
    ConfigFile {
        name: name.into(),
        text: text.into(),
    }
}

fn read(text: &str) -> Fleet {
    Fleet::read(&[file("a.toml", text)]).unwrap()
}

fn errors(text: &str) -> Vec<String> {
    let errors = Fleet::read(&[file("a.toml", text)]).unwrap_err();
    errors.iter().map(ConfigError::to_string).collect()
}

/// Checks that one line is enough for a team, a service, a profiler and 30,000 samples per hour.
#[test]
fn one_line_is_enough() {
    let fleet = read(
        r#"profile = [{ team = "payments", service = "checkout", profiler = "sched-switches", samples_per_hour = 30_000 }]"#,
    );
    let rule = fleet.rule("checkout", "sched-switches").unwrap();
    assert_eq!(
        (rule.team.as_str(), rule.desired.samples_per_hour),
        ("payments", 30_000.0)
    );
    assert_eq!(rule.place, ("a.toml".into(), 1));
    assert_eq!(fleet.limits().team_of["checkout"], "payments");
    assert_eq!(fleet.rule("checkout", "cpu"), None);
    assert_eq!(fleet.rule("ledger", "sched-switches"), None);
}

/// Checks that of several entries the most exact counts, in whichever order they stand.
#[test]
fn the_most_exact_counts() {
    let entries = [("*", 1.0), ("check*", 2.0), ("checkout*", 3.0), ("checkout", 4.0)];
    let expected = [
        ("mail", 1.0),
        ("checks", 2.0),
        ("checkout-eu", 3.0),
        ("checkout", 4.0),
    ];
    for turn in 0..entries.len() {
        let mut turned = entries;
        turned.rotate_left(turn);
        let entry = |(service, rate): (&str, f64)| {
            format!("[[profile]]\nservice = \"{service}\"\nsamples_per_hour = {rate}\n")
        };
        let fleet = read(&turned.map(entry).concat());
        for (service, rate) in expected {
            assert_eq!(
                fleet.rule(service, "cpu").unwrap().desired.samples_per_hour,
                rate,
                "{service} {turn}"
            );
        }
    }
    assert_eq!(Pattern::Beginning("check".into()).to_string(), "check*");
}

/// Checks that each thing that is wrong is named with its file and line, an unknown key with the nearest, and that all of it is said
/// at once.
#[test]
fn what_is_wrong_is_named_with_its_line() {
    let cases = [
        (
            "\n[[profile]]\nservice = \"a\"\nsample_per_hour = 1\n",
            ":4: ",
            "did you mean `samples_per_hour`",
        ),
        ("\nprofiles = []\n", ":2: ", "did you mean `profile`"),
        ("[[profile]]\nservice = \"a\"\n", ":1: ", "samples_per_hour"),
        (
            "\n\n[[profile]]\nservice = \"a*b\"\nsamples_per_hour = 1\n",
            ":3: ",
            "at its end alone",
        ),
        (
            "[[profile]]\nservice = \"a\"\nsamples_per_hour = -1\n",
            ":1: ",
            "samples per hour",
        ),
        (
            "[[profile]]\nservice = \"a\"\nsamples_per_hour = nan\n",
            ":1: ",
            "samples per hour",
        ),
        (
            "[[profile]]\nservice = \"a\"\nsamples_per_hour = 1\nrun_max = \"99h\"\n",
            ":1: ",
            "planned_max_us",
        ),
        (
            "[[profile]]\nservice = \"a\"\nsamples_per_hour = 1\nrun_max = \"soon\"\n",
            ":4: ",
            "soon",
        ),
        (
            "[[profile]]\nservice = \"\"\nsamples_per_hour = 1\n",
            ":1: ",
            "`service` must be 1 to",
        ),
        ("[[limit]]\nservice = \"a\"\n", ":1: ", "it limits nothing"),
        (
            "[[limit]]\nservice = \"a\"\nfleet = true\nsamples_per_hour = 5\n",
            ":1: ",
            "one thing alone",
        ),
        (
            "[[limit]]\nfleet = true\nsamples_per_hour = 0\n",
            ":1: ",
            "samples per hour",
        ),
        (
            "[[lift]]\nservice = \"a\"\nuntil = \"tomorrow\"\nwhy = \"launch\"\n",
            ":1: ",
            "is no moment",
        ),
        (
            "[[lift]]\nservice = \"a\"\nuntil = \"2030-01-01T00:00:00Z\"\nwhy = \" \"\n",
            ":1: ",
            "say why",
        ),
        ("service = ", ":1: ", "string"),
    ];
    for (text, line, said) in cases {
        let errors = errors(text);
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        assert!(
            errors[0].starts_with(&format!("a.toml{line}")) && errors[0].contains(said),
            "{text}: {errors:?}"
        );
    }
    let several = "[[profile]]\nservice = \"\"\nsamples_per_hour = 1\n[[limit]]\nservice = \"a\"\n";
    assert_eq!(errors(several).len(), 2);
}

/// Checks that what is said twice is an error that names the other place, also across files, and that a service has one team.
#[test]
fn what_is_said_twice_is_an_error() {
    let one = "team = \"a\"\n[[profile]]\nservice = \"s\"\nsamples_per_hour = 1\n";
    let two = "[[profile]]\nservice = \"s\"\nsamples_per_hour = 2\n";
    let errors = Fleet::read(&[file("x.toml", one), file("y.toml", two)]).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "y.toml:1: cpu of service s is said already at x.toml:2: leave one of them"
    );
    let other_team =
        "team = \"b\"\n[[profile]]\nservice = \"s\"\nprofiler = \"forks\"\nsamples_per_hour = 2\n";
    let errors = Fleet::read(&[file("x.toml", one), file("y.toml", other_team)]).unwrap_err();
    assert!(
        errors[0].to_string().contains("team a elsewhere, and of b here"),
        "{errors:?}"
    );
}

/// Checks that limits of entries lie over those that were set otherwise, a number that is not said staying as it was, and that a
/// lift alone takes no limit away.
#[test]
fn limits_lie_over_those_that_were_set() {
    let samples = |samples: f64| LimitConfig {
        samples: Some(samples),
        ..LimitConfig::default()
    };
    let mut base = LimitsConfig {
        fleet: samples(9.0),
        service: samples(8.0),
        ..LimitsConfig::default()
    };
    base.services.insert("a".into(), samples(7.0));
    base.services.insert("b".into(), samples(6.0));
    let fleet = read(
        "[[limit]]\nservice = \"b\"\nsamples_per_hour = 60\n[[limit]]\neach = true\nbus_bytes_per_hour = 5\n[[lift]]\nservice = \
         \"a\"\nuntil = \"1970-01-01T00:00:07Z\"\nwhy = \"launch\"\n",
    );
    let limits = fleet.limits_over(&base);
    assert_eq!(limits.fleet, samples(9.0));
    assert_eq!(
        (limits.service.samples, limits.service.bus_bytes),
        (Some(8.0), Some(5.0))
    );
    assert_eq!(
        (limits.services["a"].samples, limits.services["a"].lifted_until_us),
        (Some(7.0), 7_000_000)
    );
    assert_eq!(
        (limits.services["b"].samples, limits.services["b"].lifted_until_us),
        (Some(60.0), 0)
    );
    assert_eq!(Fleet::default().limits_over(&base), base);
}

/// Checks that what people compare does not depend on files and order, and does change with each number.
#[test]
fn sentences_are_compared() {
    let a = "[[profile]]\nservice = \"a\"\nsamples_per_hour = 1\n";
    let b = "[[profile]]\nservice = \"b\"\nsamples_per_hour = 2\n";
    let together = read(&format!("{a}{b}")).sentences();
    let apart = Fleet::read(&[file("2.toml", b), file("1.toml", a)]).unwrap();
    assert_eq!(together, apart.sentences());
    assert_eq!(together[0], "service a, profiler cpu: 1 samples per hour");
    assert_ne!(together, read(&format!("{a}{}", b.replace('2', "3"))).sentences());
    let bounded = read("[[profile]]\nservice = \"a\"\nsamples_per_hour = 1\nrun_max = \"5s\"\n");
    assert!(bounded.sentences()[0].contains("runs of at most (s) 5"));
}

proptest! {
    /// Checks that no text ends the program, and that what is refused says where.
    #[test]
    fn any_text_is_answered(text in ".{0,200}", keys in prop::collection::vec("(profile|limit|lift|service|until) = .{0,9}", 0..9)) {
        for text in [text, keys.join("\n"), format!("[[profile]]\n{}", keys.join("\n"))] {
            if let Err(errors) = Fleet::read(&[file("a.toml", &text)]) {
                prop_assert!(errors.iter().all(|error| error.to_string().starts_with("a.toml:")));
            }
        }
    }
}

/// Checks that the page that describes the files shows ones that can be read: each block of TOML but those of signers.
#[test]
fn the_page_shows_files_that_can_be_read() {
    let page = include_str!("../../../docs/configuration.md");
    let blocks: Vec<&str> = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    let files: Vec<&&str> = blocks
        .iter()
        .filter(|block| !block.contains("[[signer]]"))
        .collect();
    assert!(files.len() >= 2, "{} blocks", files.len());
    for text in files {
        assert!(!read(text).sentences().is_empty(), "{text}");
    }
}
