//! Requests: a profile that somebody asks for, from the question to the last word of each host.
//!
//! Three kinds of messages make up a request's life, all under its id. The asker writes a [`SignedRequest`]. The trigger, and
//! nobody else, writes [`RequestState`]s: which hosts it picked, and what became of each. Agents write [`HostReport`]s, which
//! the trigger turns into states. So a reader of the states alone knows all, and each host of a request ends in exactly one
//! final [`Phase`]: the first that the topic holds; whatever comes later is late, and says so.
//!
//! No clock but the broker's decides whether a request may still start. The trigger compares when the broker took the question
//! with when it took the host's word, and says in its answer how much time is left; the host measures that from the moment at
//! which it gave its word, which was earlier. A host that was asleep meanwhile finds its time used up.

mod phase;

use std::fmt;
use std::str::FromStr;

pub use phase::{Phase, Step};

use crate::identity::{NotHex128, parse_hex128};
use crate::run::{Cause, RunId};

/// Longest time to live: how far back an agent that starts has to read.
pub const WAIT_US_MAX: u64 = 3_600_000_000;
/// Longest run that can be asked for.
pub const DURATION_US_MAX: u64 = 3_600_000_000;
/// Shortest: below, a run is mostly its own start and end.
pub const DURATION_US_MIN: u64 = 1_000_000;
/// Most hosts of one request: each is a handful of messages.
pub const HOSTS_MAX: u32 = 10_000;
/// Longest names, of principals, services, hosts, regions and profilers: as the agent's.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest reason that somebody gives.
pub const WHY_BYTES_MAX: usize = 1_024;
/// Most arguments of a profiler.
pub const ARGUMENTS_MAX: usize = 16;
/// Highest frequency that can be asked for, samples per second and CPU: the kernel's own default limit is ten times that.
pub const FREQUENCY_HZ_MAX: f64 = 9_999.0;
/// Longest signed bytes: everything above at its longest, and room to grow.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 10;
/// Longest signature: one of SSH with the largest certificates is far below.
pub const SIGNATURE_BYTES_MAX: usize = 16 << 10;

/// 128 random bits that name a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub [u8; 16]);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({self})")
    }
}

impl FromStr for RequestId {
    type Err = NotHex128;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_hex128(text).map(Self)
    }
}

impl RequestId {
    /// Returns the name of its run on a host: always the same, so that what is said twice is one run.
    pub fn run_on(self, host: &str) -> RunId {
        let mut bytes = Vec::with_capacity(16 + host.len());
        bytes.extend_from_slice(&self.0);
        bytes.extend_from_slice(host.as_bytes());
        RunId(xxhash_rust::xxh3::xxh3_128(&bytes).to_be_bytes())
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Action {
    /// A profile.
    Profile = 1,
    /// The end of the request of that id.
    Cancel = 2,
}

impl Action {
    /// Returns the action that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Profile, Self::Cancel]
            .get(usize::from(code).checked_sub(1)?)
            .copied()
    }

    /// Returns the action's name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Profile => "profile",
            Self::Cancel => "cancel",
        }
    }
}

/// What somebody asks for. Its Avro bytes are what is signed, so that nobody has to write them anew to prove it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Its name; a cancellation has that of the request that it ends.
    pub id: RequestId,
    /// Code of an [`Action`].
    pub action: u8,
    /// Who asks, for people; who may is decided by the signature.
    pub who: String,
    /// Why, for people; may be empty.
    pub why: String,
    /// What led to it: the alert and the rule of a triggered one; else empty.
    pub origin: String,
    /// When, by the asker's clock, microseconds since 1970 (UTC): for people.
    pub asked_us: u64,
    /// Only hosts on which this service lives; empty: any.
    pub service: String,
    /// Only hosts with the label `region=…` of this value; empty: any.
    pub region: String,
    /// Only this host; empty: any.
    pub host: String,
    /// Only this process; 0: all.
    pub pid: u32,
    /// On how many hosts; 0: on all that match.
    pub hosts: u32,
    /// The profiler.
    pub profiler: String,
    /// Its arguments, `key=value`.
    pub arguments: Vec<String>,
    /// Samples per second and CPU; 0: as the profiler has it.
    pub frequency_hz: f64,
    /// How long a run lasts, microseconds.
    pub duration_us: u64,
    /// Its time to live: how long after it was asked it may still start, microseconds, by the broker's clock.
    pub wait_us: u64,
    /// Code of a [`Cause`] other than continuous.
    pub cause: u8,
}

