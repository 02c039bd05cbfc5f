//! Kernel addresses → (build id of vmlinux or module, offset) and the name that kallsyms gives.
//!
//! Modules and BPF programs come and go: an address that lies outside of everything known makes the lists be read again. That
//! takes longer than thousands of samples, so it is done ever more rarely while it does not help.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};

use rustc_hash::FxHashMap;
use strobe_event::BuildId;

use crate::elf::build_id_in_notes;

/// Symbols kept: a distribution's kernel with all of its modules has some 250,000 functions.
const SYMBOLS_MAX: usize = 1 << 20;
/// Bytes of names kept.
const NAME_BYTES_MAX: usize = 64 << 20;
/// Shortest time between two readings for the sake of an unknown address; doubled each time that a reading did not make it
/// known.
const READ_AGAIN_NS: u64 = 10_000_000_000;
/// Longest time between two readings.
const READ_AGAIN_NS_MAX: u64 = 1_280_000_000_000;
/// Code made at run time is no longer than this behind its symbol: the most that a BPF program takes.
const GENERATED_BYTES_MAX: u64 = 1 << 20;

/// Where a kernel address lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPlace<'a> {
    /// The function's name, if kallsyms shows it.
    pub name: Option<&'a str>,
    /// The area: vmlinux, a module, or code made at run time.
    pub area: Area<'a>,
}

/// A part of the kernel's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Area<'a> {
    /// The kernel itself; the offset counts from `_stext`.
    Vmlinux {
        /// Build id of the running kernel.
        id: &'a BuildId,
        /// Offset from `_stext`.
        offset: u64,
    },
    /// A module; the offset counts from the start of its text.
    Module {
        /// The module's name.
        name: &'a str,
        /// Its build id.
        id: &'a BuildId,
        /// Offset from the start of its text.
        offset: u64,
    },
    /// Code without a file: BPF programs, trampolines.
    Generated,
}

#[derive(Debug)]
struct Module {
    name: String,
    start: u64,
    end: u64,
    id: Option<BuildId>,
}

/// The kernel's symbols, sorted by address. Some 12 bytes and the name for each.
#[derive(Debug, Default)]
pub struct Kernel {
    addresses: Vec<u64>,
    /// Start of each name in `names`; it ends where the next begins.
    name_at: Vec<u32>,
    names: String,
    modules: Vec<Module>,
    text: (u64, u64),
    id: Option<BuildId>,
    read_ns: u64,
    pause_ns: u64,
    /// Times that the lists were read. Healthy: rises when modules or BPF programs are loaded.
    pub readings: u64,
}

impl Kernel {
    /// Reads the running kernel's symbols, modules and build id. What is hidden from us is left out.
    pub fn read(now_ns: u64) -> Self {
        let mut kernel = Self {
            id: fs::read("/sys/kernel/notes")
                .ok()
                .and_then(|n| build_id_in_notes(&n)),
            pause_ns: READ_AGAIN_NS,
            ..Self::default()
        };
        kernel.read_again(now_ns);
        kernel
    }

    /// Returns whether kallsyms shows no address: the agent lacks CAP_SYSLOG.
    pub fn is_hidden(&self) -> bool {
        self.addresses.is_empty()
    }

    fn read_again(&mut self, now_ns: u64) {
        self.read_ns = now_ns;
        self.readings += 1;
        if let Ok(file) = File::open("/proc/kallsyms") {
            self.take_symbols(BufReader::new(file));
        }
        let known: FxHashMap<String, Option<BuildId>> = self
            .modules
            .drain(..)
            .map(|module| (module.name, module.id))
            .collect();
        let lines = fs::read_to_string("/proc/modules").unwrap_or_default();
        self.modules = lines
            .lines()
            .filter_map(|line| parse_module(line, &known))
            .collect();
        self.modules.sort_by_key(|module| module.start);
    }

