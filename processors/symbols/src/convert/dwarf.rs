//! Debug information → functions, what was inlined into them, and lines.

use std::rc::Rc;

use gimli::{
    AttributeValue, DebugInfoOffset, DwarfPackage, EndianSlice, RunTimeEndian, UnitHeader, UnitOffset,
    constants as tag,
};
use rustc_hash::FxHashMap;
use strobe_event::Reason;

use super::draft::Draft;
use super::flatten::{Interval, flatten};
use super::lines::{Files, UnitLines};
use super::names::is_mangled;
use crate::file::write::Scope;

/// What gimli reads from: a section in memory.
pub(crate) type R<'d> = EndianSlice<'d, RunTimeEndian>;

/// Most references followed from a call to the function's name: abstract origin, then specification; more is a circle.
const REFERENCES_MAX: usize = 16;

/// Units kept parsed because others refer into them. Link-time optimization makes such references everywhere.
const UNITS_KEPT_MAX: usize = 512;

/// Deepest nesting of calls and functions that is followed.
const DEPTH_MAX: u16 = 512;

/// A compilation unit with the sections that it refers to.
struct Unit<'d> {
    dwarf: Rc<gimli::Dwarf<R<'d>>>,
    unit: gimli::Unit<R<'d>>,
}

/// A function's name as debug information has it.
#[derive(Debug, Clone, Copy, Default)]
struct Name<'d> {
    /// The name that linkers use.
    linkage: Option<&'d [u8]>,
    /// The plain one.
    plain: Option<&'d [u8]>,
}

impl<'d> Name<'d> {
    /// Returns the name to keep. Where linkers use a name that is not mangled it is an alias (`__GI_abort` for `abort`),
    /// or mangled in a way that nobody here can read: people look for the plain one.
    fn best(self) -> Option<&'d [u8]> {
        self.linkage
            .filter(|name| is_mangled(name))
            .or(self.plain)
            .or(self.linkage)
    }
}

/// What is read of a function, or of a call that was inlined.
#[derive(Default)]
struct Attributes<'d> {
    name: Name<'d>,
    low: Option<AttributeValue<R<'d>>>,
    high: Option<AttributeValue<R<'d>>>,
    ranges: Option<AttributeValue<R<'d>>>,
    origin: Option<AttributeValue<R<'d>>>,
    /// Nothing where the call has none: 0 is a file from DWARF 5 on.
    call_file: Option<u64>,
    call_line: u32,
}

/// Reads debug information into a draft.
pub(crate) struct Reader<'d> {
    main: Rc<gimli::Dwarf<R<'d>>>,
    package: Option<DwarfPackage<R<'d>>>,
    headers: Vec<UnitHeader<R<'d>>>,
    /// A header could not be read, and with it nothing behind it.
    cut: bool,
    /// Names by place in the main debug information.
    names: FxHashMap<usize, Name<'d>>,
    kept: FxHashMap<usize, Rc<Unit<'d>>>,
    /// Units that were kept before those: what is used of them comes back, the rest goes.
    kept_before: FxHashMap<usize, Rc<Unit<'d>>>,
}

/// A unit's functions while they are gathered.
#[derive(Default)]
struct Gathered {
    /// By function: the intervals of it and of what was inlined into it.
    intervals: Vec<(u32, Interval)>,
    functions: u32,
    /// Code of all functions.
    code: Vec<(u64, u64)>,
    /// Where some function lies could not be read.
    damaged: bool,
}

