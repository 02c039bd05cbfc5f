//! Signatures against OpenSSH itself: what `ssh-keygen` signs counts here, what is signed here counts there, and nothing else does.

// The lints make exceptions for test functions, not for what they share.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use strobe_signing::{
    Action, Namespace, PAYLOAD_BYTES_MAX, Refusal, SIGNATURE_BYTES_MAX, Signers, SigningError, SigningKey,
    sign_with_ssh_keygen,
};
use tempfile::TempDir;

const PAYLOAD: &[u8] = b"\x00profile checkout for 30 s\xff";

/// Makes a key pair with OpenSSH; returns the private key's path.
fn make_key(dir: &TempDir, name: &str, args: &[&str]) -> PathBuf {
    let path = dir.path().join(name);
    let made = Command::new("ssh-keygen")
        .args(["-q", "-C", name, "-f"])
        .arg(&path)
        .args(args)
        .status()
        .unwrap();
    assert!(made.success(), "ssh-keygen made no key");
    path
}

fn ed25519(dir: &TempDir, name: &str) -> PathBuf {
    make_key(dir, name, &["-t", "ed25519", "-N", ""])
}

fn public(key: &Path) -> String {
    fs::read_to_string(key.with_extension("pub"))
        .unwrap()
        .trim()
        .to_owned()
}

fn entry(principal: &str, key: &Path, rest: &str) -> String {
    format!(
        "[[signer]]\nprincipal = \"{principal}\"\nkey = \"{}\"\n{rest}\n",
        public(key)
    )
}

fn parse(text: &str) -> Result<Signers, SigningError> {
    Signers::parse(text, Path::new("signers.toml"))
}

/// Checks that what `ssh-keygen -Y sign` makes of a person's key is that person's signature here.
#[test]
fn a_signature_made_by_openssh_counts() {
    let dir = TempDir::new().unwrap();
    let key = ed25519(&dir, "ana");
    let signers = parse(&entry("ana@example.org", &key, "may = [\"profile\"]")).unwrap();
    let signature = sign_with_ssh_keygen(&key, Namespace::Request, PAYLOAD).unwrap();
    let verified = signers
        .verify(
            Namespace::Request,
            PAYLOAD,
            signature.as_bytes(),
            SystemTime::now(),
        )
        .unwrap();
    assert_eq!(verified.principal(), "ana@example.org");
    verified.may(Action::Profile, "checkout", "cpu").unwrap();
}

/// Checks that what a service signs is taken by `ssh-keygen -Y verify`: the format is OpenSSH's, not one of our own.
#[test]
fn a_signature_made_here_counts_for_openssh() {
    let dir = TempDir::new().unwrap();
    let key = ed25519(&dir, "trigger");
    let signature = SigningKey::load(&key)
        .unwrap()
        .sign(Namespace::Config, PAYLOAD)
        .unwrap();
    let (allowed, armored) = (dir.path().join("allowed"), dir.path().join("sig"));
    fs::write(&allowed, format!("trigger {}\n", public(&key))).unwrap();
    fs::write(&armored, signature).unwrap();
    let verify = |payload: &[u8]| {
        let mut child = Command::new("ssh-keygen")
            .args([
                "-Y",
                "verify",
                "-I",
                "trigger",
                "-n",
                Namespace::Config.as_str(),
                "-f",
            ])
            .arg(&allowed)
            .arg("-s")
            .arg(&armored)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(payload).unwrap();
        child.wait().unwrap().success()
    };
    assert!(verify(PAYLOAD));
    assert!(!verify(b"something else"));
}

/// Checks that a signature for one purpose, by a stranger's key, by nobody, or over other bytes counts for nothing, and says why.
#[test]
fn every_other_signature_is_refused_with_its_reason() {
    let dir = TempDir::new().unwrap();
    let (ana, eve) = (ed25519(&dir, "ana"), ed25519(&dir, "eve"));
    let signers = parse(&entry("ana", &ana, "may = [\"profile\"]")).unwrap();
    let sign = |key: &Path, namespace| SigningKey::load(key).unwrap().sign(namespace, PAYLOAD).unwrap();
    let refusal = |payload: &[u8], signature: &str| {
        signers
            .verify(
                Namespace::Request,
                payload,
                signature.as_bytes(),
                SystemTime::now(),
            )
            .unwrap_err()
    };
    let good = sign(&ana, Namespace::Request);

    let by_eve = refusal(PAYLOAD, &sign(&eve, Namespace::Request));
    assert!(
        matches!(&by_eve, Refusal::UnknownKey { fingerprint } if fingerprint.starts_with("SHA256:")),
        "{by_eve}"
    );
    assert_eq!(
        refusal(PAYLOAD, &sign(&ana, Namespace::Config)),
        Refusal::Namespace {
            found: "config@strobe".into(),
            wanted: "request@strobe"
        }
    );
    assert_eq!(
        refusal(b"other bytes", &good),
        Refusal::Forged {
            principal: "ana".into()
        }
    );
    assert_eq!(refusal(PAYLOAD, ""), Refusal::Unsigned);
    assert_eq!(
        refusal(PAYLOAD, "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END"),
        Refusal::Malformed
    );
    let long = "A".repeat(SIGNATURE_BYTES_MAX + 1);
    assert_eq!(refusal(PAYLOAD, &long).reason(), "oversized");
    assert_eq!(
        refusal(&vec![0; PAYLOAD_BYTES_MAX + 1], &good).reason(),
        "oversized"
    );
    let none = Signers::none("signers.toml is absent");
    let closed = none
        .verify(Namespace::Request, PAYLOAD, good.as_bytes(), SystemTime::now())
        .unwrap_err();
    assert_eq!(
        closed.to_string(),
        "this host takes no requests: signers.toml is absent"
    );
}

