//! How other tools name a binary and a place in it, and how this store does.
//!
//! A *debug id* is 32 hexadecimal digits and an age. Of an ELF file it is the first 16 bytes of the build id, read as a GUID:
//! the first field of four bytes and the next two of two are little endian, and written as numbers. The age is 0. A build id
//! that is shorter is filled with zeros. What lies behind the 16 bytes is not in it, so that several binaries may have one
//! debug id: then none of them is meant.
//!
//! A *module-relative address* counts from the first byte of the image: from the address of its first loadable segment.

use strobe_event::BuildId;

/// The bytes of a build id that a debug id holds.
pub const PREFIX_BYTES: usize = 16;

/// The first bytes of a build id.
pub type Prefix = [u8; PREFIX_BYTES];

/// Returns the first bytes of a build id.
pub fn prefix(id: &BuildId) -> Prefix {
    let mut prefix = [0; PREFIX_BYTES];
    let bytes = id.as_bytes();
    let length = bytes.len().min(PREFIX_BYTES);
    prefix[..length].copy_from_slice(&bytes[..length]);
    prefix
}

/// Returns the debug id of a binary with a build id.
pub fn debug_id(id: &BuildId) -> String {
    let digits = swapped(prefix(id)).into_iter().map(|byte| format!("{byte:02X}"));
    digits.chain(std::iter::once("0".to_owned())).collect()
}

/// Returns the first bytes of the build id that a debug id stands for; nothing for what is no debug id.
pub fn prefix_of(debug_id: &str) -> Option<Prefix> {
    // Some write a GUID's dashes, and most an age of one digit; of ELF files it says nothing.
    let digits: String = debug_id.chars().filter(|&digit| digit != '-').collect();
    if !(32..=40).contains(&digits.len()) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut guid = [0; PREFIX_BYTES];
    for (byte, at) in guid.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
    }
    Some(swapped(guid))
}

/// Turns the fields of a GUID round that are little endian; twice is as it was.
fn swapped(mut guid: Prefix) -> Prefix {
    guid[..4].reverse();
    guid[4..6].reverse();
    guid[6..8].reverse();
    guid
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks an id against the one that another tool made of the same file (`symbolic`'s `ElfObject::debug_id`).
    #[test]
    fn a_debug_id_is_the_build_id_as_a_guid() {
        let id = [
            0xc0, 0xbc, 0xc3, 0xf1, 0x98, 0x27, 0xfe, 0x65, 0x30, 0x58, 0x40, 0x4b, 0x28, 0x31, 0xd9, 0xe6,
            0x41, 0x35, 0x53, 0x86,
        ];
        assert_eq!(
            debug_id(&BuildId::new(&id).unwrap()),
            "F1C3BCC0279865FE3058404B2831D9E60"
        );
    }

    proptest! {
        /// Checks that ids come back from the form that others write, with and without dashes, and that nothing else is taken
        /// for one.
        #[test]
        fn ids_come_back(bytes in proptest::collection::vec(any::<u8>(), 1..33), text in "\\PC{0,44}") {
            let id = BuildId::new(&bytes).unwrap();
            let written = debug_id(&id);
            prop_assert_eq!(prefix_of(&written), Some(prefix(&id)));
            prop_assert_eq!(prefix_of(&written.to_lowercase()), Some(prefix(&id)));
            let dashed = format!("{}-{}-{}", &written[..8], &written[8..12], &written[12..]);
            prop_assert_eq!(prefix_of(&dashed), Some(prefix(&id)));
            if let Some(prefix) = prefix_of(&text) {
                let digits: String = text.chars().filter(|&digit| digit != '-').collect();
                prop_assert!(digits.is_ascii());
                let back = debug_id(&BuildId::new(&prefix).unwrap());
                prop_assert_eq!(back[..32].to_lowercase(), digits[..32].to_lowercase());
            }
        }
    }
}
