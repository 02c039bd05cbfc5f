//! Requests on a real bus: bursts, and the death of whoever has a part in them.

mod fleet;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use fleet::{Fleet, Host, Told, asked, now_us, request, resident_bytes};
use strobe_bus::{Bus, BusSettings, Tail, Topic};
use strobe_event::{Phase, Request, RequestId};
use strobe_integration_tests::stack::free_ports;
use strobe_integration_tests::{Cluster, Need, Part, journey};

/// The trigger's memory after a burst: twice what 12,000 requests take.
const RESIDENT_MAX: u64 = 160 << 20;

fn bus(cluster: &Cluster) -> Result<BusSettings> {
    let bus = Bus {
        bootstrap: cluster.bootstrap()?,
        topic_prefix: cluster.topic_prefix(),
        partitions: 2,
        ..Bus::default()
    };
    Ok(bus.validate()?)
}

/// Reads states until `over` requests are, or time is up.
fn hear(tail: &mut Tail, told: &mut Told, over: usize, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    while told.over() < over {
        ensure!(
            Instant::now() < deadline,
            "{} of {over} requests are over: {:?}",
            told.over(),
            told.count()
        );
        tail.poll(Duration::from_millis(100), |message| told.take(&message))?;
    }
    // Whatever is said too much is said soon.
    let quiet = Instant::now() + Duration::from_millis(500);
    while Instant::now() < quiet {
        tail.poll(Duration::from_millis(100), |message| told.take(&message))?;
    }
    Ok(())
}

/// Proves that each request, and each of its hosts, ended once, and that nothing ran twice.
fn prove(told: &Told, asked: &[Request], hosts: impl IntoIterator<Item = Host>) -> Result<()> {
    for request in asked {
        ensure!(
            told.ends.contains_key(&(request.id, String::new())),
            "{:?} has no end",
            request.id
        );
    }
    for (key, phases) in &told.phases {
        let ends = told.ends.get(key).map_or(0, Vec::len);
        ensure!(ends == 1, "{key:?} ended {ends} times: {phases:?}");
    }
    for host in hosts {
        let twice: Vec<&RequestId> = host
            .starts
            .iter()
            .filter(|(_, starts)| **starts > 1)
            .map(|(id, _)| id)
            .collect();
        ensure!(twice.is_empty(), "ran twice: {twice:?}");
    }
    Ok(())
}

/// Checks that 1,000 requests for one host and 10,000 over 100 hosts, in one burst, each end in exactly one final state, that
/// none runs twice, and that the trigger's memory stays where it is.
#[test]
fn a_burst_ends_request_by_request() -> Result<()> {
    journey("request_burst", &[], |cluster| {
        let bus = bus(cluster)?;
        let many = Fleet::start(&bus, 100, "many", 50)?;
        let one = Fleet::start(&bus, 1, "one", 50)?;
        let trigger = cluster.run("trigger", None)?;
        let mut tail = Tail::open(
            &bus,
            &bus.topic(Topic::Requests),
            now_us() as i64 / 1_000 - 60_000,
        )?;
        let stop = AtomicBool::new(false);
        let mut told = Told::default();
        let requests: Vec<Request> = (0..10_000)
            .map(|number| request(number, "many", 1))
            .chain((10_000..11_000).map(|number| request(number, "one", 1)))
            .collect();
        let hosts = std::thread::scope(|scope| {
            let fleets = [many, one].map(|fleet| scope.spawn(|| fleet.live(&stop, None)));
            let heard = asked(&bus, &requests)
                .and_then(|()| hear(&mut tail, &mut told, requests.len(), Duration::from_secs(120)));
            stop.store(true, Ordering::Relaxed);
            let mut hosts = Vec::new();
            for fleet in fleets {
                let lived = fleet.join().map_err(|_| anyhow!("a fleet panicked"))??;
                hosts.extend(lived.into_values());
            }
            heard.map(|()| hosts)
        })?;
        let count = told.count();
        println!("{} requests ended on their hosts as {count:?}", requests.len());
        // A host that a busy machine keeps from answering within two seconds is lost, and another one is asked.
        let known = ["finished", "joined", "refused", "expired", "lost"];
        ensure!(count.keys().all(|phase| known.contains(phase)), "{count:?}");
        prove(&told, &requests, hosts)?;
        let resident = resident_bytes(trigger.pid()?)?;
        ensure!(resident < RESIDENT_MAX, "the trigger holds {resident} bytes");
        Ok(())
    })
}

/// Checks that with the trigger killed again and again, agents dying one after the other and the broker killed once, each request
/// still ends in exactly one final state on each of its hosts, nothing runs twice, and nothing starts after its time.
#[test]
fn a_request_has_one_end_whoever_is_killed() -> Result<()> {
    journey("request_kills", &[], |cluster| {
        let bus = bus(cluster)?;
        let fleet = Fleet::start(&bus, 8, "mortal", 2)?;
        let mut trigger = Some(cluster.run("trigger", None)?);
        let mut tail = Tail::open(
            &bus,
            &bus.topic(Topic::Requests),
            now_us() as i64 / 1_000 - 60_000,
        )?;
        let stop = AtomicBool::new(false);
        let (mut told, mut requests) = (Told::default(), Vec::new());
        let hosts = std::thread::scope(|scope| {
            let lives = scope.spawn(|| fleet.live(&stop, Some(Duration::from_millis(700))));
            let mut kill_all = || -> Result<()> {
                for round in 0..24 {
                    let next = request(round, "mortal", 1 + (round % 3) as u32);
                    asked(&bus, std::slice::from_ref(&next))?;
                    requests.push(next);
                    std::thread::sleep(Duration::from_millis(500));
                    // The next one has the partitions after the 3 s of a session.
                    if round % 8 == 7 {
                        trigger.take().map_or(Ok(()), Part::kill)?;
                        trigger = Some(cluster.run("trigger", None)?);
                    }
                    if round == 13 {
                        cluster.broker("kill")?;
                        cluster.broker("start")?;
                    }
                }
                hear(&mut tail, &mut told, requests.len(), Duration::from_secs(120))
            };
            let heard = kill_all();
            stop.store(true, Ordering::Relaxed);
            let lived = lives.join().map_err(|_| anyhow!("the fleet panicked"))??;
            heard.map(|()| lived)
        })?;
        let phases: BTreeSet<Phase> = told.phases.values().flatten().copied().collect();
        ensure!(
            phases.contains(&Phase::Finished),
            "nothing ran: {:?}",
            told.count()
        );
        prove(&told, &requests, hosts.into_values())
    })
}

