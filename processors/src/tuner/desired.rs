//! What is desired: the signed configuration of the fleet, and where that says nothing what was set by `strobe sampling`.
//!
//! A configuration that is not signed by whoever may, that is older than the one in force, has expired or says nothing sensible
//! changes nothing, and is audited and counted. To take one away, another is applied: an empty value is signed by nobody.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strobe_config::{InForce, Refused, open};
use strobe_event::config::CONFIG_KEY;
use strobe_event::{AuditAction, AuditId, AuditOutcome, AuditRecord, SignedConfig, codec};
use strobe_sampling::config::{LimitsConfig, ProfilerConfig, SamplingConfig};
use strobe_signing::Signers;

/// What is desired, and who may say so.
pub struct Desires {
    signers: Arc<Signers>,
    base: SamplingConfig,
    in_force: Option<InForce>,
    /// When the newest that was in force was made, microseconds since 1970: what it had replaced does not follow it once it has expired.
    newest_us: u64,
    limits: LimitsConfig,
    audits: Vec<AuditRecord>,
    refused: u64,
}

impl Desires {
    /// Returns one in which nothing is desired.
    pub fn new(signers: Arc<Signers>) -> Self {
        Self {
            signers,
            base: SamplingConfig::default(),
            in_force: None,
            newest_us: 0,
            limits: LimitsConfig::default(),
            audits: Vec::new(),
            refused: 0,
        }
    }

    /// Takes in what was set by `strobe sampling`.
    pub fn set(&mut self, base: SamplingConfig) {
        self.base = base;
        self.layer();
    }

    /// Takes in what stands under the configuration's key, at `place` of the topic, since `taken_us` by the broker's clock.
    pub fn take(&mut self, place: &str, value: Option<&[u8]>, taken_us: u64, now: SystemTime) {
        let opened = match value {
            None => Err(refused("unsigned", "nobody has signed that it is taken away")),
            Some(value) => match codec::decode_framed::<SignedConfig>(value) {
                Ok(signed) => open(&signed, &self.signers, self.newest_us, now),
                Err(error) if error.is_oversized() => Err(refused("oversized", &error.to_string())),
                Err(error) => Err(refused("undecodable", &error.to_string())),
            },
        };
        match opened {
            Ok(in_force) => {
                tracing::info!(id = %in_force.set.id, by = in_force.principal, entries = in_force.fleet.rules().len(),
                    "a configuration is in force");
                let record = AuditRecord {
                    // Whoever reads it again says the same.
                    id: AuditId::of(&[b"tuner", &in_force.set.id.0]),
                    time_us: in_force.set.made_us,
                    who: in_force.principal.clone(),
                    proved: true,
                    outcome: AuditOutcome::Allowed as u8,
                    detail: format!(
                        "{} entries of {} files",
                        in_force.fleet.rules().len(),
                        in_force.set.files.len()
                    ),
                    why: in_force.set.why.clone(),
                    ..record(&in_force.set.id.to_string())
                };
                self.audits.push(record);
                self.newest_us = in_force.set.made_us;
                self.in_force = Some(in_force);
            }
            Err(refused) => {
                tracing::warn!(
                    why = refused.why,
                    "a configuration is refused; what was in force stays so"
                );
                self.refused += 1;
                self.audits.push(AuditRecord {
                    id: AuditId::of(&[b"tuner", place.as_bytes(), refused.reason.as_bytes()]),
                    // Whoever reads it again says the same at the same time.
                    time_us: taken_us,
                    proved: refused.principal.is_some(),
                    who: refused.principal.unwrap_or_default(),
                    outcome: AuditOutcome::Refused as u8,
                    reason: refused.reason.to_owned(),
                    detail: codec::clip(&refused.why).to_owned(),
                    ..record(CONFIG_KEY)
                });
            }
        }
        self.layer();
    }

    /// Takes a configuration out of force whose time is over.
    pub fn expire(&mut self, now: SystemTime) {
        let now_us = us(now);
        let Some(over) = self.in_force.take_if(|in_force| in_force.set.until_us <= now_us) else {
            return;
        };
        tracing::warn!(id = %over.set.id, "the configuration has expired: only what `strobe sampling` set is in force");
        self.audits.push(AuditRecord {
            id: AuditId::of(&[b"tuner expired", &over.set.id.0]),
            time_us: over.set.until_us,
            who: over.principal,
            proved: true,
            outcome: AuditOutcome::Ended as u8,
            reason: "expired".into(),
            ..record(&over.set.id.to_string())
        });
        self.layer();
    }

