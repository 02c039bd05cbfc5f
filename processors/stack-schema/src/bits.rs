//! Sets of a stack's frames: bit 0 is the root. Conditions on neighbours are shifts, so a condition costs the same for one
//! frame and for sixty-four.

/// A set of up to 64 × `W` frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bits<const W: usize>(pub [u64; W]);

impl<const W: usize> Bits<W> {
    pub(crate) const NONE: Self = Self([0; W]);

    /// Returns the set of the first `count` frames.
    pub(crate) fn first(count: usize) -> Self {
        Self(std::array::from_fn(|word| {
            match count.saturating_sub(64 * word) {
                0 => 0,
                rest if rest >= 64 => u64::MAX,
                rest => (1 << rest) - 1,
            }
        }))
    }

    /// Returns the set of the frames from `from` to `to`, both counted from 0, both in it.
    pub(crate) fn between(from: usize, to: usize) -> Self {
        if from > to {
            return Self::NONE;
        }
        Self::first(to.saturating_add(1)).minus(&Self::first(from))
    }

    #[inline]
    pub(crate) fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub(crate) fn contains(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    #[inline]
    fn zip(&self, other: &Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|word| join(self.0[word], other.0[word])))
    }

    #[inline]
    pub(crate) fn and(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    #[inline]
    pub(crate) fn or(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    #[inline]
    pub(crate) fn minus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// Returns the frames that are called directly by one of these.
    pub(crate) fn callees(&self) -> Self {
        let mut carry = 0;
        Self(std::array::from_fn(|word| {
            let made = self.0[word] << 1 | carry;
            carry = self.0[word] >> 63;
            made
        }))
    }

    /// Returns the frames that call one of these directly.
    pub(crate) fn callers(&self) -> Self {
        let next = |word: usize| self.0.get(word + 1).copied().unwrap_or(0);
        Self(std::array::from_fn(|word| self.0[word] >> 1 | next(word) << 63))
    }

    /// Returns the frame nearest to the root.
    pub(crate) fn lowest(&self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some(64 * word + self.0[word].trailing_zeros() as usize)
    }

    /// Returns the frame nearest to the leaf.
    pub(crate) fn highest(&self) -> Option<usize> {
        let word = self.0.iter().rposition(|&word| word != 0)?;
        Some(64 * word + 63 - self.0[word].leading_zeros() as usize)
    }

    /// Returns the frames nearer to the leaf than the first of these, of `count` frames.
    pub(crate) fn below(&self, count: usize) -> Self {
        match self.lowest() {
            Some(at) => Self::first(count).minus(&Self::first(at + 1)),
            None => Self::NONE,
        }
    }

    /// Returns the frames nearer to the root than the last of these.
    pub(crate) fn above(&self) -> Self {
        self.highest().map_or(Self::NONE, Self::first)
    }

    /// Returns the frames in order from the root.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.0;
        words.into_iter().enumerate().flat_map(|(word, mut bits)| {
            std::iter::from_fn(move || {
                let at = (bits != 0).then(|| 64 * word + bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(at)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks every operation against sets of numbers.
        #[test]
        fn bits_are_sets(
            a in prop::collection::btree_set(0_usize..150, 0..20),
            b in prop::collection::btree_set(0_usize..150, 0..20),
            from in 0_usize..160, to in 0_usize..300,
        ) {
            let bits = |set: &BTreeSet<usize>| {
                let mut bits = Bits::<4>::NONE;
                set.iter().for_each(|&at| bits.insert(at));
                bits
            };
            let set = |bits: Bits<4>| bits.iter().collect::<BTreeSet<usize>>();
            let (x, y) = (bits(&a), bits(&b));
            prop_assert_eq!(&set(x), &a);
            prop_assert_eq!(set(x.and(&y)), &a & &b);
            prop_assert_eq!(set(x.or(&y)), &a | &b);
            prop_assert_eq!(set(x.minus(&y)), &a - &b);
            prop_assert_eq!(set(x.callees()), a.iter().map(|at| at + 1).collect::<BTreeSet<_>>());
            prop_assert_eq!(set(x.callers()), a.iter().filter(|&&at| at > 0).map(|at| at - 1).collect::<BTreeSet<_>>());
            prop_assert_eq!((x.lowest(), x.highest()), (a.first().copied(), a.last().copied()));
            prop_assert_eq!(set(x.below(160)), (0..160).filter(|at| a.first().is_some_and(|first| at > first)).collect());
            prop_assert_eq!(set(x.above()), (0..160).filter(|at| a.last().is_some_and(|last| at < last)).collect());
            prop_assert_eq!(set(Bits::between(from, to)), (from..=to.min(255)).collect());
            prop_assert_eq!(x.is_empty(), a.is_empty());
            prop_assert_eq!(x.contains(from), a.contains(&from));
        }
    }
}