/// Why a request cannot be meant.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Senseless {
    /// A code that this version does not know.
    #[error("`{field}` is {code}, which is not known here")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        code: u8,
    },
    /// A text is missing, too long or not printable.
    #[error("`{field}` must be {least} to {most} bytes of printable text")]
    Text {
        /// The field.
        field: &'static str,
        /// Its shortest length.
        least: usize,
        /// Its longest length.
        most: usize,
    },
    /// A number is outside of its bounds.
    #[error("`{field}` must be from {least} to {most}")]
    Number {
        /// The field.
        field: &'static str,
        /// Its least value.
        least: f64,
        /// Its greatest value.
        most: f64,
    },
    /// Nothing says where.
    #[error("nothing says where: name a service, a region or a host")]
    Nowhere,
    /// A process without its host.
    #[error("a process id means something on one host alone: name the host")]
    PidWithoutHost,
}

impl Request {
    /// Proves that it can be meant; whether the asker may is another question.
    ///
    /// # Errors
    /// [`Senseless`] names the first field that cannot.
    pub fn validate(&self) -> Result<(), Senseless> {
        let unknown = |field, code| Err(Senseless::Unknown { field, code });
        let Some(action) = Action::from_code(self.action) else {
            return unknown("action", self.action);
        };
        text("who", &self.who, 0, NAME_BYTES_MAX)?;
        text("why", &self.why, 0, WHY_BYTES_MAX)?;
        text("origin", &self.origin, 0, WHY_BYTES_MAX)?;
        for (field, name) in [
            ("service", &self.service),
            ("region", &self.region),
            ("host", &self.host),
        ] {
            text(field, name, 0, NAME_BYTES_MAX)?;
        }
        if action == Action::Cancel {
            return Ok(());
        }
        match Cause::from_code(self.cause) {
            None | Some(Cause::Continuous) => return unknown("cause", self.cause),
            Some(_) => {}
        }
        text("profiler", &self.profiler, 1, NAME_BYTES_MAX)?;
        number(
            "arguments",
            self.arguments.len() as f64,
            0.0,
            ARGUMENTS_MAX as f64,
        )?;
        for argument in &self.arguments {
            text("arguments", argument, 1, NAME_BYTES_MAX)?;
        }
        if [&self.service, &self.region, &self.host]
            .iter()
            .all(|name| name.is_empty())
        {
            return Err(Senseless::Nowhere);
        }
        if self.pid != 0 && self.host.is_empty() {
            return Err(Senseless::PidWithoutHost);
        }
        number("hosts", f64::from(self.hosts), 0.0, f64::from(HOSTS_MAX))?;
        number("frequency_hz", self.frequency_hz, 0.0, FREQUENCY_HZ_MAX)?;
        let seconds = |us: u64| us as f64 / 1e6;
        let (least, most) = (seconds(DURATION_US_MIN), seconds(DURATION_US_MAX));
        number("duration (s)", seconds(self.duration_us), least, most)?;
        number(
            "time to live (s)",
            seconds(self.wait_us),
            1.0,
            seconds(WAIT_US_MAX),
        )
    }

    /// Returns whether one run can answer both: everything that decides what is sampled is the same.
    pub fn is_equal_run(&self, other: &Self) -> bool {
        self.profiler == other.profiler
            && self.arguments == other.arguments
            && self.frequency_hz == other.frequency_hz
            && self.duration_us == other.duration_us
            && self.pid == other.pid
            && self.service == other.service
            && self.cause == other.cause
    }
}

fn text(field: &'static str, text: &str, least: usize, most: usize) -> Result<(), Senseless> {
    let fits = (least..=most).contains(&text.len()) && !text.chars().any(char::is_control);
    if fits {
        Ok(())
    } else {
        Err(Senseless::Text { field, least, most })
    }
}

