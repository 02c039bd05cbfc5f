//! Random values of the wire's types: any that the wire can carry, whether or not they make sense together.

#![allow(dead_code, reason = "each test file that includes this one uses a part of it")]

use proptest::collection::vec;
use proptest::prelude::*;
use strobe_event::{
    Alert, AlertAnswer, AuditId, AuditRecord, Binary, BinaryKind, BuildId, ConfigFile, ConfigId, ConfigSet,
    Context, CoverageRecord, CpuCounts, DropCount, FrameTag, Frames, HostRecord, HostReport, Locations, Mark,
    Place, PlanRecord, Process, RawBatch, Request, RequestId, RequestState, RunEvent, RunHead, RunId,
    Samples, SamplesBatch, SignedConfig, SignedRequest, StackOutcome, StackSchemaFile, Stacks, Tags, Threads,
    TunerRecord, Weight,
};

/// Numbers of every length on the wire, up to the largest `int`.
fn int() -> impl Strategy<Value = u32> {
    (any::<u32>(), 1_u32..32).prop_map(|(bits, shift)| bits >> shift)
}

/// Numbers of every length on the wire, up to 64 bits.
fn long() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0_u32..64).prop_map(|(bits, shift)| bits >> shift)
}

fn ints() -> impl Strategy<Value = Vec<u32>> {
    vec(int(), 0..200)
}

fn longs() -> impl Strategy<Value = Vec<u64>> {
    vec(long(), 0..200)
}

fn codes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..200)
}

fn double() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter("a value that equals itself", |value| !value.is_nan())
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(".{0,20}", 0..20)
}

fn drops() -> impl Strategy<Value = Vec<DropCount>> {
    vec(
        (any::<u8>(), long()).prop_map(|(reason, samples)| DropCount { reason, samples }),
        0..4,
    )
}

fn run_head() -> impl Strategy<Value = RunHead> {
    let names = (any::<[u8; 16]>(), ".{0,40}", ".{0,10}", any::<u8>());
    (names, [long(), long(), long(), long()], [double(), double()]).prop_map(|(names, longs, doubles)| {
        let (id, host, profiler, cause) = names;
        let [started_us, planned_us, slot_us, period] = longs;
        let [run_probability, kernel_probability] = doubles;
        let id = RunId(id);
        RunHead {
            id,
            host,
            profiler,
            cause,
            started_us,
            planned_us,
            slot_us,
            run_probability,
            kernel_probability,
            period,
        }
    })
}

fn cpus() -> impl Strategy<Value = Vec<CpuCounts>> {
    let one = (int(), [long(), long(), long(), long(), long()]).prop_map(|(cpu, longs)| {
        let [taken, kept, idle, enabled_ns, running_ns] = longs;
        CpuCounts {
            cpu,
            taken,
            kept,
            idle,
            enabled_ns,
            running_ns,
        }
    });
    vec(one, 0..4)
}

fn binaries() -> impl Strategy<Value = Vec<Binary>> {
    let kind = (1_u8..=6).prop_filter_map("a kind", BinaryKind::from_code);
    let id = vec(any::<u8>(), 1..=BuildId::BYTES_MAX).prop_filter_map("an id", |bytes| BuildId::new(&bytes));
    vec(
        (kind, id, int()).prop_map(|(kind, id, path)| Binary { kind, id, path }),
        0..5,
    )
}

fn processes() -> impl Strategy<Value = Vec<Process>> {
    let one = ([int(), int(), int(), int(), int(), int()], long()).prop_map(|(ints, start_ns)| {
        let [pid, exec, service, executable, container, cgroup] = ints;
        Process {
            pid,
            start_ns,
            exec,
            service,
            executable,
            container,
            cgroup,
        }
    });
    vec(one, 0..5)
}

