//! Every metric of every process, with what it should look like when all is well.

/// How a metric moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from 0 at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name, by Prometheus' rules: base unit at the end, `_total` for a counter.
    pub name: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// The name of its one label; empty where it has none.
    pub label: &'static str,
    /// What it says.
    pub help: &'static str,
    /// What it looks like when all is well, and what it means when not.
    pub healthy: &'static str,
}

const fn counter(
    name: &'static str,
    label: &'static str,
    help: &'static str,
    healthy: &'static str,
) -> Metric {
    Metric {
        name,
        kind: Kind::Counter,
        label,
        help,
        healthy,
    }
}

const fn gauge(name: &'static str, label: &'static str, help: &'static str, healthy: &'static str) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        label,
        help,
        healthy,
    }
}

/// Every metric, by process and then in the order of a sample's path.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    gauge("strobe_build_info", "version", "1, for the version that runs", "one version per role, but during a roll-out"),
    gauge("strobe_heartbeat_age_seconds", "part", "Time since a part of the process last moved", "under 1; above 30 the watchdog restarts the process"),

    counter("strobe_agent_samples_taken_total", "", "Ticks that found their CPU busy", "busy CPU seconds x frequency"),
    counter("strobe_agent_idle_ticks_total", "", "Ticks that found their CPU idle", "at most idle CPU seconds x frequency: a virtual machine may leave an idle CPU without ticks"),
    counter("strobe_agent_samples_dropped_total", "reason", "Samples that ended here, by reason", "0; spool_full and too_old: the bus was away for too long; ring_full: the host is overloaded"),
    counter("strobe_agent_samples_spooled_total", "", "Samples that are safe on disk", "follows strobe_agent_samples_taken_total within 2 s"),
    counter("strobe_agent_samples_sent_total", "", "Samples that the broker has", "follows strobe_agent_samples_spooled_total within seconds"),
    counter("strobe_agent_spool_written_bytes_total", "", "Bytes that the spool took", "some 10 to 40 per sample"),
    gauge("strobe_agent_spool_bytes", "", "Bytes that the spool holds", "below 64 MiB; growing: the bus does not take what is sampled"),
    gauge("strobe_agent_spool_limit_bytes", "", "The most that the spool may hold (`spool.size_limit_bytes`)", "as configured"),
    gauge("strobe_agent_unsent_records", "", "Records between the spool and the broker's word", "under 10; growing: the bus is away or slow"),
    counter("strobe_agent_stacks_forgotten_total", "", "Samples whose stack was lost before them", "under 0.1 % of the samples taken"),
    counter("strobe_agent_side_band_events_total", "", "The kernel's reports of mappings, forks and execs", "follows the host's process starts"),
    counter("strobe_agent_side_band_lost_total", "", "Reports that were lost, so that frames may stay without a binary", "0"),
    counter("strobe_agent_reads_given_up_total", "", "Reads of files and environments that did not end in time", "0; more: a file system does not answer, or a process holds up whoever reads its files"),
    gauge("strobe_agent_known", "kind", "What the agent keeps: images, frames, binaries, stacks", "steady after some minutes"),
    counter("strobe_agent_binaries_total", "result", "Binaries offered to the symbol store", "failed and not_queued 0; too_big a few"),
    gauge("strobe_agent_unwind_table_bytes", "", "Bytes of unwind tables in the kernel", "below `unwind.kernel_bytes_max`"),
    counter("strobe_agent_unwind_tables_made_total", "", "Unwind tables made", "as many as binaries are met for the first time"),
    counter("strobe_agent_unwind_tables_refused_total", "", "Binaries of which no table could be made", "a few, without frame information"),
    counter("strobe_agent_stack_ends_total", "end", "How user stacks ended", "above 95 % root, but for no_user and not_taken"),

    counter("strobe_bus_messages_read_total", "", "Messages read", "follows the input topic"),
    counter("strobe_bus_messages_written_total", "", "Messages that the stage gave out and the broker has", "follows strobe_bus_messages_read_total"),
    counter("strobe_bus_messages_skipped_total", "", "Messages that nothing was given out for", "0"),
    counter("strobe_bus_commits_total", "", "Commits of offsets", "at most five per second and partition"),
    counter("strobe_bus_commits_unanswered_total", "", "Commits without an answer, tried again", "0 while the broker is there"),
    counter("strobe_bus_commits_fenced_total", "", "Commits that came too late, from a member that had lost its partitions", "0 between deployments"),
    counter("strobe_bus_assignments_total", "", "Times that partitions came", "one per start and change of the group"),
    counter("strobe_bus_assignments_lost_total", "", "Times that partitions went without a chance to commit", "0"),
    counter("strobe_bus_pauses_total", "", "Times that reading was paused because the window was full", "few; more: the stage or the broker is the bottleneck"),
    gauge("strobe_bus_window_bytes", "", "Bytes between reading and commit", "below 64 MiB"),
    counter("strobe_bus_dead_letters_total", "", "Messages put aside", "0; more: `strobe dlq list` says why"),
    counter("strobe_bus_dead_letter_samples_total", "", "Samples in messages put aside", "0"),
    counter("strobe_bus_dead_letters_lost_total", "", "Messages that not even the dead letters took", "0; more: samples are lost, the log says which"),

    counter("strobe_processor_batches_total", "", "Batches named, tagged and weighed", "follows strobe.stacks.raw"),
    counter("strobe_processor_samples_total", "", "Samples in them", "follows what agents send"),
    counter("strobe_processor_batches_split_total", "", "Batches that outgrew the limit on messages and were split", "under 1 % of the batches"),
    counter("strobe_processor_retries_total", "", "Times that a batch was tried again for trouble with the symbol store", "0"),
    gauge("strobe_processor_tag_values_refused", "", "Tags that became `other`, since their key had a thousand values", "0; more: a rule takes values that never repeat"),
    gauge("strobe_processor_tags_cut", "", "Stacks that got tags without marks, since their batch had too many", "0"),
    gauge("strobe_processor_schemas_in_force", "", "Stack schemas in force, with those that others include", "as many as were applied"),
    counter("strobe_processor_schemas_switched_total", "", "Times that others came in force", "one per `strobe stacks apply`, and one per start"),
    counter("strobe_processor_schemas_refused_total", "", "Changes that were refused, so that those before stayed in force", "0; more: the log says which and why"),
    counter("strobe_processor_frames_total", "", "Frames that names were asked for", "follows the batches"),
    counter("strobe_processor_frames_unknown_total", "reason", "Frames that stayed addresses, by reason", "under 2 % of the frames; missing_binary: agents cannot upload, or have not yet"),
    counter("strobe_processor_memo_hits_total", "", "Frames whose name was remembered", "above 95 % of the frames once a service is warm"),
    gauge("strobe_processor_memo_bytes", "", "Bytes of remembered names", "at most the limit, plus what one batch adds"),
    counter("strobe_processor_symbol_file_lookups_total", "", "Addresses looked up in symbol files", "nearly all that is not remembered"),
    gauge("strobe_processor_symbol_files_open", "", "Symbol files open", "as many as binaries run, up to 256"),
    gauge("strobe_processor_symbol_file_bytes", "", "Bytes of symbol files in memory", "at most the limit, and half of it more within a batch"),
    counter("strobe_processor_symbol_file_evictions_total", "", "Times that bytes of a symbol file were let go of", "a few a minute; more: give `symbol_file_bytes` more"),
    counter("strobe_processor_symbol_files_renewed_total", "", "Times that a better symbol file took the place of what answered before", "one for each new binary"),
    counter("strobe_processor_symbol_files_made_total", "", "Symbol files made by this process", "one for each new binary, in the whole fleet"),
    counter("strobe_processor_symbol_files_failed_total", "", "Attempts that gave no symbol file", "few; `strobe symbols list --state failed` names them"),
    counter("strobe_processor_symbol_files_repaired_total", "", "Damaged symbol files made anew", "0; more: look at the store's disk"),
    gauge("strobe_processor_symbol_files_waiting", "", "Binaries that wait for their symbol file", "0 but after many came at once"),
    gauge("strobe_processor_binaries_wanted", "", "Binaries that are wanted and not in the symbol store", "few; `strobe symbols wanted` names them"),
    counter("strobe_processor_binaries_wanted_refused_total", "", "Wanted binaries beyond the most that are recorded", "0; more: somebody invents build ids"),
    counter("strobe_processor_keeper_faults_total", "", "Faults of the thread that keeps the symbol store", "0; more: the log has the place"),
    counter("strobe_processor_symbol_files_damaged_total", "", "Symbol files that did not hold together", "0"),
    counter("strobe_processor_store_lookups_total", "", "Times that a binary was looked for in the symbol store", "a few for each new binary"),
    counter("strobe_processor_store_misses_total", "", "Looks that found nothing", "only while new binaries are on their way"),
    counter("strobe_processor_worker_deaths_total", "", "Symbolizing processes that died on a binary", "0; more: a broken or hostile binary, the log names it"),
    counter("strobe_processor_worker_timeouts_total", "", "Requests to symbolizing processes that took too long", "0"),
    counter("strobe_processor_binaries_refused_total", "", "Binaries that ended a symbolizing process twice", "0"),

    counter("strobe_tuner_records_total", "", "Records of coverage read", "follows strobe.coverage"),
    counter("strobe_tuner_records_left_out_total", "reason", "Records that no plan is made from, by reason", "other_slots: those of hosts without a plan; too_late: 0 but after an outage of hours; refused, too_many_hosts: 0, the log says more"),
    counter("strobe_tuner_windows_total", "", "Windows of five minutes closed", "twelve per service, profiler and hour"),
    counter("strobe_tuner_plans_total", "", "Plans sent", "a few per service and day"),
    counter("strobe_tuner_hosts_doubted_total", "", "Reports of hosts that claimed more than ten times the median, believed in part", "0; more: `strobe sampling explain SERVICE` names the host"),
    counter("strobe_tuner_configs_refused_total", "", "Configurations that changed nothing: unsigned, by whom it is not for, old, or senseless", "0; more: `strobe audit --action configure` says why"),
    gauge("strobe_tuner_lag_messages", "", "Messages of coverage that are not read yet", "what a few seconds bring"),

    counter("strobe_sink_messages_total", "", "Messages read", "follows the topics"),
    counter("strobe_sink_batches_total", "", "Batches stored", "follows strobe.samples"),
    counter("strobe_sink_samples_total", "", "Samples stored", "follows strobe_processor_samples_total"),
    counter("strobe_sink_run_events_total", "", "Events of runs stored", "follows strobe.runs"),
    counter("strobe_sink_audit_records_total", "", "Records of the audit stored", "follows strobe.audit"),
    counter("strobe_sink_repeats_total", "", "Messages that had been stored before, left out", "0 but after restarts"),
    counter("strobe_sink_ranges_total", "", "Ranges of offsets stored", "about one per second and partition, fewer under load"),
    counter("strobe_sink_ranges_taken_over_total", "", "Ranges that another sink had begun and this one finished", "at most one per partition and takeover"),
    counter("strobe_sink_messages_missing_total", "", "Messages of such a range that the topic no longer has", "0; more: the retention is shorter than the sink was away"),
    counter("strobe_sink_inserts_total", "", "Inserts that ClickHouse took", "some per second"),
    counter("strobe_sink_insert_retries_total", "", "Inserts tried again", "0 while ClickHouse is there"),
    counter("strobe_sink_ranges_rejected_total", "", "Ranges that ClickHouse refused for what is in them", "0"),
    gauge("strobe_sink_lag_messages", "", "Messages that are not stored yet", "what a few seconds bring"),
    gauge("strobe_sink_window_bytes", "", "Bytes of messages that wait here", "below `sink.window_bytes`"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Checks that the page that operators read is this list.
    #[test]
    fn metrics_page() {
        let rows = METRICS.iter().map(|metric| {
            let label = if metric.label.is_empty() {
                String::new()
            } else {
                format!("`{}`", metric.label)
            };
            format!(
                "| `{}` | {label} | {} | {} |\n",
                metric.name, metric.help, metric.healthy
            )
        });
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let text = std::fs::read_to_string(page).unwrap();
        let head_end = text.find("|--|--|--|--|\n").unwrap() + "|--|--|--|--|\n".len();
        let expected = format!("{}{}", &text[..head_end], rows.collect::<String>());
        if std::env::var_os("STROBE_BLESS").is_some() {
            std::fs::write(page, &expected).unwrap();
        }
        assert!(
            std::env::var_os("STROBE_BLESS").is_some() || text == expected,
            "docs/metrics.md is not the list: see its head for how it is made"
        );
    }

    /// Checks the rules of names: one prefix, each once, a unit or a count at the end, a sentence and a healthy value.
    #[test]
    fn names_follow_the_rules() {
        let names: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            let name = metric.name;
            assert!(name.starts_with("strobe_"), "{name}");
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{name}"
            );
            assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
            assert!(!metric.help.is_empty() && !metric.healthy.is_empty(), "{name}");
            assert!(!metric.help.ends_with('.'), "{name}");
        }
    }
}