/// Checks that an entry counts for its actions, services and profilers alone, that entries of one key add up, and that each ends.
#[test]
fn a_signer_may_do_what_the_entries_say_and_no_more() {
    let dir = TempDir::new().unwrap();
    let key = ed25519(&dir, "ana");
    let text = entry(
        "ana",
        &key,
        "may = [\"profile\"]\nservices = [\"checkout*\"]\nprofilers = [\"cpu\", \"page-*\"]",
    ) + &entry(
        "ana",
        &key,
        "may = [\"cancel\"]\nvalid_until = \"2030-01-01T00:00:00Z\"",
    );
    let signers = parse(&text).unwrap();
    let signature = SigningKey::load(&key)
        .unwrap()
        .sign(Namespace::Request, PAYLOAD)
        .unwrap();
    let at = |now| {
        signers
            .verify(Namespace::Request, PAYLOAD, signature.as_bytes(), now)
            .unwrap()
    };
    let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let after = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);

    let ana = at(before);
    assert!(ana.may(Action::Profile, "checkout-eu", "page-faults").is_ok());
    assert!(ana.may(Action::Cancel, "search", "cpu").is_ok());
    for (action, service, profiler) in [
        (Action::Profile, "search", "cpu"),
        (Action::Profile, "checkout", "data-watch"),
        (Action::Profile, "*", "cpu"),
        (Action::Override, "checkout", "cpu"),
        (Action::Configure, "checkout", "cpu"),
        (Action::Ring, "checkout", "cpu"),
        (Action::Trigger, "checkout", "cpu"),
    ] {
        assert_eq!(
            ana.may(action, service, profiler).unwrap_err().reason(),
            "not_granted"
        );
    }
    assert!(
        at(after).may(Action::Cancel, "search", "cpu").is_err(),
        "the second entry is over"
    );
    assert!(
        at(after).may(Action::Profile, "checkout", "cpu").is_ok(),
        "the first has no end"
    );
}

/// Checks that a key whose only entry is over is refused as expired.
#[test]
fn an_expired_signer_is_refused() {
    let dir = TempDir::new().unwrap();
    let key = ed25519(&dir, "ana");
    let signers = parse(&entry(
        "ana",
        &key,
        "may = [\"profile\"]\nvalid_until = \"2020-01-01T00:00:00Z\"",
    ))
    .unwrap();
    let signature = SigningKey::load(&key)
        .unwrap()
        .sign(Namespace::Request, PAYLOAD)
        .unwrap();
    let refused = signers
        .verify(
            Namespace::Request,
            PAYLOAD,
            signature.as_bytes(),
            SystemTime::now(),
        )
        .unwrap_err();
    assert_eq!(
        refused,
        Refusal::Expired {
            principal: "ana".into()
        }
    );
}

/// Checks that each mistake in the file is named with its place and its remedy, and that none of them opens the host.
#[test]
fn a_mistake_in_the_file_is_named() {
    let dir = TempDir::new().unwrap();
    let (ana, rsa) = (
        ed25519(&dir, "ana"),
        make_key(&dir, "rsa", &["-t", "rsa", "-b", "2048", "-N", ""]),
    );
    let may = "may = [\"profile\"]";
    for (text, says) in [
        (entry("ana", &ana, "may = []"), "`may` is empty"),
        (entry("ana", &ana, "may = [\"root\"]"), "unknown variant `root`"),
        (entry("ana", &ana, ""), "missing field `may`"),
        (entry("", &ana, may), "`principal` is empty"),
        (entry("rsa", &rsa, may), "ssh-keygen -t ed25519"),
        (
            entry("ana", &ana, &format!("{may}\nservices = [\"a[\"]")),
            "`a[` is no pattern",
        ),
        (
            entry("ana", &ana, &format!("{may}\nservices = []")),
            "`services` is empty",
        ),
        (
            entry("ana", &ana, &format!("{may}\nvalid_until = \"soon\"")),
            "`soon` is no time",
        ),
        (
            entry("ana", &ana, &format!("{may}\nservice = \"a\"")),
            "unknown field `service`",
        ),
        (
            entry("ana", &ana, may) + &entry("bob", &ana, may),
            "`ana` and `bob` have the same key",
        ),
        (
            "[[signer]]\nprincipal = \"x\"\nkey = \"x\"\nmay = [\"profile\"]".into(),
            "the line of a .pub file",
        ),
    ] {
        let message = parse(&text).unwrap_err().to_string();
        assert!(message.contains(says), "{message}\n  does not say: {says}");
    }
    let empty = parse("").unwrap();
    let refused = empty
        .verify(Namespace::Request, PAYLOAD, b"x", SystemTime::now())
        .unwrap_err();
    assert_eq!(refused, Refusal::Closed("signers.toml names no signer".into()));
}