/// Returns a strategy for raw batches.
pub fn raw_batch() -> impl Strategy<Value = RawBatch> {
    let head = (
        run_head(),
        int(),
        long(),
        long(),
        cpus(),
        drops(),
        texts(),
        binaries(),
    );
    let frames = (ints(), longs(), ints(), codes()).prop_map(|(binary, address, name, reason)| Frames {
        binary,
        address,
        name,
        reason,
    });
    let stacks = (ints(), ints(), ints(), codes()).prop_map(|(shared, added, frames, end)| Stacks {
        shared,
        added,
        frames,
        end,
    });
    let threads = [ints(), ints(), ints()].prop_map(|[process, tid, name]| Threads { process, tid, name });
    let samples =
        (longs(), ints(), ints(), ints(), longs()).prop_map(|(time_delta_us, stack, thread, cpu, value)| {
            Samples {
                time_delta_us,
                stack,
                thread,
                cpu,
                value,
            }
        });
    (head, frames, stacks, processes(), threads, samples).prop_map(
        |(head, frames, stacks, processes, threads, samples)| {
            let (run, index, start_us, end_us, cpus, drops, strings, binaries) = head;
            RawBatch {
                run,
                index,
                start_us,
                end_us,
                cpus,
                drops,
                strings,
                binaries,
                frames,
                stacks,
                processes,
                threads,
                samples,
            }
        },
    )
}

fn place() -> impl Strategy<Value = Place> {
    any::<[u16; 2]>().prop_map(|[frame, inline]| Place { frame, inline })
}

fn outcome() -> impl Strategy<Value = StackOutcome> {
    let frame_tags = vec(
        (place(), int()).prop_map(|(place, tag)| FrameTag { place, tag }),
        0..3,
    );
    let marks = vec(
        (place(), any::<u8>(), int()).prop_map(|(place, kind, text)| Mark { place, kind, text }),
        0..3,
    );
    (ints(), frame_tags, marks).prop_map(|(tags, frame_tags, marks)| StackOutcome {
        tags,
        frame_tags,
        marks,
    })
}

/// Returns a strategy for stack schemas on the bus.
pub fn stack_schema() -> impl Strategy<Value = StackSchemaFile> {
    let texts = (".{0,20}", ".{0,20}", texts());
    (texts, int(), any::<bool>(), long()).prop_map(
        |((name, applied_by, text), version, enabled, applied_us)| StackSchemaFile {
            name,
            version,
            enabled,
            applied_us,
            applied_by,
            text,
        },
    )
}

/// Returns a strategy for named and weighted batches.
pub fn samples_batch() -> impl Strategy<Value = SamplesBatch> {
    let locations = (ints(), codes(), ints(), ints(), ints(), texts()).prop_map(
        |(count, reason, function, file, line, text)| Locations {
            count,
            reason,
            function,
            file,
            line,
            text,
        },
    );
    let tags = (
        [ints(), ints(), ints(), ints()],
        vec(
            [ints(), ints()].prop_map(|[names, values]| Context { names, values }),
            0..4,
        ),
        vec(outcome(), 0..4),
        texts(),
    )
        .prop_map(
            |([schemas, stack, context, outcome], contexts, outcomes, text)| Tags {
                schemas,
                contexts,
                stack,
                context,
                outcome,
                outcomes,
                text,
            },
        );
    let weights = vec(
        [double(), double()].prop_map(|[run, fleet]| Weight { run, fleet }),
        0..5,
    );
    (raw_batch(), long(), locations, tags, weights, [ints(), ints()]).prop_map(
        |(raw, generation, locations, tags, weights, [sample_weight, sample_context])| SamplesBatch {
            raw,
            generation,
            locations,
            tags,
            weights,
            sample_weight,
            sample_context,
        },
    )
}

/// Returns a strategy for run events.
pub fn run_event() -> impl Strategy<Value = RunEvent> {
    let counts = [long(), long(), long(), long(), long(), long()];
    (run_head(), any::<u8>(), ".{0,80}", counts, drops()).prop_map(|(run, state, detail, counts, drops)| {
        let [time_us, taken, spooled, idle, batches, done_us] = counts;
        RunEvent {
            run,
            state,
            time_us,
            detail,
            taken,
            spooled,
            idle,
            batches,
            drops,
            done_us,
        }
    })
}

