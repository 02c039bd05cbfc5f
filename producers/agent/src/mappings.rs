//! The executable mappings of one image: which file's code stands at an address.

use std::sync::Arc;

use crate::files::Backing;

/// Mappings of code kept of an image: above 65,530 the kernel maps no more either (`vm.max_map_count`).
const MAPPINGS_MAX: usize = 65_530;

/// One executable mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Behind the last address.
    pub end: u64,
    /// What of the file stands at `start`.
    pub file_offset: u64,
    /// What backs it.
    pub backing: Backing,
}

impl Mapping {
    /// Returns whether an address in both means the same in either.
    fn agrees_with(&self, other: &Self) -> bool {
        match (self.backing, other.backing) {
            (Backing::Anonymous, Backing::Anonymous) => true,
            (own, others) => {
                own == others
                    && self.file_offset.wrapping_sub(self.start)
                        == other.file_offset.wrapping_sub(other.start)
            }
        }
    }

    /// Returns whether it says already what `other` says.
    fn holds(&self, other: &Self) -> bool {
        self.start <= other.start
            && other.end <= self.end
            && self.backing == other.backing
            && self.file_offset.wrapping_sub(self.start) == other.file_offset.wrapping_sub(other.start)
    }
}

/// Executable mappings, ascending, not overlapping. Shared with the parent until either changes.
#[derive(Debug, Clone, Default)]
pub struct Mappings(Arc<Vec<Mapping>>);

impl FromIterator<Mapping> for Mappings {
    /// Takes mappings as the kernel lists them: ascending, not overlapping.
    fn from_iter<T: IntoIterator<Item = Mapping>>(mappings: T) -> Self {
        Self(Arc::new(mappings.into_iter().take(MAPPINGS_MAX).collect()))
    }
}

impl Mappings {
    /// Returns all of them.
    pub fn all(&self) -> &[Mapping] {
        &self.0
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the mapping that holds `address`.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let at = self
            .0
            .partition_point(|mapping| mapping.start <= address)
            .checked_sub(1)?;
        self.0.get(at).filter(|mapping| address < mapping.end)
    }

    /// Adds a mapping; returns whether addresses mean something else than before.
    pub fn map(&mut self, new: Mapping) -> bool {
        // The same again, as `mprotect` reports it, changes nothing.
        if new.start >= new.end || self.find(new.start).is_some_and(|old| old.holds(&new)) {
            return false;
        }
        let mappings = Arc::make_mut(&mut self.0);
        let from = mappings.partition_point(|old| old.end <= new.start);
        let until = mappings.partition_point(|old| old.start < new.end);
        let overlaps = from < until;
        let changed = mappings[from..until].iter().any(|old| !old.agrees_with(&new));
        if overlaps {
            let cut = |old: Mapping| {
                let left = (old.start < new.start).then(|| Mapping {
                    end: new.start.min(old.end),
                    ..old
                });
                let right = (old.end > new.end).then(|| {
                    let start = new.end.max(old.start);
                    Mapping {
                        start,
                        file_offset: old.file_offset.saturating_add(start - old.start),
                        ..old
                    }
                });
                left.into_iter().chain(right)
            };
            let kept: Vec<Mapping> = mappings[from..until].iter().copied().flat_map(cut).collect();
            mappings.splice(from..until, kept);
        }
        if mappings.len() < MAPPINGS_MAX {
            let at = mappings.partition_point(|mapping| mapping.start < new.start);
            mappings.insert(at, new);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Files, MappedFile};
    use proptest::prelude::*;

    proptest! {
        /// Checks that every address means what was mapped there last, at the right offset, however mappings overlap.
        #[test]
        fn an_address_means_what_was_mapped_there_last(
            maps in prop::collection::vec((0_u64..60, 1_u64..20, 0_u64..1_000), 1..30)
        ) {
            let mut mappings = Mappings::default();
            let mut truth = [None; 100];
            for (start, bytes, offset) in maps {
                let end = start + bytes;
                mappings.map(Mapping { start, end, file_offset: offset, backing: Backing::Anonymous });
                for at in start..end {
                    truth[at as usize] = Some(offset + at - start);
                }
            }
            for at in 0..100_u64 {
                let found = mappings.find(at).map(|mapping| mapping.file_offset + at - mapping.start);
                prop_assert_eq!(found, truth[at as usize], "at {}", at);
            }
        }
    }

    /// Checks that code mapped over code tells that addresses changed their meaning, and that the same code again, or memory
    /// without a file over its like, does not.
    #[test]
    fn only_other_code_changes_what_addresses_mean() {
        let mut mappings = Mappings::default();
        let mapping = |start, end, file_offset| Mapping {
            start,
            end,
            file_offset,
            backing: Backing::Anonymous,
        };
        assert!(!mappings.map(mapping(0, 100, 0)));
        assert!(
            !mappings.map(mapping(50, 150, 7)),
            "memory without a file has no offsets"
        );
        let mut files = Files::new(None);
        let line = |inode| MappedFile {
            pid: u32::MAX,
            range: (0, 1),
            path: "/nowhere",
            build_id: None,
            inode: Some(((1, 1), inode, 0)),
        };
        let (one, two) = (files.backing(&line(1)), files.backing(&line(2)));
        let code = |start, end, file_offset, backing| Mapping {
            start,
            end,
            file_offset,
            backing,
        };
        assert!(mappings.map(code(0, 100, 0, one)));
        assert!(!mappings.map(code(20, 40, 20, one)), "a part of it again");
        assert!(!mappings.map(code(50, 200, 50, one)) || mappings.find(120).is_some());
        assert!(mappings.map(code(20, 40, 0, two)));
        assert!(mappings.map(code(0, 10, 5, one)), "another part of the file");
    }
}
