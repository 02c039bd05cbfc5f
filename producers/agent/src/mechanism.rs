//! A declaration → the kernel's event; and whether this host has it.

use std::collections::BTreeMap;

use serde::Serialize;
use strobe_bpf::event::{
    Access, Breakpoint, Event as Kernel, TYPE_CACHE, TYPE_COUNTED_SOFTWARE, TYPE_HARDWARE, Tracepoint,
};

use crate::holders;
use crate::profilers::{Event, Hardware, Profiler, Rate, Software};

/// An address that a probe watches for no longer than it takes to open and to close it: below every program, above what is never mapped.
const PROBED_ADDRESS: u64 = 1 << 16;
/// Where probes look: every machine has it.
pub const PROBED_CPU: u32 = 0;

/// Whether this host can run a profiler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Availability {
    /// It can run now.
    Available,
    /// It could, and somebody holds what it needs.
    Taken {
        /// Who.
        by: Vec<String>,
    },
    /// It cannot.
    Missing {
        /// Why not.
        why: String,
    },
}

/// Returns the event that a run of the profiler samples.
///
/// # Errors
/// What is wrong with the parameters, or what this kernel lacks.
pub fn event(
    profiler: &Profiler,
    rate: Rate,
    parameters: &BTreeMap<String, String>,
) -> Result<Kernel, String> {
    let get = |name: &str| parameters.get(name).map(String::as_str);
    let period = Profiler::value(rate);
    match &profiler.event {
        Event::Software(software) => Ok(match rate {
            Rate::Hz(hz) => Kernel::Clock {
                config: software_config(*software),
                hz,
            },
            Rate::Period(period) => Kernel::Counted {
                kind: TYPE_COUNTED_SOFTWARE,
                config: software_config(*software),
                period,
            },
        }),
        Event::Hardware(hardware) => Ok(Kernel::Counted {
            kind: TYPE_HARDWARE,
            config: hardware_config(*hardware),
            period,
        }),
        Event::Cache(name) => Ok(Kernel::Counted {
            kind: TYPE_CACHE,
            config: cache_config(name)?,
            period,
        }),
        Event::Breakpoint {} => {
            let address = get("address").ok_or("it needs `address`: which one it watches, in hexadecimal")?;
            let length = get("length").unwrap_or("8");
            let access = match get("access").unwrap_or("w") {
                "w" => Access::Write,
                "rw" => Access::ReadWrite,
                "x" => Access::Execute,
                other => return Err(format!("`access` is `{}`: give w, rw or x", other.escape_debug())),
            };
            let length = length
                .parse()
                .map_err(|_| "`length` is no number: give 1, 2, 4 or 8")?;
            Ok(Kernel::Breakpoint(Breakpoint::new(
                hexadecimal(address)?,
                access,
                length,
            )?))
        }
        Event::Tracepoint { name, value } => {
            let name = name.as_deref().or(get("tracepoint"));
            let name = name.ok_or("it needs `tracepoint`: which one, sched:sched_switch for example")?;
            let found = Tracepoint::find(name)?;
            let amount = value.as_deref().map(|field| found.field(field)).transpose()?;
            Ok(Kernel::Tracepoint {
                id: found.id,
                period,
                amount,
            })
        }
    }
}

/// Finds out by trying whether this host can run the profiler now.
pub fn availability(profiler: &Profiler) -> Availability {
    let missing = |why: String| Availability::Missing { why };
    // What a run would be told; here only something that can be opened.
    let parameters = match &profiler.event {
        Event::Breakpoint {} => BTreeMap::from([
            ("address".to_owned(), format!("{PROBED_ADDRESS:#x}")),
            ("length".to_owned(), "1".to_owned()),
        ]),
        Event::Tracepoint { name: None, .. } => {
            BTreeMap::from([("tracepoint".to_owned(), "sched:sched_switch".to_owned())])
        }
        _ => BTreeMap::new(),
    };
    let event = match event(profiler, profiler.rate, &parameters) {
        Ok(event) => event,
        Err(why) => return missing(why),
    };
    match event.probe(PROBED_CPU) {
        Ok(()) => Availability::Available,
        Err(error) if error.is_taken() => Availability::Taken {
            by: holders::of_perf_events(),
        },
        Err(error) if error.is_missing() => missing(match profiler.event {
            Event::Hardware(_) | Event::Cache(_) => {
                "this machine has no counter for it: virtual machines often have none at all (no PMU)"
                    .to_owned()
            }
            _ => "this kernel has no such event".to_owned(),
        }),
        Err(error) => missing(crate::error::with_causes(&error)),
    }
}