    /// Takes the text symbols of lines `address type name [module]`.
    fn take_symbols(&mut self, mut lines: impl BufRead) {
        let mut found: Vec<(u64, u32, u32)> = Vec::with_capacity(self.addresses.len());
        let mut names = String::with_capacity(self.names.len());
        let mut line = String::new();
        let mut text = (0, 0);
        while found.len() < SYMBOLS_MAX && names.len() < NAME_BYTES_MAX {
            line.clear();
            match lines.read_line(&mut line) {
                Ok(bytes) if bytes > 0 => {}
                _ => break,
            }
            let mut fields = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let Ok(address) = u64::from_str_radix(address, 16) else {
                continue;
            };
            match name {
                "_stext" => text.0 = address,
                "_etext" => text.1 = address,
                _ => {}
            }
            // `_etext` marks where the text ended, and is no function.
            if address == 0 || name == "_etext" || !matches!(kind, "t" | "T" | "w" | "W") {
                continue;
            }
            let at = names.len() as u32;
            names.push_str(name);
            found.push((address, at, name.len() as u32));
        }
        found.sort_unstable_by_key(|&(address, at, _)| (address, at));
        // Aliases: the first one listed stands for all.
        found.dedup_by_key(|&mut (address, _, _)| address);
        let mut packed = String::with_capacity(found.iter().map(|&(_, _, bytes)| bytes as usize).sum());
        self.addresses = Vec::with_capacity(found.len());
        self.name_at = Vec::with_capacity(found.len() + 1);
        for (address, at, bytes) in found {
            self.addresses.push(address);
            self.name_at.push(packed.len() as u32);
            packed.push_str(&names[at as usize..(at + bytes) as usize]);
        }
        self.name_at.push(packed.len() as u32);
        self.names = packed;
        self.text = text;
    }

    /// Returns the start and the name of the function that starts at `address` or before.
    fn symbol(&self, address: u64) -> Option<(u64, &str)> {
        let at = self
            .addresses
            .partition_point(|&start| start <= address)
            .checked_sub(1)?;
        let range = *self.name_at.get(at)? as usize..*self.name_at.get(at + 1)? as usize;
        Some((*self.addresses.get(at)?, self.names.get(range)?))
    }

    fn is_in_text(&self, address: u64) -> bool {
        (self.text.0..self.text.1).contains(&address)
    }

    /// Returns the name of the code made at run time that holds `address`, BPF programs for example.
    fn generated(&self, address: u64) -> Option<&str> {
        let (start, name) = self.symbol(address)?;
        let own = !self.is_in_text(start) && self.module(start).is_none();
        (own && address - start < GENERATED_BYTES_MAX).then_some(name)
    }

    fn module(&self, address: u64) -> Option<&Module> {
        let at = self
            .modules
            .partition_point(|module| module.start <= address)
            .checked_sub(1)?;
        self.modules.get(at).filter(|module| address < module.end)
    }

    fn knows(&self, address: u64) -> bool {
        self.is_in_text(address) || self.module(address).is_some() || self.generated(address).is_some()
    }

    /// Reads the lists again where `address` is outside of all that is known, unless that was done just now.
    fn look_for(&mut self, address: u64, now_ns: u64) {
        if self.is_hidden() || self.knows(address) || now_ns.saturating_sub(self.read_ns) < self.pause_ns {
            return;
        }
        self.read_again(now_ns);
        self.pause_ns = if self.knows(address) {
            READ_AGAIN_NS
        } else {
            (self.pause_ns * 2).min(READ_AGAIN_NS_MAX)
        };
    }