fn number(field: &'static str, value: f64, least: f64, most: f64) -> Result<(), Senseless> {
    // What is no number is within no bounds.
    let fits = value >= least && value <= most;
    if fits {
        Ok(())
    } else {
        Err(Senseless::Number { field, least, most })
    }
}

/// A request as it travels: the exact bytes that were signed, and the signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedRequest {
    /// The request's name; that within the bytes must be the same.
    pub id: RequestId,
    /// A framed [`Request`]. At most [`PAYLOAD_BYTES_MAX`].
    pub payload: Vec<u8>,
    /// An SSH signature over the payload; empty: none. At most [`SIGNATURE_BYTES_MAX`].
    pub signature: Vec<u8>,
}

/// How far apart the asker's clock, when a request was signed, and the broker's, when it came, may be. What is further off is a
/// replay.
pub const CLOCK_SLACK_US: u64 = 300_000_000;

/// Why what travelled is not taken for a request, whoever signed it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unopened {
    /// The bytes are no request.
    #[error("the signed bytes are no request: {0}")]
    Undecodable(#[from] crate::codec::DecodeError),
    /// The name outside is another than the one that was signed.
    #[error("the signed request has another id: {0}")]
    OtherId(RequestId),
    /// It cannot be meant.
    #[error(transparent)]
    Senseless(#[from] Senseless),
    /// It was signed too long ago, or will be signed.
    #[error(
        "it says that it was asked {off_s} s {} the broker took it: a replay, or the asker's clock is wrong",
        if *.before { "before" } else { "after" }
    )]
    Stale {
        /// Seconds between the two.
        off_s: u64,
        /// Whether it was asked before the broker took it.
        before: bool,
    },
}

impl Unopened {
    /// Returns it in one word, for counters and the audit.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Undecodable(_) => "undecodable",
            Self::OtherId(_) => "other_id",
            Self::Senseless(_) => "senseless",
            Self::Stale { .. } => "replayed",
        }
    }
}

impl SignedRequest {
    /// Returns what is asked for, proved in all but the signature; the broker took it at `taken_us`.
    ///
    /// # Errors
    /// [`Unopened`] says what is wrong with it.
    pub fn open(&self, taken_us: u64) -> Result<Request, Unopened> {
        let request: Request = crate::codec::decode_framed(&self.payload)?;
        if request.id != self.id {
            return Err(Unopened::OtherId(request.id));
        }
        request.validate()?;
        let before = request.asked_us <= taken_us;
        let off_us = request.asked_us.abs_diff(taken_us);
        // Who asks waits for the answer: what is on its way for longer was held back by somebody.
        if off_us > CLOCK_SLACK_US {
            let off_s = off_us / 1_000_000;
            return Err(Unopened::Stale { off_s, before });
        }
        Ok(request)
    }
}

/// What became of a request on a host, as the trigger says; the host is empty for the request as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestState {
    /// The request.
    pub id: RequestId,
    /// The host; empty for the request as a whole.
    pub host: String,
    /// Code of a [`Phase`].
    pub phase: u8,
    /// Whether it was said after the host's final phase: it changes nothing.
    pub late: bool,
    /// When, microseconds since 1970 (UTC), by the broker's clock.
    pub time_us: u64,
    /// Which life of the agent gave its word; zeros where none has.
    pub life: [u8; 16],
    /// How long after it gave its word the host may still start, microseconds; only beside [`Phase::Accepted`].
    pub left_us: u64,
    /// The run; zeros while there is none. Of [`Phase::Joined`] the run of the equal request.
    pub run: RunId,
    /// Samples taken so far.
    pub taken: u64,
    /// Samples lost so far on the host.
    pub dropped: u64,
    /// Why, behind what, and what else people want to know.
    pub detail: String,
}

/// What an agent says of a request on its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostReport {
    /// The request.
    pub id: RequestId,
    /// The host.
    pub host: String,
    /// 128 random bits, drawn when the agent starts: a word given in another life is void.
    pub life: [u8; 16],
    /// Code of a [`Phase`].
    pub phase: u8,
    /// The run; zeros while there is none.
    pub run: RunId,
    /// Samples taken so far.
    pub taken: u64,
    /// Samples lost so far on the host.
    pub dropped: u64,
    /// Why, behind what, and what else people want to know.
    pub detail: String,
}

