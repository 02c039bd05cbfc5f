//! The desk, word by word.

use std::collections::BTreeMap;

use strobe_event::request::NO_RUN;
use strobe_event::{Cause, HostReport, RequestState, SignedRequest};

use super::*;

const HOST: &str = "web-1";
const LIFE: [u8; 16] = [3; 16];
const NOW: u64 = 1_800_000_000_000_000;

/// Believes who signs with their name.
struct Names;

impl Prove for Names {
    fn prove(&self, signed: &SignedRequest, _: &Request, _: Option<&str>) -> Result<String, NotProved> {
        match &signed.signature[..] {
            b"ann" => Ok("ann".into()),
            _ => Err(NotProved {
                reason: "forged",
                principal: None,
                why: "the signature is not ann's".into(),
            }),
        }
    }
}

fn request(number: u8) -> Request {
    Request {
        id: RequestId([number; 16]),
        action: strobe_event::Action::Profile as u8,
        who: "ann".into(),
        why: String::new(),
        origin: String::new(),
        asked_us: NOW,
        service: "orders".into(),
        region: String::new(),
        host: String::new(),
        pid: 0,
        hosts: 1,
        profiler: "cpu".into(),
        arguments: Vec::new(),
        frequency_hz: 0.0,
        duration_us: 10_000_000,
        wait_us: 60_000_000,
        cause: Cause::OnDemand as u8,
    }
}

fn signed(request: &Request, by: &str) -> SignedRequest {
    SignedRequest {
        id: request.id,
        payload: codec::encode_framed(request).unwrap(),
        signature: by.as_bytes().to_vec(),
    }
}

fn said(number: u8, phase: Phase, life: [u8; 16], left_us: u64) -> RequestState {
    RequestState {
        id: RequestId([number; 16]),
        host: HOST.into(),
        phase: phase as u8,
        late: false,
        time_us: NOW,
        life,
        left_us,
        run: NO_RUN,
        taken: 0,
        dropped: 0,
        detail: String::new(),
    }
}

fn place() -> Place {
    Place {
        host: HOST.into(),
        region: "eu".into(),
    }
}

fn desk() -> Desk {
    let mut desk = Desk::new(place(), LIFE, BTreeMap::new());
    desk.caught_up(0, NOW, &Names);
    desk
}

fn phases(desk: &mut Desk) -> Vec<(Phase, String)> {
    let reports: Vec<HostReport> = desk.take_reports();
    let phase = |report: HostReport| (Phase::from_code(report.phase).unwrap(), report.detail);
    reports.into_iter().map(phase).collect()
}

fn picked(desk: &mut Desk, number: u8, by: &str) {
    desk.question(signed(&request(number), by), NOW, &Names);
    desk.state(&said(number, Phase::Picked, [0; 16], 0), 1_000, NOW, &Names);
}

/// Checks the whole way: a word, noted before it is said; the answer; the run; its end.
#[test]
fn a_word_is_noted_before_it_is_said_and_kept_once() {
    let mut desk = desk();
    picked(&mut desk, 1, "ann");
    assert_eq!(desk.to_remember().map(BTreeMap::len), Some(1));
    assert_eq!(
        desk.to_remember(),
        None,
        "once written it need not be written again"
    );
    assert_eq!(phases(&mut desk), [(Phase::Accepted, String::new())]);
    // Picked again, as a trigger that starts over may say: the word is given already.
    picked(&mut desk, 1, "ann");
    assert!(phases(&mut desk).is_empty() && desk.take_commands().is_empty());
    let answer = said(1, Phase::Accepted, LIFE, 5_000_000);
    desk.state(&answer, 1_001_000, NOW, &Names);
    let run = RequestId([1; 16]).run_on(HOST);
    let commands = desk.take_commands();
    let expected = Command::Start {
        request: Box::new(request(1)),
        run,
        within: Duration::from_millis(4_000),
    };
    assert_eq!(commands, [expected]);
    desk.state(&answer, 1_002_000, NOW, &Names);
    assert!(desk.take_commands().is_empty(), "started twice");
    let id = RequestId([1; 16]);
    desk.standing(id, &Standing::Queued("behind data-watch".into()));
    desk.standing(id, &Standing::Running { taken: 7, dropped: 0 });
    let ended = Standing::Ended {
        phase: Phase::Finished,
        why: String::new(),
        taken: 9,
        dropped: 1,
    };
    desk.standing(id, &ended);
    desk.standing(id, &ended);
    let reports = desk.take_reports();
    let told: Vec<_> = reports
        .iter()
        .map(|report| (report.phase, report.taken, report.run))
        .collect();
    assert_eq!(
        told,
        [
            (Phase::Queued as u8, 0, run),
            (Phase::Running as u8, 7, run),
            (Phase::Finished as u8, 9, run)
        ]
    );
}