/// Returns a strategy for coverage.
pub fn coverage() -> impl Strategy<Value = CoverageRecord> {
    let names = [".{0,30}", ".{0,30}", ".{0,30}"];
    let counts = prop::array::uniform12(long());
    let sums = prop::array::uniform6(double());
    (names, counts, any::<u8>(), sums).prop_map(|(names, counts, cpu_source, sums)| {
        let [service, profiler, host] = names;
        let [
            slot_us,
            hour,
            until_us,
            revision,
            planned,
            refused,
            complete,
            cut_short,
            done_us,
            taken,
            cpu_us,
            runs,
        ] = counts;
        let [drawn_inverse, u, uu, t, tt, tu] = sums;
        CoverageRecord {
            service,
            profiler,
            host,
            slot_us,
            hour,
            until_us,
            revision,
            planned,
            refused,
            complete,
            cut_short,
            drawn_inverse,
            done_us,
            taken,
            cpu_us,
            cpu_source,
            runs,
            u,
            uu,
            t,
            tt,
            tu,
        }
    })
}

/// Returns a strategy for plans.
pub fn plan() -> impl Strategy<Value = PlanRecord> {
    let names = [".{0,30}", ".{0,30}", ".{0,30}", ".{0,80}"];
    let shares = prop::array::uniform4(double());
    (names, shares, prop::array::uniform3(long())).prop_map(|(names, shares, times)| {
        let [service, profiler, selector, why] = names;
        let [run_probability, frequency_hz, keep, keep_before] = shares;
        let [planned_us, since_us, keep_since_us] = times;
        PlanRecord {
            service,
            profiler,
            selector,
            run_probability,
            planned_us,
            frequency_hz,
            since_us,
            keep,
            keep_since_us,
            keep_before,
            why,
        }
    })
}

/// Returns a strategy for tuners.
pub fn tuner() -> impl Strategy<Value = TunerRecord> {
    let rates = prop::array::uniform4(double());
    (plan(), rates, long(), long(), texts(), texts(), ".{0,200}").prop_map(
        |(plan, rates, window_us, live_hosts, doubted, same_name, state)| {
            let [
                desired_per_hour,
                observed_per_hour,
                expected_per_hour,
                reachable_per_hour,
            ] = rates;
            TunerRecord {
                plan,
                window_us,
                desired_per_hour,
                observed_per_hour,
                expected_per_hour,
                reachable_per_hour,
                live_hosts,
                doubted,
                same_name,
                state,
            }
        },
    )
}

/// Returns a strategy for hosts.
pub fn host() -> impl Strategy<Value = HostRecord> {
    let names = [".{0,30}", ".{0,30}", ".{0,30}"];
    (names, long(), int(), texts(), texts()).prop_map(|(names, time_us, cpus, labels, services)| {
        let [host, agent, kernel] = names;
        HostRecord {
            host,
            time_us,
            agent,
            kernel,
            cpus,
            labels,
            services,
        }
    })
}

fn fixed() -> impl Strategy<Value = [u8; 16]> {
    any::<[u8; 16]>()
}

/// Returns a strategy for what is asked for.
pub fn request() -> impl Strategy<Value = Request> {
    let names = [".{0,30}"; 7];
    let numbers = (
        any::<[u8; 2]>(),
        [int(), int()],
        [long(), long(), long()],
        double(),
    );
    (fixed(), names, texts(), numbers).prop_map(|(id, names, arguments, numbers)| {
        let [who, why, origin, service, region, host, profiler] = names;
        let ([action, cause], [pid, hosts], [asked_us, duration_us, wait_us], frequency_hz) = numbers;
        Request {
            id: RequestId(id),
            action,
            who,
            why,
            origin,
            asked_us,
            service,
            region,
            host,
            pid,
            hosts,
            profiler,
            arguments,
            frequency_hz,
            duration_us,
            wait_us,
            cause,
        }
    })
}