/// Checks that a file that others may write, and a key that others may read, are not used.
#[test]
fn files_that_are_open_to_others_are_not_used() {
    let dir = TempDir::new().unwrap();
    let key = ed25519(&dir, "ana");
    let file = dir.path().join("signers.toml");
    fs::write(&file, entry("ana", &key, "may = [\"profile\"]")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(Signers::load(&file).unwrap().principals().count(), 1);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
    assert!(
        Signers::load(&file)
            .unwrap_err()
            .to_string()
            .contains("chmod go-w")
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(
        SigningKey::load(&key)
            .unwrap_err()
            .to_string()
            .contains("chmod go=")
    );
}

/// Checks that a key with a passphrase is refused for a service, and that nothing of a key's file is in any message.
#[test]
fn a_key_with_a_passphrase_is_no_service_key_and_no_message_shows_a_key() {
    let dir = TempDir::new().unwrap();
    let locked = make_key(&dir, "locked", &["-t", "ed25519", "-N", "correct horse"]);
    assert!(
        SigningKey::load(&locked)
            .unwrap_err()
            .to_string()
            .contains("it has a passphrase")
    );
    let key = ed25519(&dir, "ana");
    let secret: String = fs::read_to_string(&key)
        .unwrap()
        .lines()
        .nth(3)
        .unwrap()
        .to_owned();
    assert!(!format!("{:?}", SigningKey::load(&key).unwrap()).contains(&secret));
    let torn = dir.path().join("torn");
    fs::write(
        &torn,
        fs::read_to_string(&key).unwrap().replace("BEGIN", "BEGINN"),
    )
    .unwrap();
    fs::set_permissions(&torn, fs::Permissions::from_mode(0o600)).unwrap();
    let message = format!("{:?}", SigningKey::load(&torn).unwrap_err());
    assert!(
        !message.contains(&secret) && message.contains("no private key"),
        "{message}"
    );
}

/// Checks that a person's signing that fails says what OpenSSH says.
#[test]
fn a_missing_key_is_named() {
    let message = sign_with_ssh_keygen(Path::new("/nonexistent/key"), Namespace::Request, PAYLOAD)
        .unwrap_err()
        .to_string();
    assert!(message.contains("/nonexistent/key"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Checks that a signature counts over exactly its own bytes: one changed bit in the payload or one changed byte in the signature
    /// ends in a refusal, never in a panic.
    #[test]
    fn a_changed_bit_counts_for_nothing(
        payload in prop::collection::vec(any::<u8>(), 1..200),
        bit in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        use std::sync::OnceLock;
        static KEY: OnceLock<(TempDir, SigningKey, Signers)> = OnceLock::new();
        let (_dir, key, signers) = KEY.get_or_init(|| {
            let dir = TempDir::new().unwrap();
            let path = ed25519(&dir, "ana");
            let signers = parse(&entry("ana", &path, "may = [\"profile\"]")).unwrap();
            let key = SigningKey::load(&path).unwrap();
            (dir, key, signers)
        });
        let signature = key.sign(Namespace::Request, &payload).unwrap();
        let count = |payload: &[u8], signature: &[u8]| {
            signers.verify(Namespace::Request, payload, signature, SystemTime::now()).is_ok()
        };
        prop_assert!(count(&payload, signature.as_bytes()));
        let mut other = payload.clone();
        let bit = bit.index(payload.len() * 8);
        other[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!count(&other, signature.as_bytes()));
        let mut torn = signature.clone().into_bytes();
        let at = at.index(torn.len());
        prop_assume!(!torn[at].is_ascii_whitespace() && torn[at] != byte && !byte.is_ascii_whitespace());
        torn[at] = byte;
        prop_assert!(!count(&payload, &torn), "taken: {}", String::from_utf8_lossy(&torn));
    }
}