    /// Returns where a kernel address lies, reading the lists again if it is outside of all that is known.
    pub fn place(&mut self, address: u64, now_ns: u64) -> KernelPlace<'_> {
        self.look_for(address, now_ns);
        let name = self.symbol(address).map(|(_, name)| name);
        if self.is_in_text(address)
            && let Some(id) = &self.id
        {
            return KernelPlace {
                name,
                area: Area::Vmlinux {
                    id,
                    offset: address - self.text.0,
                },
            };
        }
        match self.module(address) {
            Some(Module {
                name: module,
                start,
                id: Some(id),
                ..
            }) => KernelPlace {
                name,
                area: Area::Module {
                    name: module,
                    id,
                    offset: address - start,
                },
            },
            // A kernel or a module without a build id has at least its names.
            _ => KernelPlace {
                name: if self.is_in_text(address) || self.module(address).is_some() {
                    name
                } else {
                    self.generated(address)
                },
                area: Area::Generated,
            },
        }
    }
}

/// Reads a line `name bytes users dependents state address`.
fn parse_module(line: &str, known: &FxHashMap<String, Option<BuildId>>) -> Option<Module> {
    let mut fields = line.split(' ');
    let name = fields.next()?;
    let bytes: u64 = fields.next()?.parse().ok()?;
    let start = u64::from_str_radix(fields.nth(3)?.strip_prefix("0x")?, 16).ok()?;
    let id = known.get(name).cloned().unwrap_or_else(|| {
        let notes = fs::read(format!("/sys/module/{name}/notes/.note.gnu.build-id")).ok()?;
        build_id_in_notes(&notes)
    });
    (start != 0).then(|| Module {
        name: name.to_owned(),
        start,
        end: start.saturating_add(bytes),
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "ffffffff81000000 T _stext\nffffffff81000010 T alpha\nffffffff81000010 t alias\n\
        ffffffff81000020 D data\nffffffff81000040 t beta\nffffffff82000000 T _etext\n\
        ffffffffc0000000 t bpf_prog_1234_probe\t[bpf]\nbroken line\n";

    fn kernel() -> Kernel {
        let mut kernel = Kernel {
            id: BuildId::new(&[9; 20]),
            pause_ns: READ_AGAIN_NS,
            ..Kernel::default()
        };
        kernel.take_symbols(LISTING.as_bytes());
        kernel
    }

    /// Checks that an address gets the function that starts before it, never data, and the first of several names.
    #[test]
    fn an_address_gets_the_function_that_starts_before_it() {
        let mut kernel = kernel();
        for (offset, name) in [(0x10, "alpha"), (0x3f, "alpha"), (0x40, "beta"), (0xff, "beta")] {
            let place = kernel.place(0xffff_ffff_8100_0000 + offset, 0);
            assert_eq!(place.name, Some(name));
            assert_eq!(
                place.area,
                Area::Vmlinux {
                    id: &BuildId::new(&[9; 20]).unwrap(),
                    offset
                }
            );
        }
    }

    /// Checks that a BPF program has a name and no file.
    #[test]
    fn a_bpf_program_has_a_name_and_no_file() {
        let mut kernel = kernel();
        let place = kernel.place(0xffff_ffff_c000_0004, 0);
        assert_eq!(
            (place.name, place.area),
            (Some("bpf_prog_1234_probe"), Area::Generated)
        );
    }

    /// Checks that an address outside of everything gets no neighbour's name.
    #[test]
    fn an_address_outside_of_everything_has_no_name() {
        let mut kernel = kernel();
        for address in [
            0xffff_ffff_8200_0000,
            0xffff_ffff_c000_0000 + GENERATED_BYTES_MAX,
            1,
        ] {
            let place = kernel.place(address, 0);
            assert_eq!((place.name, place.area), (None, Area::Generated), "{address:#x}");
        }
    }

    /// Checks that an address that stays unknown makes the lists be read ever more rarely.
    #[test]
    fn what_stays_unknown_is_looked_for_ever_more_rarely() {
        let mut kernel = Kernel::read(0);
        if kernel.is_hidden() {
            println!("skipped: what_stays_unknown_is_looked_for_ever_more_rarely: kallsyms is hidden");
            return;
        }
        for second in 0..1_000_u64 {
            kernel.place(1, second * 1_000_000_000);
        }
        assert!(
            (5..9).contains(&kernel.readings),
            "{} readings in 1000 s",
            kernel.readings
        );
    }
}