/// Checks that an answer that comes after the time that it leaves starts nothing: the clock runs from the word on.
#[test]
fn an_answer_that_comes_too_late_starts_nothing() {
    let mut desk = desk();
    picked(&mut desk, 1, "ann");
    desk.state(&said(1, Phase::Accepted, LIFE, 5_000_000), 5_001_000, NOW, &Names);
    assert!(desk.take_commands().is_empty());
    let said: Vec<Phase> = phases(&mut desk).into_iter().map(|(phase, _)| phase).collect();
    assert_eq!(said, [Phase::Accepted, Phase::Expired]);
}

/// Checks that what is forged, replayed, for another host, or was never asked is refused with its reason, and promises nothing.
#[test]
fn what_is_not_proved_is_refused() {
    let other_host = Request {
        host: "db-1".into(),
        ..request(3)
    };
    let other_region = Request {
        region: "us".into(),
        ..request(3)
    };
    let cases: [(SignedRequest, u64, &str); 4] = [
        (signed(&other_region, "ann"), NOW, "region `us`"),
        (signed(&request(3), "bob"), NOW, "not ann's"),
        (signed(&request(3), "ann"), NOW + 600_000_000, "replay"),
        (signed(&other_host, "ann"), NOW, "db-1"),
    ];
    for (question, taken_us, why) in cases {
        let mut desk = desk();
        desk.question(question, taken_us, &Names);
        desk.state(&said(3, Phase::Picked, [0; 16], 0), 0, NOW, &Names);
        let said = phases(&mut desk);
        assert!(
            said.len() == 1 && said[0].0 == Phase::Refused && said[0].1.contains(why),
            "{said:?}"
        );
        assert_eq!(desk.to_remember(), None);
        assert!(desk.take_commands().is_empty());
    }
    let mut desk = desk();
    desk.state(&said(4, Phase::Picked, [0; 16], 0), 0, NOW, &Names);
    assert_eq!(phases(&mut desk)[0].0, Phase::Refused);
}

/// Checks that only who may cancel does, before and while it runs.
#[test]
fn only_who_may_cancels() {
    let cancel = Request {
        action: strobe_event::Action::Cancel as u8,
        ..request(1)
    };
    let mut desk = desk();
    picked(&mut desk, 1, "ann");
    desk.question(signed(&cancel, "bob"), NOW, &Names);
    assert_eq!(phases(&mut desk).len(), 1, "the word alone");
    desk.question(signed(&cancel, "ann"), NOW, &Names);
    assert_eq!(phases(&mut desk), [(Phase::Cancelled, "by ann".to_owned())]);
    let mut desk = self::desk();
    picked(&mut desk, 1, "ann");
    desk.state(&said(1, Phase::Accepted, LIFE, 5_000_000), 2_000, NOW, &Names);
    desk.take_commands();
    desk.question(signed(&cancel, "bob"), NOW, &Names);
    assert!(desk.take_commands().is_empty());
    desk.question(signed(&cancel, "ann"), NOW, &Names);
    let id = RequestId([1; 16]);
    assert_eq!(
        desk.take_commands(),
        [Command::Stop {
            id,
            why: "by ann".into()
        }]
    );
    let ended = Standing::Ended {
        phase: Phase::Finished,
        why: "stopped".into(),
        taken: 4,
        dropped: 0,
    };
    desk.standing(id, &ended);
    assert_eq!(
        phases(&mut desk).pop(),
        Some((Phase::Cancelled, "by ann".to_owned()))
    );
}