    fn layer(&mut self) {
        self.limits = match &self.in_force {
            Some(in_force) => in_force.fleet.limits_over(&self.base.limits),
            None => self.base.limits.clone(),
        };
    }

    /// Returns what is desired of a service by a profiler.
    pub fn of(&self, service: &str, profiler: &str) -> Option<ProfilerConfig> {
        let base = self.base.profilers.get(profiler);
        let rule = self
            .in_force
            .as_ref()
            .and_then(|in_force| in_force.fleet.rule(service, profiler));
        match rule {
            Some(rule) => Some(self.with_slots(&rule.desired)),
            None => base.cloned(),
        }
    }

    /// Returns what is desired of some service by a profiler: slots are as long for all of them.
    pub fn of_any(&self, profiler: &str) -> Option<ProfilerConfig> {
        let base = self.base.profilers.get(profiler).cloned();
        base.or_else(|| {
            let mut rules = self.in_force.iter().flat_map(|in_force| in_force.fleet.rules());
            let rule = rules.find(|rule| rule.profiler == profiler)?;
            Some(self.with_slots(&rule.desired))
        })
    }

    /// Returns the length of slots, seconds, where it was set.
    pub fn slot_s(&self) -> Option<f64> {
        self.base
            .profilers
            .values()
            .next()
            .map(|profiler| profiler.slot_s)
    }

    fn with_slots(&self, desired: &ProfilerConfig) -> ProfilerConfig {
        let slot_s = self.slot_s().unwrap_or(desired.slot_s);
        ProfilerConfig {
            slot_s,
            // Files do not say how long slots are: a run that would be longer is as long as one.
            run_max_s: desired.run_max_s.min(slot_s),
            run_min_s: desired.run_min_s.min(slot_s),
            ..desired.clone()
        }
    }

    /// Returns the limits in force.
    pub fn limits(&self) -> &LimitsConfig {
        &self.limits
    }

    /// Returns what is to be said for the audit, and how many configurations were refused since it was asked last.
    pub fn take_said(&mut self) -> (Vec<AuditRecord>, u64) {
        (
            std::mem::take(&mut self.audits),
            std::mem::take(&mut self.refused),
        )
    }
}

fn us(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_micros() as u64
}

fn refused(reason: &'static str, why: &str) -> Refused {
    Refused {
        reason,
        principal: None,
        why: why.to_owned(),
    }
}

fn record(subject: &str) -> AuditRecord {
    AuditRecord {
        reporter: "tuner".into(),
        action: AuditAction::Configure as u8,
        subject: subject.to_owned(),
        ..AuditRecord::default()
    }
}

#[cfg(test)]
mod tests {
    use ssh_key::private::Ed25519Keypair;
    use ssh_key::{HashAlg, LineEnding, PrivateKey};
    use strobe_event::{ConfigFile, ConfigId, ConfigSet};
    use strobe_signing::Namespace;

    use super::*;

    const NOW_US: u64 = 1_800_000_000_000_000;

    fn at(us: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(us)
    }

    fn desires() -> Desires {
        let public = PrivateKey::from(Ed25519Keypair::from_seed(&[1; 32]))
            .public_key()
            .to_openssh()
            .unwrap();
        let text = format!("[[signer]]\nprincipal = \"ann\"\nkey = \"{public}\"\nmay = [\"configure\"]\n");
        let signers = Signers::parse(&text, std::path::Path::new("signers.toml")).unwrap();
        let mut desires = Desires::new(Arc::new(signers));
        let base = br#"{"profilers": {"cpu": {"samples_per_hour": 1000, "slot_s": 30, "run_max_s": 10}}, "limits": {"fleet": {"samples": 9}}}"#;
        desires.set(SamplingConfig::from_json(base).unwrap());
        desires
    }