/// Returns a strategy for signed requests.
pub fn signed_request() -> impl Strategy<Value = SignedRequest> {
    let bytes = || vec(any::<u8>(), 0..200);
    (fixed(), bytes(), bytes()).prop_map(|(id, payload, signature)| SignedRequest {
        id: RequestId(id),
        payload,
        signature,
    })
}

/// Returns a strategy for states of requests.
pub fn request_state() -> impl Strategy<Value = RequestState> {
    let longs = [long(), long(), long(), long()];
    (host_report(), any::<bool>(), longs).prop_map(|(report, late, [time_us, left_us, taken, dropped])| {
        RequestState {
            id: report.id,
            host: report.host,
            phase: report.phase,
            late,
            time_us,
            life: report.life,
            left_us,
            run: report.run,
            taken,
            dropped,
            detail: report.detail,
        }
    })
}

/// Returns a strategy for reports of hosts.
pub fn host_report() -> impl Strategy<Value = HostReport> {
    let names = [".{0,30}", ".{0,30}"];
    ([fixed(), fixed(), fixed()], names, any::<u8>(), [long(), long()]).prop_map(
        |([id, life, run], [host, detail], phase, [taken, dropped])| HostReport {
            id: RequestId(id),
            host,
            life,
            phase,
            run: RunId(run),
            taken,
            dropped,
            detail,
        },
    )
}

/// Returns a strategy for alerts.
pub fn alert() -> impl Strategy<Value = Alert> {
    let names = [".{0,30}", ".{0,30}", ".{0,30}", ".{0,30}"];
    (names, any::<u8>(), [long(), long()], [texts(), texts()]).prop_map(|(names, status, times, texts)| {
        let [fingerprint, name, group, source] = names;
        let ([started_us, ended_us], [labels, annotations]) = (times, texts);
        Alert {
            fingerprint,
            name,
            status,
            started_us,
            ended_us,
            labels,
            annotations,
            group,
            source,
        }
    })
}

/// Returns a strategy for what rules made of alerts.
pub fn alert_answer() -> impl Strategy<Value = AlertAnswer> {
    ([".{0,30}", ".{0,30}", ".{0,30}"], fixed(), long()).prop_map(
        |([fingerprint, rule, link], request, time_us)| AlertAnswer {
            fingerprint,
            rule,
            request: RequestId(request),
            time_us,
            link,
        },
    )
}

/// Returns a strategy for records of the audit.
pub fn audit() -> impl Strategy<Value = AuditRecord> {
    let names = [".{0,30}", ".{0,30}", ".{0,30}", ".{0,30}"];
    let more = names;
    (
        names,
        more,
        (".{0,9}", fixed(), long(), any::<bool>()),
        [any::<u8>(), any::<u8>()],
    )
        .prop_map(|(names, more, (why, id, time_us, proved), [action, outcome])| {
            let [who, reporter, reason, detail] = names;
            let [subject, service, profiler, target] = more;
            AuditRecord {
                id: AuditId(id),
                time_us,
                who,
                proved,
                reporter,
                action,
                outcome,
                reason,
                detail,
                subject,
                service,
                profiler,
                target,
                why,
            }
        })
}

/// Returns a strategy for configurations.
pub fn config_set() -> impl Strategy<Value = ConfigSet> {
    let file = (".{0,20}", ".{0,60}").prop_map(|(name, text)| ConfigFile { name, text });
    (fixed(), [long(), long()], [".{0,30}", ".{0,30}"], vec(file, 0..5)).prop_map(
        |(id, [made_us, until_us], [by, why], files)| ConfigSet {
            id: ConfigId(id),
            made_us,
            until_us,
            by,
            why,
            files,
        },
    )
}

/// Returns a strategy for signed configurations.
pub fn signed_config() -> impl Strategy<Value = SignedConfig> {
    [vec(any::<u8>(), 0..50), vec(any::<u8>(), 0..50)]
        .prop_map(|[payload, signature]| SignedConfig { payload, signature })
}