/// Checks that a host which is picked for what was cancelled before says so, and gives no word.
#[test]
fn what_was_cancelled_before_is_not_begun() {
    let cancel = Request {
        action: strobe_event::Action::Cancel as u8,
        ..request(1)
    };
    for (by, phase) in [("ann", Phase::Cancelled), ("bob", Phase::Accepted)] {
        let mut desk = desk();
        desk.question(signed(&request(1), "ann"), NOW, &Names);
        desk.question(signed(&cancel, by), NOW, &Names);
        desk.state(&said(1, Phase::Picked, [0; 16], 0), 1_000, NOW, &Names);
        assert_eq!(phases(&mut desk)[0].0, phase);
    }
}

/// Checks that an agent which starts again runs nothing of what another life promised, says that it failed, and gives its word
/// for what it was picked for meanwhile.
#[test]
fn another_life_runs_nothing_twice() {
    let mut desk = desk();
    picked(&mut desk, 1, "ann");
    let remembered = desk.to_remember().cloned().unwrap();
    let mut next = Desk::new(place(), [4; 16], remembered);
    for number in [1, 2, 3] {
        next.question(signed(&request(number), "ann"), NOW, &Names);
        next.state(&said(number, Phase::Picked, [0; 16], 0), 0, NOW, &Names);
    }
    // The answer to the other life, a request that is over meanwhile, and one whose answer this host no longer remembers.
    next.state(&said(1, Phase::Accepted, LIFE, 60_000_000), 0, NOW, &Names);
    next.state(&said(3, Phase::Lost, [0; 16], 0), 0, NOW, &Names);
    next.question(signed(&request(4), "ann"), NOW, &Names);
    next.state(&said(4, Phase::Accepted, LIFE, 60_000_000), 0, NOW, &Names);
    assert!(
        next.take_reports().is_empty(),
        "nothing is said before the past is read"
    );
    next.caught_up(0, NOW, &Names);
    let mut told: Vec<(RequestId, u8)> = next
        .take_reports()
        .iter()
        .map(|report| (report.id, report.phase))
        .collect();
    told.sort();
    assert_eq!(
        told,
        [
            (RequestId([1; 16]), Phase::Failed as u8),
            (RequestId([2; 16]), Phase::Accepted as u8),
            (RequestId([4; 16]), Phase::Failed as u8)
        ]
    );
    assert!(next.take_commands().is_empty());
}

/// Checks that a word which the disk did not take is not said.
#[test]
fn a_word_that_cannot_be_noted_is_not_given() {
    let mut desk = desk();
    picked(&mut desk, 1, "ann");
    desk.take_back();
    assert!(phases(&mut desk).is_empty());
    desk.state(&said(1, Phase::Accepted, LIFE, 5_000_000), 2_000, NOW, &Names);
    assert!(desk.take_commands().is_empty());
}

/// Checks that questions which nobody picks this host for cannot fill its memory.
#[test]
fn questions_are_bounded() {
    let mut desk = desk();
    let mut asked = request(1);
    asked.why = "x".repeat(1_000);
    for number in 0..40_000_u32 {
        asked.id.0[..4].copy_from_slice(&number.to_be_bytes());
        desk.question(signed(&asked, "ann"), NOW, &Names);
    }
    let (count, bytes) = desk.questions();
    assert!(
        count <= 10_000 && bytes <= 16 << 20,
        "{count} questions, {bytes} bytes"
    );
}