/// `PERF_COUNT_SW_…`.
fn software_config(software: Software) -> u64 {
    match software {
        Software::CpuClock => 0,
        Software::TaskClock => 1,
        Software::PageFaults => 2,
        Software::ContextSwitches => 3,
        Software::CpuMigrations => 4,
        Software::MinorFaults => 5,
        Software::MajorFaults => 6,
        Software::AlignmentFaults => 7,
        Software::EmulationFaults => 8,
        Software::CgroupSwitches => 11,
    }
}

/// `PERF_COUNT_HW_…`.
fn hardware_config(hardware: Hardware) -> u64 {
    match hardware {
        Hardware::Cycles => 0,
        Hardware::Instructions => 1,
        Hardware::CacheReferences => 2,
        Hardware::CacheMisses => 3,
        Hardware::BranchInstructions => 4,
        Hardware::BranchMisses => 5,
        Hardware::BusCycles => 6,
        Hardware::StalledCyclesFrontend => 7,
        Hardware::StalledCyclesBackend => 8,
        Hardware::RefCycles => 9,
    }
}

/// `PERF_COUNT_HW_CACHE_…`: which cache, what is done, and whether it is there.
fn cache_config(name: &str) -> Result<u64, String> {
    const CACHES: [&str; 7] = ["L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node"];
    const DOINGS: [(&str, u64, u64); 6] = [
        ("loads", 0, 0),
        ("load-misses", 0, 1),
        ("stores", 1, 0),
        ("store-misses", 1, 1),
        ("prefetches", 2, 0),
        ("prefetch-misses", 2, 1),
    ];
    let unknown = || format!("`{name}` is no event of a cache: LLC-load-misses is one");
    let at = CACHES
        .iter()
        .position(|cache| name.strip_prefix(cache).is_some_and(|rest| rest.starts_with('-')));
    let cache = at.ok_or_else(unknown)?;
    let doing = &name[CACHES[cache].len() + 1..];
    let (_, operation, result) = DOINGS
        .iter()
        .find(|(known, ..)| *known == doing)
        .ok_or_else(unknown)?;
    Ok(cache as u64 | operation << 8 | result << 16)
}

fn hexadecimal(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| {
        format!(
            "`address` is `{}`: give it in hexadecimal, 0x7f0012345678 for example",
            text.escape_debug()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks names of cache events against the numbers that perf uses for them (`perf stat -vv -e …`).
    #[test]
    fn cache_events_have_perfs_numbers() {
        for (name, config) in [
            ("L1-dcache-load-misses", 0x1_0000),
            ("LLC-loads", 0x2),
            ("LLC-load-misses", 0x1_0002),
            ("dTLB-store-misses", 0x1_0103),
            ("node-prefetches", 0x206),
        ] {
            assert_eq!(cache_config(name), Ok(config), "{name}");
        }
        for name in ["LLC", "LLC-", "LLC-eats", "L4-loads", "é-loads"] {
            assert!(cache_config(name).is_err(), "{name}");
        }
    }

    /// Checks that hostile or forgotten parameters are refused with what to give instead.
    #[test]
    fn parameters_are_checked() {
        let watch = Profiler::parse(include_str!("../../profilers/data-watch.toml")).unwrap();
        let given = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()));
            event(&watch, watch.rate, &pairs.collect())
        };
        assert!(given(&[]).unwrap_err().contains("`address`"));
        assert!(given(&[("address", "zzz")]).unwrap_err().contains("hexadecimal"));
        assert!(
            given(&[("address", "0x1000008"), ("access", "q")])
                .unwrap_err()
                .contains("rw")
        );
        assert!(given(&[("address", "0x1000001"), ("length", "4")]).is_err());
        assert!(
            given(&[("address", "0xffffffff81000000")]).is_err(),
            "the kernel's"
        );
        assert!(given(&[("address", "0x1000008"), ("access", "rw"), ("length", "4")]).is_ok());
    }
}