impl<'d> Reader<'d> {
    /// Returns the reader of a binary's debug information; `package` holds what was split off.
    pub(crate) fn new(dwarf: gimli::Dwarf<R<'d>>, package: Option<DwarfPackage<R<'d>>>) -> Self {
        let mut headers = Vec::new();
        let mut units = dwarf.units();
        // A header that cannot be read ends the list: where the next one lies is not known.
        let cut = loop {
            match units.next() {
                Ok(Some(header)) => headers.push(header),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        Self {
            main: Rc::new(dwarf),
            package,
            headers,
            cut,
            names: FxHashMap::default(),
            kept: FxHashMap::default(),
            kept_before: FxHashMap::default(),
        }
    }

    /// Reads everything. A unit that cannot be read costs itself, and is counted.
    ///
    /// # Errors
    /// [`Reason::OverLimit`] where it is more than may be.
    pub(crate) fn read(&mut self, draft: &mut Draft<'d>) -> Result<(), Reason> {
        // How many lie behind a header that cannot be read, nobody knows: they count as one.
        draft.facts.units_damaged += u32::from(self.cut);
        for header in self.headers.clone() {
            match self.unit(header, draft) {
                Ok(()) => draft.facts.units += 1,
                Err(Trouble::Reason(reason)) => return Err(reason),
                Err(Trouble::Damaged) => draft.facts.units_damaged += 1,
            }
        }
        Ok(())
    }

    fn unit(&mut self, header: UnitHeader<R<'d>>, draft: &mut Draft<'d>) -> Result<(), Trouble> {
        let main = Rc::clone(&self.main);
        let skeleton = main.unit(header)?;
        let mut files = Files::default();
        let mut lines = UnitLines::read(&main, &skeleton, &mut files, draft)?;
        let mut gathered = Gathered::default();
        let split = skeleton.dwo_id.is_some() && skeleton.dwo_name().is_ok_and(|name| name.is_some());
        let walked = match self.split(&skeleton) {
            Some(split) => self.walk(&split, true, &skeleton, &mut files, &mut gathered, draft),
            None => {
                draft.facts.units_elsewhere += u32::from(split);
                let unit = Unit {
                    dwarf: Rc::clone(&main),
                    unit: skeleton,
                };
                let walked = self.walk(&unit, false, &unit.unit, &mut files, &mut gathered, draft);
                drop(unit);
                walked
            }
        };
        // What was read before the damage is good.
        gathered.hand_over(&mut lines, draft)?;
        walked
    }

    /// Returns the unit that was split off from a skeleton, where it is there.
    fn split(&self, skeleton: &gimli::Unit<R<'d>>) -> Option<Unit<'d>> {
        let package = self.package.as_ref()?;
        let dwarf = package.find_cu(skeleton.dwo_id?, &self.main).ok()??;
        let header = dwarf.units().next().ok()??;
        let mut unit = dwarf.unit(header).ok()?;
        unit.copy_relocated_attributes(skeleton);
        Some(Unit {
            dwarf: Rc::new(dwarf),
            unit,
        })
    }

    /// Gathers the functions of a unit, and adds them as scopes to the draft.
    fn walk(
        &mut self,
        info: &Unit<'d>,
        split: bool,
        of_lines: &gimli::Unit<R<'d>>,
        files: &mut Files,
        gathered: &mut Gathered,
        draft: &mut Draft<'d>,
    ) -> Result<(), Trouble> {
        // Offsets into what was split off mean something within it alone.
        let mut own_names = FxHashMap::default();
        let mut entries = info.unit.entries_raw(None)?;
        // Functions and calls around the present entry: depth in the tree, scope (0 for one without code), mark, function,
        // depth of nesting.
        let mut around: Vec<(isize, u32, usize, u32, u16)> = Vec::new();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            while around.last().is_some_and(|&(outer, ..)| outer >= depth) {
                around.pop();
            }
            let is_function = abbreviation.tag() == tag::DW_TAG_subprogram;
            if !is_function && abbreviation.tag() != tag::DW_TAG_inlined_subroutine {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut read = Attributes::default();
            for &specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(specification)?;
                read.take(info, &attribute);
            }
            let outer = around.last().copied();
            let nested = match outer {
                _ if is_function => 0,
                // What was inlined into a function without code has none itself.
                None | Some((_, 0, ..)) => {
                    around.push((depth, 0, 0, 0, 0));
                    continue;
                }
                Some((.., nested)) => nested + 1,
            };
            let mut first = None;
            let (function, before) = match outer {
                Some((_, _, _, function, _)) if !is_function => (function, gathered.intervals.len()),
                _ => (gathered.functions, gathered.intervals.len()),
            };
            let ranges = read.ranges(info, |start, end| {
                if nested < DEPTH_MAX
                    && start < end
                    && let Some(code) = draft.code.around(start)
                {
                    first.get_or_insert(start);
                    // No function reaches beyond its section; one that claims to would lie over all others.
                    let end = end.min(code.end);
                    let interval = Interval {
                        start,
                        end,
                        depth: nested,
                        value: 0,
                    };
                    gathered.intervals.push((function, interval));
                    if is_function {
                        gathered.code.push((start, end));
                    }
                }
            });
            // It costs the one function alone: the entries behind it are where they were.
            gathered.damaged |= ranges.is_err();
            let Some(first) = first else {
                around.push((depth, 0, 0, 0, 0));
                continue;
            };
            let mut name = read.name;
            if name.linkage.is_none()
                && let Some(origin) = read.origin
            {
                let names = if split { Some(&mut own_names) } else { None };
                let found = self.name_behind(info, origin, names, 0);
                name.linkage = found.linkage;
                name.plain = name.plain.or(found.plain);
            }
            // Lean debug information leaves out the linkers' names where the symbol table has them.
            let symbol = (is_function && name.linkage.is_none())
                .then(|| draft.symbols.at(first))
                .flatten();
            let raw = match symbol.filter(|raw| is_mangled(raw)).or(name.best()) {
                Some(raw) if !raw.is_empty() => raw,
                // A call without a name is still a level of its own: it must not bear its caller's name.
                _ if !is_function => b"[inlined]",
                _ => draft.symbols.at(first).unwrap_or(b"[no name]"),
            };
            let (parent, mark) = match outer {
                Some((_, scope, mark, ..)) if !is_function => (scope, mark),
                _ => (0, draft.mark()),
            };
            let (call_file, call_line) = match read.call_file.filter(|_| !is_function) {
                Some(file) => (files.number(&self.main, of_lines, file, draft), read.call_line),
                None => (0, 0),
            };
            let scope = Scope {
                parent,
                function: draft.functions.intern(raw),
                call_file,
                call_line: if call_file == 0 { 0 } else { call_line },
            };
            let number = match draft.known_since(mark, &scope).filter(|_| !is_function) {
                Some(number) => number,
                None => draft.scope(scope),
            };
            for (_, interval) in &mut gathered.intervals[before..] {
                interval.value = number;
            }
            gathered.functions += u32::from(is_function);
            around.push((depth, number, mark, function, nested));
        }
        if gathered.damaged {
            return Err(Trouble::Damaged);
        }
        Ok(())
    }

    /// Returns the name of the function that an attribute refers to.
    fn name_behind(
        &mut self,
        info: &Unit<'d>,
        reference: AttributeValue<R<'d>>,
        own: Option<&mut FxHashMap<usize, Name<'d>>>,
        followed: usize,
    ) -> Name<'d> {
        match reference {
            AttributeValue::UnitRef(offset) => self.name_at(info, offset, own, followed),
            AttributeValue::DebugInfoRef(offset) if own.is_none() => {
                if let Some(&name) = self.names.get(&offset.0) {
                    return name;
                }
                match self.unit_around(offset) {
                    Some((unit, within)) => self.name_at(&unit, within, None, followed),
                    None => Name::default(),
                }
            }
            _ => Name::default(),
        }
    }

    /// Returns the name of the function at a place of a unit, which is remembered.
    fn name_at(
        &mut self,
        info: &Unit<'d>,
        offset: UnitOffset,
        mut own: Option<&mut FxHashMap<usize, Name<'d>>>,
        followed: usize,
    ) -> Name<'d> {
        let place = match (&own, offset.to_debug_info_offset(&info.unit.header)) {
            (Some(_), _) => offset.0,
            (None, Some(DebugInfoOffset(place))) => place,
            (None, None) => return Name::default(),
        };
        let known = match &own {
            Some(own) => own.get(&place),
            None => self.names.get(&place),
        };
        if let Some(&name) = known {
            return name;
        }
        let mut read = Attributes::default();
        // Damage here costs this name alone.
        let _ = read.read_at(info, offset);
        let mut name = read.name;
        if name.linkage.is_none()
            && followed < REFERENCES_MAX
            && let Some(origin) = read.origin
        {
            let found = self.name_behind(info, origin, own.as_deref_mut(), followed + 1);
            name.linkage = found.linkage;
            name.plain = name.plain.or(found.plain);
        }
        match own {
            Some(own) => own.insert(place, name),
            None => self.names.insert(place, name),
        };
        name
    }

