//! What a process was before `exec` and what it is after are told apart.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use strobe_integration_tests::{Cluster, Need, Part, journey};
use support::truth::caught_up;

/// A program that uses so much CPU time in a function of its own, says when, and becomes another. Written so that the last
/// thing before `exec` and the first thing after it are a look at the clock.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static long now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}
static volatile unsigned long sink;
__attribute__((noipa)) void FUNCTION(long microseconds) {
  long until = now(CLOCK_PROCESS_CPUTIME_ID) + microseconds;
  while (now(CLOCK_PROCESS_CPUTIME_ID) < until)
    for (int i = 0; i < 2000; i++) sink = sink * 31 + i;
}
int main(int argc, char **argv) {
  long start = now(CLOCK_REALTIME);
  if (argc > 2) printf("%d %s %ld\n", getpid(), argv[2], start), fflush(stdout);
  FUNCTION(30000);
  if (argc < 2 || argv[1][0] == '-') return 0;
  char end[32];
  snprintf(end, sizeof end, "%ld", now(CLOCK_REALTIME));
  execl(argv[1], argv[1], "-", end, (char *)0);
  return 1;
}
"#;

fn compile(cluster: &Cluster, name: &str) -> Result<()> {
    let source = cluster.path(&format!("{name}.c"));
    fs::write(&source, SOURCE.replace("FUNCTION", &format!("spins_{name}_exec")))?;
    let build = Command::new("cc")
        .args(["-g", "-O1", "-fno-omit-frame-pointer", "-o"])
        .arg(cluster.path(name))
        .arg(&source)
        .output()?;
    ensure!(
        build.status.success(),
        "{}",
        String::from_utf8_lossy(&build.stderr)
    );
    Ok(())
}

/// Returns, for each process, when it became another: after the first and before the second of two moments.
fn moments(log: &Path) -> Result<BTreeMap<u64, (u64, u64)>> {
    let text = fs::read_to_string(log)?;
    text.lines()
        .map(|line| {
            let mut numbers = line.split(' ').map(str::parse::<u64>);
            let mut next = || numbers.next().context("a short line")?.context("no number");
            Ok((next()?, (next()?, next()?)))
        })
        .collect()
}

/// Checks that no sample taken before `exec` bears a frame of the new image, and none after it one of the old.
#[test]
fn no_sample_bears_a_frame_of_another_image() -> Result<()> {
    journey(
        "no_sample_bears_a_frame_of_another_image",
        &[Need::Profiling, Need::Program("cc")],
        |cluster| {
            compile(cluster, "before")?;
            compile(cluster, "after")?;
            let (processor, sink) = (cluster.run("processor", None)?, cluster.run("sink", None)?);
            let agent = cluster.agent(&["--frequency", "997"], None)?;
            // Names come once the binaries are in the symbol store; on a host full of large ones that takes a moment.
            let mut first = Command::new("bash");
            first
                .args([
                    "-c",
                    "while :; do \"$1\" \"$2\" > /dev/null; sleep 0.1; done",
                    "first",
                ])
                .args([cluster.path("before"), cluster.path("after")]);
            let first = Part::start("first", &first, &cluster.path("first.log"))?;
            cluster.wait_for("both programs have names", || {
                let sql = "SELECT uniqExact(function) FROM sample_frames WHERE function LIKE 'spins_%_exec%'";
                cluster.number(sql).is_ok_and(|functions| functions == 2.0)
            })?;
            first.kill()?;
            let log = cluster.path("exec.log");
            let mut shell = Command::new("bash");
            shell
                .args(["-c", "for i in {1..60}; do \"$1\" \"$2\"; done", "loop"])
                .args([cluster.path("before"), cluster.path("after")]);
            let mut shell = Part::start("loop", &shell, &log)?;
            cluster.wait_for("all processes have ended", || !shell.runs())?;
            std::thread::sleep(std::time::Duration::from_secs(3));
            agent.stop()?;
            caught_up(cluster)?;
            let moments = moments(&log)?;
            ensure!(moments.len() == 60, "{} of 60 processes reported", moments.len());
            let pids = moments.keys().map(u64::to_string).collect::<Vec<_>>().join(",");
            let rows = cluster.rows(&format!(
            "SELECT pid, toUnixTimestamp64Micro(time), max(module LIKE '%/before'), max(module LIKE '%/after'), \
             max(function LIKE 'spins_before_exec%'), max(function LIKE 'spins_after_exec%') FROM sample_frames WHERE pid IN \
             ({pids}) GROUP BY pid, time, cpu"
        ))?;
            let (mut old, mut new, mut named) = (0, 0, 0);
            for row in &rows {
                let numbers: Vec<u64> = row.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
                let (pid, time) = (numbers[0], numbers[1]);
                let Some(&(last_before, first_after)) = moments.get(&pid) else {
                    continue;
                };
                let (of_old, of_new) = (numbers[2] == 1, numbers[3] == 1);
                ensure!(
                    !(of_old && of_new),
                    "one sample of {pid} bears frames of both images"
                );
                ensure!(
                    !(of_new && time < last_before),
                    "{pid} bears a frame of its new image before `exec`"
                );
                ensure!(
                    !(of_old && time > first_after),
                    "{pid} bears a frame of its old image after `exec`"
                );
                old += u64::from(of_old);
                new += u64::from(of_new);
                named += numbers[4] + numbers[5];
            }
            println!(
                "{} samples: {old} of the old images, {new} of the new, {named} named",
                rows.len()
            );
            // 60 processes × 30 ms × 997 Hz are 1,800 of each.
            ensure!(old > 1_200 && new > 1_200, "only {old} and {new} samples");
            ensure!(
                named as f64 > 0.9 * (old + new) as f64,
                "{named} of {} are named",
                old + new
            );
            processor.stop()?;
            sink.stop()
        },
    )
}
