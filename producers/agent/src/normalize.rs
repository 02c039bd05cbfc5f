//! Addresses → frames that mean something without the process: stage 6.
//!
//! The innermost address of a side that was interrupted is exact. Every other one is a return address and lies past its
//! call, perhaps in the next function; one byte back is inside the call. That byte is taken off here, once, so that nobody
//! later needs to know where in a stack a frame stood.

use strobe_event::{BinaryKind, Reason};

use crate::files::{Backing, Files};
use crate::images::Image;
use crate::kernel::{Area, Kernel};
use crate::vocabulary::{EMPTY, FrameId, KnownFrame, Vocabulary};

/// Returns in `out` the frames of a sample's addresses (kernel's and user's, innermost first): root first, user before
/// kernel. `now_ns` is the sample's time.
pub fn normalize(
    (kernel_addresses, user_addresses): (&[u64], &[u64]),
    now_ns: u64,
    image: Option<&Image>,
    files: &Files,
    kernel: &mut Kernel,
    vocabulary: &mut Vocabulary,
    out: &mut Vec<FrameId>,
) {
    out.clear();
    for (depth, &address) in kernel_addresses.iter().enumerate() {
        out.push(kernel_frame(
            call_address(address, depth),
            now_ns,
            kernel,
            vocabulary,
        ));
    }
    for (depth, &address) in user_addresses.iter().enumerate() {
        let frame = user_frame(call_address(address, depth), image, files, vocabulary);
        out.push(vocabulary.frame(frame));
    }
    out.reverse();
}

/// Returns the address to look up: the leaf's own, and of a return address the byte before.
fn call_address(address: u64, depth: usize) -> u64 {
    if depth == 0 {
        address
    } else {
        address.saturating_sub(1)
    }
}

fn user_frame(address: u64, image: Option<&Image>, files: &Files, vocabulary: &mut Vocabulary) -> KnownFrame {
    let Some(image) = image else {
        return KnownFrame::Unknown(Reason::ProcessGone);
    };
    let Some(mapping) = image.mapping(address) else {
        return KnownFrame::Unknown(Reason::NoMapping);
    };
    let file = match mapping.backing {
        Backing::File(id) => files.get(id),
        Backing::Anonymous => return KnownFrame::Unknown(Reason::Anonymous),
    };
    let elf = match &file.elf {
        Ok(elf) => elf,
        Err(reason) => return KnownFrame::Unknown(*reason),
    };
    let offset = mapping.file_offset.saturating_add(address - mapping.start);
    match elf.address_of(offset) {
        Some(address) => {
            let binary = vocabulary.binary(elf.kind, &elf.id, &file.path);
            KnownFrame::InBinary {
                binary,
                address,
                name: EMPTY,
            }
        }
        None => KnownFrame::Unknown(Reason::NoMapping),
    }
}

fn kernel_frame(address: u64, now_ns: u64, kernel: &mut Kernel, vocabulary: &mut Vocabulary) -> FrameId {
    let place = kernel.place(address, now_ns);
    let name = vocabulary.text(place.name.unwrap_or_default());
    let frame = match place.area {
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
    };
    vocabulary.frame(frame)
}