    fn message(seed: u8, made_us: u64, rate: u32) -> Vec<u8> {
        let set = ConfigSet {
            id: ConfigId([seed; 16]),
            made_us,
            until_us: NOW_US + 60_000_000,
            files: vec![ConfigFile {
                name: "a.toml".into(),
                text: format!("[[profile]]\nservice = \"checkout\"\nsamples_per_hour = {rate}\n"),
            }],
            ..ConfigSet::default()
        };
        let payload = codec::encode_framed(&set).unwrap();
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32]));
        let signature = key.sign(Namespace::Config.as_str(), HashAlg::Sha512, &payload);
        let signature = signature.unwrap().to_pem(LineEnding::LF).unwrap().into_bytes();
        codec::encode_framed(&SignedConfig { payload, signature }).unwrap()
    }

    fn rates(desires: &Desires) -> [Option<f64>; 2] {
        ["checkout", "ledger"].map(|service| desires.of(service, "cpu").map(|of| of.samples_per_hour))
    }

    /// Checks that what a newer configuration had replaced does not come back when that has expired, whoever puts it on the bus again.
    #[test]
    fn an_older_configuration_does_not_follow_a_newer_one_that_expired() {
        let mut desires = desires();
        let older = message(1, NOW_US - 1_000_000, 50_000);
        desires.take("p@1", Some(&older), NOW_US, at(NOW_US));
        desires.take("p@2", Some(&message(1, NOW_US, 30_000)), NOW_US, at(NOW_US));
        desires.expire(at(NOW_US + 60_000_000));
        assert_eq!(rates(&desires), [Some(1_000.0); 2]);
        desires.take("p@3", Some(&older), NOW_US, at(NOW_US));
        assert_eq!(rates(&desires), [Some(1_000.0); 2]);
    }

    /// Checks that a signed configuration counts for the services that it names and what was set for the others, that slots stay as
    /// long as they are, and that all is as before once it has expired.
    #[test]
    fn a_signed_configuration_counts_until_it_expires() {
        let mut desires = desires();
        assert_eq!(rates(&desires), [Some(1_000.0); 2]);
        desires.take("p@1", Some(&message(1, NOW_US, 30_000)), NOW_US, at(NOW_US));
        assert_eq!(rates(&desires), [Some(30_000.0), Some(1_000.0)]);
        assert_eq!(desires.of("checkout", "cpu").unwrap().slot_s, 30.0);
        assert_eq!(desires.limits().fleet.samples, Some(9.0));
        let (records, refused) = desires.take_said();
        assert_eq!((records.len(), refused), (1, 0));
        assert!(records[0].proved && records[0].who == "ann");
        // Read again after a restart, it is said again under the same name.
        let name = records[0].id;
        desires.take("p@1", Some(&message(1, NOW_US, 30_000)), NOW_US, at(NOW_US));
        assert_eq!(desires.take_said().0[0].id, name);
        desires.expire(at(NOW_US + 59_000_000));
        assert_eq!(rates(&desires)[0], Some(30_000.0));
        desires.expire(at(NOW_US + 60_000_000));
        assert_eq!(rates(&desires), [Some(1_000.0); 2]);
        assert_eq!(desires.take_said().0[0].reason, "expired");
    }

    /// Checks that what is unsigned, by a stranger, older, cut off, oversized or taken away leaves what was in force, and is counted and
    /// audited each time.
    #[test]
    fn what_is_refused_leaves_the_old_in_force() {
        let mut desires = desires();
        desires.take("p@1", Some(&message(1, NOW_US, 30_000)), NOW_US, at(NOW_US));
        desires.take_said();
        let good = message(1, NOW_US + 1, 5);
        let mut oversized = Vec::new();
        codec::frame(codec::SCHEMA_ID_SIGNED_CONFIG, &mut oversized);
        oversized.extend_from_slice(&[0x80, 0x80, 0x80, 0x01]);
        oversized.resize(1 << 20, b'x');
        let cases: [(Option<&[u8]>, &str); 6] = [
            (None, "unsigned"),
            (Some(&message(2, NOW_US + 1, 5)), "unknown_key"),
            (Some(&message(1, NOW_US - 1, 5)), "replayed"),
            (Some(&good[..good.len() - 1]), "undecodable"),
            (Some(&oversized), "oversized"),
            (Some(b"{}"), "undecodable"),
        ];
        for (at_offset, (value, reason)) in cases.into_iter().enumerate() {
            desires.take(&format!("p@{at_offset}"), value, NOW_US, at(NOW_US));
            let (records, refused) = desires.take_said();
            assert_eq!((records[0].reason.as_str(), refused), (reason, 1));
            assert_eq!(rates(&desires), [Some(30_000.0), Some(1_000.0)], "{reason}");
        }
        desires.take("p@9", Some(&good), NOW_US, at(NOW_US));
        assert_eq!(rates(&desires)[0], Some(5.0));
    }
}