/// The run of what has none.
pub const NO_RUN: RunId = RunId([0; 16]);

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            id: RequestId([1; 16]),
            action: Action::Profile as u8,
            who: "ann".into(),
            why: String::new(),
            origin: String::new(),
            asked_us: 1,
            service: "orders".into(),
            region: String::new(),
            host: String::new(),
            pid: 0,
            hosts: 5,
            profiler: "cpu".into(),
            arguments: Vec::new(),
            frequency_hz: 0.0,
            duration_us: 10_000_000,
            wait_us: 60_000_000,
            cause: Cause::OnDemand as u8,
        }
    }

    /// Checks that each thing that cannot be meant is refused, and that the field is named.
    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        assert_eq!(request().validate(), Ok(()));
        type Change = fn(&mut Request);
        let changes: [(&str, Change); 15] = [
            ("action", |r| r.action = 3),
            ("who", |r| r.who = "a\nb".into()),
            ("why", |r| r.why = "x".repeat(WHY_BYTES_MAX + 1)),
            ("cause", |r| r.cause = Cause::Continuous as u8),
            ("cause", |r| r.cause = 9),
            ("profiler", |r| r.profiler.clear()),
            ("arguments", |r| {
                r.arguments = vec!["a=b".into(); ARGUMENTS_MAX + 1]
            }),
            ("service", |r| r.service.clear()),
            ("process", |r| r.pid = 7),
            ("hosts", |r| r.hosts = HOSTS_MAX + 1),
            ("frequency_hz", |r| r.frequency_hz = f64::NAN),
            ("frequency_hz", |r| r.frequency_hz = -1.0),
            ("duration", |r| r.duration_us = u64::MAX),
            ("duration", |r| r.duration_us = 1),
            ("time to live", |r| r.wait_us = WAIT_US_MAX + 1),
        ];
        for (field, change) in changes {
            let mut changed = request();
            change(&mut changed);
            let refused = changed.validate().expect_err(field).to_string();
            assert!(refused.contains(field), "{field}: {refused}");
        }
    }

    /// Checks that a cancellation needs nothing but the request's name.
    #[test]
    fn a_cancellation_needs_only_its_name() {
        let cancel = Request {
            action: Action::Cancel as u8,
            service: String::new(),
            profiler: String::new(),
            duration_us: 0,
            wait_us: 0,
            cause: 0,
            ..request()
        };
        assert_eq!(cancel.validate(), Ok(()));
    }

    /// Checks that what was signed under another name, for another time, or is nothing at all, is not taken for a request.
    #[test]
    fn what_travels_under_a_false_name_or_time_is_refused() {
        let asked = Request {
            asked_us: 1_000_000_000,
            ..request()
        };
        let signed = SignedRequest {
            id: asked.id,
            payload: crate::codec::encode_framed(&asked).unwrap(),
            signature: Vec::new(),
        };
        assert_eq!(signed.open(1_000_000_000), Ok(asked.clone()));
        assert_eq!(signed.open(1_000_000_000 + CLOCK_SLACK_US), Ok(asked));
        let replayed = signed.open(1_000_000_001 + CLOCK_SLACK_US).unwrap_err();
        assert!(
            replayed.to_string().contains("300 s before the broker took it"),
            "{replayed}"
        );
        let early = signed.open(1_000_000_000 - CLOCK_SLACK_US - 1).unwrap_err();
        assert!(matches!(early, Unopened::Stale { before: false, .. }));
        let renamed = SignedRequest {
            id: RequestId([2; 16]),
            ..signed.clone()
        };
        assert!(matches!(renamed.open(1_000_000_000), Err(Unopened::OtherId(_))));
        let nonsense = SignedRequest {
            payload: b"{}".to_vec(),
            ..signed
        };
        assert!(matches!(
            nonsense.open(1_000_000_000),
            Err(Unopened::Undecodable(_))
        ));
    }

    /// Checks that ids survive being shown.
    #[test]
    fn ids_come_back_as_they_were_shown() {
        let id = RequestId(*b"0123456789abcdef");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("xyz".parse::<RequestId>().is_err());
    }
}
