//! Who may put a configuration in force, and when: by real signatures.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ssh_key::private::Ed25519Keypair;
use ssh_key::{HashAlg, LineEnding, PrivateKey};
use strobe_config::{InForce, Refused, open};
use strobe_event::{ConfigFile, ConfigId, ConfigSet, SignedConfig, codec};
use strobe_signing::{Namespace, Signers};

const NOW_US: u64 = 1_800_000_000_000_000;
const DAY_US: u64 = 86_400_000_000;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(NOW_US)
}

fn key(seed: u8) -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32]))
}

/// Returns signers: ann may configure and lift everything, bob the CPU profiler of checkout alone.
fn signers() -> Signers {
    let entry = |name: &str, seed: u8, more: &str| {
        let public = key(seed).public_key().to_openssh().unwrap();
        format!("[[signer]]\nprincipal = \"{name}\"\nkey = \"{public}\"\n{more}\n")
    };
    let text = [
        entry("ann", 1, "may = [\"configure\", \"override\"]"),
        entry(
            "bob",
            2,
            "may = [\"configure\"]\nservices = [\"checkout*\"]\nprofilers = [\"cpu\"]",
        ),
        entry("eve", 3, "may = [\"profile\"]"),
    ];
    Signers::parse(&text.concat(), Path::new("signers.toml")).unwrap()
}

fn set(text: &str) -> ConfigSet {
    ConfigSet {
        id: ConfigId([5; 16]),
        made_us: NOW_US - 1_000_000,
        until_us: NOW_US + DAY_US,
        by: "ann@laptop".into(),
        why: String::new(),
        files: vec![ConfigFile {
            name: "a.toml".into(),
            text: text.into(),
        }],
    }
}

fn signed_for(namespace: Namespace, set: &ConfigSet, seed: u8) -> SignedConfig {
    let payload = codec::encode_framed(set).unwrap();
    let signature = key(seed)
        .sign(namespace.as_str(), HashAlg::Sha512, &payload)
        .unwrap();
    SignedConfig {
        payload,
        signature: signature.to_pem(LineEnding::LF).unwrap().into_bytes(),
    }
}

fn signed(set: &ConfigSet, seed: u8) -> SignedConfig {
    signed_for(Namespace::Config, set, seed)
}

fn opened(signed: &SignedConfig, last_us: u64) -> Result<InForce, Refused> {
    open(signed, &signers(), last_us, now())
}

const CPU: &str = "[[profile]]\nservice = \"checkout\"\nsamples_per_hour = 30000\n";

/// Checks that what is signed by whoever may is in force with the name of who signed, also when it is read again.
#[test]
fn what_is_signed_by_who_may_is_in_force() {
    for (seed, who) in [(1, "ann"), (2, "bob")] {
        let set = set(CPU);
        for last_us in [0, set.made_us] {
            let in_force = opened(&signed(&set, seed), last_us).unwrap();
            assert_eq!((in_force.principal.as_str(), &in_force.set), (who, &set));
            assert!(in_force.fleet.rule("checkout", "cpu").is_some());
        }
    }
}

/// Checks that each configuration that is unsigned, forged, signed for something else, by a stranger, replayed, from the future,
/// expired, without end, or senseless is refused in one word.
#[test]
fn what_is_not_honest_is_refused() {
    let good = set(CPU);
    let with = |change: fn(&mut ConfigSet)| {
        let mut set = set(CPU);
        change(&mut set);
        signed(&set, 1)
    };
    let unsigned = SignedConfig {
        signature: Vec::new(),
        ..signed(&good, 1)
    };
    let mut forged = signed(&good, 1);
    *forged.payload.last_mut().unwrap() ^= 1;
    let garbage = SignedConfig {
        signature: b"hello".to_vec(),
        ..signed(&good, 1)
    };
    let cases = [
        (unsigned, 0, "unsigned"),
        (forged, 0, "forged"),
        (garbage, 0, "malformed"),
        (signed_for(Namespace::Request, &good, 1), 0, "namespace"),
        (signed(&good, 9), 0, "unknown_key"),
        (signed(&good, 3), 0, "not_granted"),
        (signed(&good, 1), NOW_US, "replayed"),
        (with(|set| set.made_us = NOW_US + DAY_US / 2), 0, "replayed"),
        (with(|set| set.until_us = NOW_US), 0, "expired"),
        (with(|set| set.until_us = u64::MAX), 0, "senseless"),
        (
            with(|set| set.files[0].text = "profiles = 1".into()),
            0,
            "senseless",
        ),
    ];
    for (signed, last_us, reason) in cases {
        let refused = opened(&signed, last_us).unwrap_err();
        assert_eq!(refused.reason, reason, "{refused:?}");
        assert!(!refused.why.is_empty());
    }
    let closed = open(&signed(&good, 1), &Signers::none("nobody may"), 0, now()).unwrap_err();
    assert_eq!((closed.reason, closed.principal), ("closed", None));
}

/// Checks that one entry too many refuses all of it: another service, another profiler, a limit of all, a lift.
#[test]
fn one_entry_too_many_refuses_all() {
    let lift = |days: u64| {
        let until = humantime_of(NOW_US + days * DAY_US);
        format!("[[lift]]\nservice = \"checkout\"\nuntil = \"{until}\"\nwhy = \"launch\"\n")
    };
    let more = [
        "[[profile]]\nservice = \"ledger\"\nsamples_per_hour = 1\n".to_owned(),
        "[[profile]]\nservice = \"*\"\nsamples_per_hour = 1\n".to_owned(),
        "[[profile]]\nservice = \"checkout\"\nprofiler = \"forks\"\nsamples_per_hour = 1\n".to_owned(),
        "[[limit]]\nfleet = true\nsamples_per_hour = 1\n".to_owned(),
        "[[limit]]\nteam = \"a\"\nsamples_per_hour = 1\n".to_owned(),
        lift(1),
    ];
    for more in more {
        let set = set(&format!("{CPU}{more}"));
        assert!(opened(&signed(&set, 1), 0).is_ok(), "{more}");
        let refused = opened(&signed(&set, 2), 0).unwrap_err();
        assert_eq!(
            (refused.reason, refused.principal.as_deref()),
            ("not_granted", Some("bob")),
            "{more}"
        );
    }
    let refused = opened(&signed(&set(&lift(30)), 1), 0).unwrap_err();
    assert!(
        refused.reason == "senseless" && refused.why.contains("7 days"),
        "{refused:?}"
    );
}

fn humantime_of(us: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_micros(us)).to_string()
}
