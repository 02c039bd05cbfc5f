//! What a binary's ELF headers say: where its code is, which symbols it has.

use std::ops::Range;

use object::elf::{
    PF_X, SHF_EXECINSTR, STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, SymbolBind, SymbolType,
};
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, ReadRef, SectionFlags, SegmentFlags, SymbolFlags,
};

use super::Elf;
use super::flatten::{Interval, flatten};

/// Most symbols read: the largest programs have some millions.
const SYMBOLS_MAX: usize = 16 << 20;

/// Where a binary's code lies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Code {
    /// Address of the first loadable segment.
    image_base: u64,
    /// Sorted, not overlapping.
    ranges: Vec<Range<u64>>,
}

impl Code {
    /// Returns where the code of a binary lies: by its sections, or by its segments where it has none.
    pub(crate) fn of(elf: &Elf<'_>) -> Self {
        let by_section = elf.sections().filter_map(|section| {
            let SectionFlags::Elf { sh_flags, .. } = section.flags() else {
                return None;
            };
            let range = section.address()..section.address().checked_add(section.size())?;
            (sh_flags.0 & SHF_EXECINSTR.0 != 0 && !range.is_empty()).then_some(range)
        });
        let mut ranges: Vec<_> = by_section.collect();
        if ranges.is_empty() {
            let by_segment = elf.segments().filter_map(|segment| {
                let SegmentFlags::Elf { p_flags, .. } = segment.flags() else {
                    return None;
                };
                let range = segment.address()..segment.address().checked_add(segment.size())?;
                (p_flags.0 & PF_X.0 != 0 && !range.is_empty()).then_some(range)
            });
            ranges = by_segment.collect();
        }
        ranges.sort_unstable_by_key(|range| (range.start, range.end));
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start < last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        let image_base = elf.segments().map(|segment| segment.address()).min();
        Self {
            image_base: image_base.unwrap_or(0),
            ranges: merged,
        }
    }

    /// Returns code that lies in one range.
    #[cfg(test)]
    pub(crate) fn in_range(range: Range<u64>) -> Self {
        Self {
            image_base: 0,
            ranges: vec![range],
        }
    }

    /// Returns the address of the image's first byte.
    pub(crate) fn image_base(&self) -> u64 {
        self.image_base
    }

    /// Returns the first address of code, and the bytes from there to its end; nothing where they need more than 32 bits.
    pub(crate) fn span(&self) -> Option<(u64, u32)> {
        let base = self.ranges.first().map_or(0, |first| first.start);
        let end = self.ranges.last().map_or(0, |last| last.end);
        u32::try_from(end - base).ok().map(|span| (base, span))
    }

    /// Returns the range of code with an address in it.
    pub(crate) fn around(&self, address: u64) -> Option<&Range<u64>> {
        let behind = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(behind.checked_sub(1)?)?;
        (address < range.end).then_some(range)
    }
}

/// A symbol of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbol<'d> {
    start: u64,
    /// Equal to the start where the symbol has no size.
    end: u64,
    /// The lower the better, among several at one address.
    rank: u8,
    name: &'d [u8],
}

/// Appends the symbols of functions in a binary's tables; returns whether it has a full symbol table.
pub(crate) fn symbols<'d, R: ReadRef<'d>>(
    elf: &object::File<'d, R>,
    code: &Code,
    out: &mut Vec<Symbol<'d>>,
) -> bool {
    let mut add = |symbol: object::Symbol<'d, '_, R>| {
        let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
            return;
        };
        let (kind, binding) = (SymbolType(st_info.0 & 0xf), SymbolBind(st_info.0 >> 4));
        let function = kind == STT_FUNC || kind == STT_GNU_IFUNC;
        if symbol.is_undefined() || !(function || kind == STT_NOTYPE) {
            return;
        }
        let (Ok(name), start) = (symbol.name_bytes(), symbol.address()) else {
            return;
        };
        // Labels that assemblers make, and marks of ARM's: no functions.
        if name.is_empty()
            || name.starts_with(b".L")
            || name.starts_with(b"$")
            || code.around(start).is_none()
        {
            return;
        }
        // A version is no part of the name.
        let name = name.split(|&byte| byte == b'@').next().unwrap_or(name);
        let bound = match binding {
            STB_GLOBAL => 0,
            STB_WEAK => 1,
            _ => 2,
        };
        let end = start.saturating_add(symbol.size());
        let rank = u8::from(end == start) * 8 + u8::from(!function) * 4 + bound;
        if out.len() < SYMBOLS_MAX {
            out.push(Symbol {
                start,
                end,
                rank,
                name,
            });
        }
    };
    elf.symbols().for_each(&mut add);
    let full = elf.symbol_table().is_some_and(|_| elf.symbols().next().is_some());
    elf.dynamic_symbols().for_each(&mut add);
    full
}

/// The symbols of functions, one at each address, each with the code that it covers.
#[derive(Debug, Default)]
pub(crate) struct Symbols<'d> {
    /// By start, one for each.
    best: Vec<(u64, &'d [u8])>,
    /// Code that symbols cover: start, end, index of the symbol. Sorted, not overlapping.
    pub covered: Vec<(u64, u64, u32)>,
}

impl<'d> Symbols<'d> {
    /// Returns the symbols among all that were found.
    ///
    /// A symbol without a size, as hand-written assembly has, reaches up to the next one in the same range of code.
    pub(crate) fn new(mut found: Vec<Symbol<'d>>, code: &Code) -> Self {
        found.sort_unstable_by(|a, b| {
            let key = |symbol: &Symbol<'d>| (symbol.start, symbol.rank, symbol.name.len());
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(b.name))
        });
        found.dedup_by_key(|symbol| symbol.start);
        let intervals = found.iter().enumerate().map(|(at, symbol)| {
            let section = code.around(symbol.start).map_or(symbol.start, |range| range.end);
            let next = found.get(at + 1).map_or(u64::MAX, |next| next.start);
            let end = if symbol.end > symbol.start {
                symbol.end
            } else {
                next
            };
            Interval {
                start: symbol.start,
                end: end.min(section),
                depth: 0,
                value: at as u32,
            }
        });
        let mut covered = Vec::new();
        // A symbol inside of another one, an entry point for example, is the one that counts from there on.
        let mut intervals: Vec<_> = intervals.collect();
        flatten(&mut intervals, |start, end, value| {
            covered.push((start, end, value));
        });
        let best = found.iter().map(|symbol| (symbol.start, symbol.name)).collect();
        Self { best, covered }
    }

    /// Returns the name of a symbol by its index.
    pub(crate) fn name(&self, index: u32) -> &'d [u8] {
        self.best.get(index as usize).map_or(b"", |&(_, name)| name)
    }

    /// Returns the name of the symbol that begins at an address.
    pub(crate) fn at(&self, start: u64) -> Option<&'d [u8]> {
        let at = self.best.binary_search_by_key(&start, |&(start, _)| start).ok()?;
        Some(self.best[at].1)
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.best.len()
    }
}