    /// Returns the unit of the main debug information around a place, and the place within it.
    fn unit_around(&mut self, offset: DebugInfoOffset) -> Option<(Rc<Unit<'d>>, UnitOffset)> {
        let start = |header: &UnitHeader<R<'d>>| header.debug_info_offset().map_or(0, |at| at.0);
        let behind = self.headers.partition_point(|header| start(header) <= offset.0);
        let header = *self.headers.get(behind.checked_sub(1)?)?;
        let within = offset.to_unit_offset(&header)?;
        let place = start(&header);
        if let Some(unit) = self.kept.get(&place) {
            return Some((Rc::clone(unit), within));
        }
        let unit = match self.kept_before.remove(&place) {
            Some(unit) => unit,
            None => Rc::new(Unit {
                dwarf: Rc::clone(&self.main),
                unit: self.main.unit(header).ok()?,
            }),
        };
        if self.kept.len() >= UNITS_KEPT_MAX / 2 {
            self.kept_before = std::mem::take(&mut self.kept);
        }
        self.kept.insert(place, Rc::clone(&unit));
        Some((unit, within))
    }
}

impl<'d> Attributes<'d> {
    fn read_at(&mut self, info: &Unit<'d>, offset: UnitOffset) -> Result<(), gimli::Error> {
        let mut entries = info.unit.entries_raw(Some(offset))?;
        let Some(abbreviation) = entries.read_abbreviation()? else {
            return Ok(());
        };
        for &specification in abbreviation.attributes() {
            let attribute = entries.read_attribute(specification)?;
            self.take(info, &attribute);
        }
        Ok(())
    }