/// Returns a message of Alertmanager with so many alerts, each of its own fingerprint.
fn storm(first: usize, count: usize, status: &str) -> String {
    let now = String::from("2026-01-31T12:00:00Z");
    let alerts: Vec<serde_json::Value> = (first..first + count)
        .map(|number| {
            serde_json::json!({
                "status": status, "labels": {"alertname": "HighLatency", "service": "alarmed"}, "annotations": {},
                "startsAt": now, "endsAt": now, "fingerprint": format!("{number:016x}"),
            })
        })
        .collect();
    serde_json::json!({"version": "4", "groupKey": "g", "externalURL": "http://here", "alerts": alerts})
        .to_string()
}

/// Posts a message to the webhook; returns the status.
fn post(cluster: &Cluster, port: u16, message: &str) -> Result<u16> {
    let file = cluster.path("message.json");
    fs::write(&file, message)?;
    let output = Command::new("curl")
        .args([
            "-sS",
            "--max-time",
            "30",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--data-binary",
        ])
        .arg(format!("@{}", file.display()))
        .arg(format!("http://127.0.0.1:{port}/webhook"))
        .output()?;
    String::from_utf8(output.stdout)?.parse().context("no status")
}

/// Checks that an alert storm of 10,000 events by the webhook starts as many profiles as the rule says, also when the trigger is killed in
/// the middle of it; that resolved alerts start none; and that the webhook does not say that it has what the bus has not.
#[test]
fn a_storm_of_alerts_starts_as_many_profiles_as_the_rules_say() -> Result<()> {
    journey(
        "alert_storm",
        &[Need::Program("ssh-keygen"), Need::Program("curl")],
        |cluster| {
            let key = cluster.path("trigger-key");
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(&key)
                .status()?;
            ensure!(made.success(), "no key");
            cluster.set_strobe("trigger", "key", &format!("\"{}\"", key.display()))?;
            let rule =
                "[{ name = \"slow\", alert = \"HighLatency\", starts_per_hour = 5, duration = \"1s\" }]";
            cluster.set_strobe("trigger", "rule", rule)?;
            let port = free_ports()?;
            cluster.set_strobe("alerts", "listen", &format!("\"127.0.0.1:{port}\""))?;
            let bus = bus(cluster)?;
            let fleet = Fleet::start(&bus, 3, "alarmed", 10)?;
            let _webhook = cluster.run("alerts", None)?;
            let trigger = cluster.run("trigger", None)?;
            let mut tail = Tail::open(
                &bus,
                &bus.topic(Topic::Requests),
                now_us() as i64 / 1_000 - 60_000,
            )?;
            let stop = AtomicBool::new(false);
            let mut told = Told::default();
            std::thread::scope(|scope| {
                let lives = scope.spawn(|| fleet.live(&stop, None));
                let all = || -> Result<()> {
                    cluster.wait_for("the webhook answers", || {
                        post(cluster, port, &storm(0, 0, "firing")).is_ok_and(|status| status == 200)
                    })?;
                    ensure!(post(cluster, port, &storm(0, 50, "resolved"))? == 200);
                    ensure!(post(cluster, port, "{}")? == 400);
                    for part in 0..5 {
                        ensure!(post(cluster, port, &storm(part * 1_000, 1_000, "firing"))? == 200);
                    }
                    trigger.kill()?;
                    for part in 5..10 {
                        ensure!(post(cluster, port, &storm(part * 1_000, 1_000, "firing"))? == 200);
                    }
                    let _next = cluster.run("trigger", None)?;
                    hear(&mut tail, &mut told, 5, Duration::from_secs(60))?;
                    // Another trigger has read the rest by then, and the first ones again.
                    std::thread::sleep(Duration::from_secs(3));
                    hear(&mut tail, &mut told, 5, Duration::from_secs(60))?;
                    ensure!(told.over() == 5, "{} were started", told.over());
                    // Equal requests that wait on one host share a run.
                    let count = told.count();
                    let answered =
                        ["finished", "joined"].map(|phase| count.get(phase).copied().unwrap_or_default());
                    ensure!(answered.iter().sum::<usize>() >= 5, "{count:?}");
                    cluster.broker("kill")?;
                    let status = post(cluster, port, &storm(20_000, 1, "firing"))?;
                    cluster.broker("start")?;
                    ensure!(status == 503, "{status} while the bus was away");
                    Ok(())
                };
                let heard = all();
                stop.store(true, Ordering::Relaxed);
                lives.join().map_err(|_| anyhow!("the fleet panicked"))??;
                heard
            })
        },
    )
}
