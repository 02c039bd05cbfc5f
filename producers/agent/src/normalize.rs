//! Addresses → frames that mean something without the process: stage 6.
//!
//! The innermost address of a side that was interrupted is exact. Every other one is a return address and lies past its
//! call, perhaps in the next function; one byte back is inside the call. That byte is taken off here, once, so that nobody
//! later needs to know where in a stack a frame stood.

use rustc_hash::FxHashMap;
use strobe_event::{BinaryKind, Reason};

use crate::files::{Backing, FileId, Files};
use crate::images::Image;
use crate::kernel::{Area, Kernel};
use crate::mappings::Mapping;
use crate::vocabulary::{BinaryId, EMPTY, FrameId, KnownFrame, Vocabulary};

/// Kernel addresses whose frame is remembered: far more than the kernel has in its hot paths.
const KERNEL_ADDRESSES_MAX: usize = 1 << 16;

/// Turns addresses into frames, and remembers what it found: the same addresses come in stack after stack.
#[derive(Debug, Default)]
pub struct Normalizer {
    kernel: FxHashMap<u64, FrameId>,
    kernel_readings: u64,
    binaries: FxHashMap<FileId, BinaryId>,
    frames: Vec<FrameId>,
}

/// What the meaning of an address is looked up in.
pub struct Known<'a> {
    /// The mapped files.
    pub files: &'a Files,
    /// The kernel's symbols.
    pub kernel: &'a mut Kernel,
    /// What frames are numbered in.
    pub vocabulary: &'a mut Vocabulary,
}

impl Normalizer {
    /// Returns the frames of a sample's addresses (kernel's and user's, innermost first): root first, user before kernel.
    /// `now_ns` is the sample's time.
    pub fn frames(
        &mut self,
        (kernel_addresses, user_addresses): (&[u64], &[u64]),
        now_ns: u64,
        image: Option<&Image>,
        known: Known<'_>,
    ) -> &[FrameId] {
        self.frames.clear();
        let Known {
            files,
            kernel,
            vocabulary,
        } = known;
        for (depth, &address) in kernel_addresses.iter().enumerate() {
            let frame = self.kernel_frame(call_address(address, depth), now_ns, kernel, vocabulary);
            self.frames.push(frame);
        }
        // Neighbours mostly lie in the same mapping.
        let mut mapping: Option<&Mapping> = None;
        for (depth, &address) in user_addresses.iter().enumerate() {
            let address = call_address(address, depth);
            if !mapping.is_some_and(|mapping| (mapping.start..mapping.end).contains(&address)) {
                mapping = image.and_then(|image| image.mapping(address));
            }
            let frame = match (image, mapping) {
                (None, _) => KnownFrame::Unknown(Reason::ProcessGone),
                (_, None) => KnownFrame::Unknown(Reason::NoMapping),
                (_, Some(mapping)) => self.user_frame(address, mapping, files, vocabulary),
            };
            self.frames.push(vocabulary.frame(frame));
        }
        self.frames.reverse();
        &self.frames
    }

    /// Forgets all numbers: those of the vocabulary or of the files mean nothing any more.
    pub fn forget(&mut self) {
        self.kernel.clear();
        self.binaries.clear();
    }

    fn user_frame(
        &mut self,
        address: u64,
        mapping: &Mapping,
        files: &Files,
        vocabulary: &mut Vocabulary,
    ) -> KnownFrame {
        let id = match mapping.backing {
            Backing::File(id) => id,
            Backing::Anonymous => return KnownFrame::Unknown(Reason::Anonymous),
        };
        let file = files.get(id);
        let elf = match &file.elf {
            Ok(elf) => elf,
            Err(reason) => return KnownFrame::Unknown(*reason),
        };
        let offset = mapping.file_offset.saturating_add(address - mapping.start);
        match elf.address_of(offset) {
            Some(address) => KnownFrame::InBinary {
                binary: *self
                    .binaries
                    .entry(id)
                    .or_insert_with(|| vocabulary.binary(elf.kind, &elf.id, &file.path)),
                address,
                name: EMPTY,
            },
            None => KnownFrame::Unknown(Reason::NoMapping),
        }
    }

    fn kernel_frame(
        &mut self,
        address: u64,
        now_ns: u64,
        kernel: &mut Kernel,
        vocabulary: &mut Vocabulary,
    ) -> FrameId {
        if let Some(&known) = self.kernel.get(&address) {
            return known;
        }
        let frame = new_kernel_frame(address, now_ns, kernel, vocabulary);
        let frame = vocabulary.frame(frame);
        // Modules and BPF programs take one another's place: a list that was read again outdates what was found before.
        if self.kernel_readings != kernel.readings || self.kernel.len() >= KERNEL_ADDRESSES_MAX {
            self.kernel_readings = kernel.readings;
            self.kernel.clear();
        }
        // What is unknown is asked for again, so that the list is read again in its time.
        if !matches!(vocabulary.frame_of(frame), KnownFrame::Unknown(_)) {
            self.kernel.insert(address, frame);
        }
        frame
    }
}

/// Returns the address to look up: the leaf's own, and of a return address the byte before.
fn call_address(address: u64, depth: usize) -> u64 {
    if depth == 0 {
        address
    } else {
        address.saturating_sub(1)
    }
}

fn new_kernel_frame(
    address: u64,
    now_ns: u64,
    kernel: &mut Kernel,
    vocabulary: &mut Vocabulary,
) -> KnownFrame {
    let place = kernel.place(address, now_ns);
    let name = vocabulary.text(place.name.unwrap_or_default());
    match place.area {
        Area::Vmlinux { id, offset } => {
            let binary = vocabulary.binary(BinaryKind::Kernel, id, "[kernel]");
            KnownFrame::InBinary {
                binary,
                address: offset,
                name,
            }
        }
        Area::Module {
            name: module,
            id,
            offset,
        } => {
            let binary = vocabulary.binary(BinaryKind::KernelModule, id, &format!("[{module}]"));
            KnownFrame::InBinary {
                binary,
                address: offset,
                name,
            }
        }
        Area::Generated if name != EMPTY => KnownFrame::Named(name),
        Area::Generated => KnownFrame::Unknown(Reason::KernelHidden),
    }
}