    fn take(&mut self, info: &Unit<'d>, attribute: &gimli::Attribute<R<'d>>) {
        let text = || {
            let text = info.dwarf.attr_string(&info.unit, attribute.value()).ok()?;
            Some(text.slice()).filter(|text| !text.is_empty())
        };
        match attribute.name() {
            tag::DW_AT_linkage_name | tag::DW_AT_MIPS_linkage_name => self.name.linkage = text(),
            tag::DW_AT_name => self.name.plain = text(),
            tag::DW_AT_low_pc => self.low = Some(attribute.value()),
            tag::DW_AT_high_pc => self.high = Some(attribute.value()),
            tag::DW_AT_ranges => self.ranges = Some(attribute.value()),
            tag::DW_AT_abstract_origin => self.origin = Some(attribute.value()),
            tag::DW_AT_specification => {
                self.origin.get_or_insert(attribute.value());
            }
            tag::DW_AT_call_file => {
                self.call_file = match attribute.value() {
                    AttributeValue::FileIndex(file) => Some(file),
                    value => value.udata_value(),
                };
            }
            tag::DW_AT_call_line => {
                let line = attribute.udata_value().unwrap_or(0);
                self.call_line = u32::try_from(line).unwrap_or(0);
            }
            _ => {}
        }
    }

    /// Calls `see` with each range of the code.
    fn ranges(&self, info: &Unit<'d>, mut see: impl FnMut(u64, u64)) -> Result<(), gimli::Error> {
        let (dwarf, unit) = (&info.dwarf, &info.unit);
        if let Some(ranges) = self.ranges {
            if let Some(mut ranges) = dwarf.attr_ranges(unit, ranges)? {
                while let Some(range) = ranges.next()? {
                    see(range.begin, range.end);
                }
            }
            return Ok(());
        }
        let (Some(low), Some(high)) = (self.low, self.high) else {
            return Ok(());
        };
        let Some(low) = dwarf.attr_address(unit, low)? else {
            return Ok(());
        };
        let end = match high.udata_value() {
            Some(length) => low.checked_add(length),
            None => dwarf.attr_address(unit, high)?,
        };
        if let Some(end) = end {
            see(low, end);
        }
        Ok(())
    }
}

impl Gathered {
    /// Hands the functions of a unit to the draft, with their lines, and then the lines of no function.
    fn hand_over(&mut self, lines: &mut UnitLines, draft: &mut Draft<'_>) -> Result<(), Trouble> {
        // Of one function all intervals stand together, unless one is declared within another.
        self.intervals.sort_by_key(|&(function, _)| function);
        let mut intervals = Vec::new();
        let mut stretches = Vec::new();
        for group in self.intervals.chunk_by(|a, b| a.0 == b.0) {
            intervals.clear();
            intervals.extend(group.iter().map(|&(_, interval)| interval));
            stretches.clear();
            flatten(&mut intervals, |start, end, scope| {
                stretches.push((start, end, scope))
            });
            draft.function(&stretches, &lines.lines)?;
        }
        self.code.sort_unstable();
        let mut code = self.code.iter().peekable();
        for &(start, end) in &lines.sequences {
            let mut at = start;
            while let Some(&&(from, to)) = code.peek().filter(|range| range.0 < end) {
                if at < from {
                    draft.loose(at, from.min(end), &lines.lines)?;
                }
                at = at.max(to);
                if to > end {
                    break;
                }
                code.next();
            }
            if at < end {
                draft.loose(at, end, &lines.lines)?;
            }
        }
        Ok(())
    }
}

/// Why a unit was not read to its end.
pub(crate) enum Trouble {
    /// It is damaged.
    Damaged,
    /// The whole binary is not to be read.
    Reason(Reason),
}

impl From<gimli::Error> for Trouble {
    fn from(_: gimli::Error) -> Self {
        Self::Damaged
    }
}

impl From<Reason> for Trouble {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason)
    }
}
