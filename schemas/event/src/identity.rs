//! Who a batch is: given once, by the spool, and never changed, so that repeats are recognized.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// 128 random bits, drawn each time that a spool is opened: cloned hosts and restored disks cannot collide.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub [u8; 16]);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({self})")
    }
}

/// Text that is not 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not 32 hexadecimal digits")]
pub struct NotHex128(pub String);

/// Reads 32 hexadecimal digits as 16 bytes, the first digits first.
pub(crate) fn parse_hex128(text: &str) -> Result<[u8; 16], NotHex128> {
    let plain = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    match u128::from_str_radix(text, 16) {
        Ok(bits) if plain => Ok(bits.to_be_bytes()),
        _ => Err(NotHex128(text.to_owned())),
    }
}

impl FromStr for Epoch {
    type Err = NotHex128;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_hex128(text).map(Self)
    }
}

/// The identity of one batch or run event: (host, epoch, sequence, part).
///
/// `part` is 0 for a whole batch, and says which part of how many where a processor had to split a batch that outgrew
/// the limit on messages: see [`Part`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// The host whose spool gave the identity.
    pub host: String,
    /// Which opening of that spool.
    pub epoch: Epoch,
    /// The position within the epoch, from 0, without gaps.
    pub sequence: u64,
    /// The number of its [`Part`].
    pub part: u32,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}.{}", self.host, self.epoch, self.sequence, self.part)
    }
}

/// Part `index` of `of` equal runs of a batch's samples; `of` is a power of two.
///
/// Its number is 0 for the whole batch (`of` = 1), and `of + index` otherwise. So a number says which samples it covers,
/// whoever split the batch and into however many: a batch that comes again with other names may be split otherwise, and
/// what is stored of it must still be recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    /// Into how many parts the batch was split: a power of two.
    pub of: u32,
    /// Which of them, from 0.
    pub index: u32,
}

impl Part {
    /// The whole batch.
    pub const WHOLE: Self = Self { of: 1, index: 0 };

    /// Returns the part with this number; nothing for 1, which is none's.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::WHOLE),
            1 => None,
            _ => {
                let of = 1 << number.ilog2();
                Some(Self {
                    of,
                    index: number - of,
                })
            }
        }
    }

    /// Returns the part's number.
    pub fn number(self) -> u32 {
        if self.of == 1 { 0 } else { self.of + self.index }
    }

    /// Returns whether every sample of `other` is in this part.
    pub fn covers(self, other: Self) -> bool {
        self.of <= other.of && other.index / (other.of / self.of) == self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that parts survive being numbered, and that a part covers its halves and nothing beside them.
    #[test]
    fn a_part_covers_its_halves() {
        assert_eq!(Part::from_number(1), None);
        for number in (2..1_024).chain([0]) {
            let part = Part::from_number(number).unwrap();
            assert_eq!(part.number(), number);
            for side in 0..2 {
                let half = Part {
                    of: 2 * part.of,
                    index: 2 * part.index + side,
                };
                assert!(part.covers(half) && Part::WHOLE.covers(half) && !half.covers(part));
            }
            let next = Part {
                of: part.of,
                index: part.index ^ 1,
            };
            assert!(part.of == 1 || !part.covers(next));
        }
    }

    /// Checks that an epoch survives being written as text, and that near misses are refused.
    #[test]
    fn epochs_round_trip_as_text() {
        let epoch = Epoch([7; 16]);
        assert_eq!(epoch.to_string().parse(), Ok(epoch));
        for bad in [
            "",
            "07",
            "+7070707070707070707070707070707",
            "g7070707070707070707070707070707",
        ] {
            assert!(bad.parse::<Epoch>().is_err(), "{bad}");
        }
    }
}
