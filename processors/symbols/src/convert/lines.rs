//! Line programs → lines by address, and the paths of source files.

use super::draft::{Draft, Line};
use super::dwarf::{R, Trouble};

/// The source files of a unit: their numbers in the draft, by their index in the unit.
#[derive(Debug, Default)]
pub(crate) struct Files {
    known: Vec<Option<u32>>,
}

/// Files of a unit whose numbers are remembered: units have hundreds.
const FILES_MAX: u64 = 1 << 16;

impl Files {
    /// Returns the number of a unit's file; 0 where there is no such file.
    pub(crate) fn number<'d>(
        &mut self,
        dwarf: &gimli::Dwarf<R<'d>>,
        unit: &gimli::Unit<R<'d>>,
        index: u64,
        draft: &mut Draft<'d>,
    ) -> u32 {
        if index >= FILES_MAX {
            return 0;
        }
        let at = index as usize;
        if let Some(&Some(number)) = self.known.get(at) {
            return number;
        }
        let header = unit.line_program.as_ref().map(|program| program.header());
        let number = match header.and_then(|header| path(dwarf, unit, header, index)) {
            Some(path) => draft.files.intern(path),
            None => 0,
        };
        if self.known.len() <= at {
            self.known.resize(at + 1, None);
        }
        self.known[at] = Some(number);
        number
    }
}

/// Returns a file's path: the folder of the compilation, the file's folder, its name, as far as each is not absolute.
fn path<'d>(
    dwarf: &gimli::Dwarf<R<'d>>,
    unit: &gimli::Unit<R<'d>>,
    header: &gimli::LineProgramHeader<R<'d>>,
    index: u64,
) -> Option<String> {
    let file = header.file(index)?;
    let mut path = match &unit.comp_dir {
        Some(folder) => folder.to_string_lossy().into_owned(),
        None => String::new(),
    };
    let mut add = |part: R<'d>| {
        let part = part.to_string_lossy();
        if part.starts_with('/') {
            path.clear();
        } else if !path.is_empty() && !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(&part);
    };
    // Folder 0 is that of the compilation.
    if file.directory_index() != 0
        && let Some(folder) = file.directory(header)
    {
        add(dwarf.attr_string(unit, folder).ok()?);
    }
    add(dwarf.attr_string(unit, file.path_name()).ok()?);
    Some(path)
}

/// The lines of a unit.
#[derive(Debug, Default)]
pub(crate) struct UnitLines {
    /// By address, each sequence with an end.
    pub lines: Vec<Line>,
    /// First and behind the last address of each sequence. Sorted, not overlapping.
    pub sequences: Vec<(u64, u64)>,
}

impl UnitLines {
    /// Runs a unit's line program. What a damaged one said before the damage is kept.
    pub(crate) fn read<'d>(
        dwarf: &gimli::Dwarf<R<'d>>,
        unit: &gimli::Unit<R<'d>>,
        files: &mut Files,
        draft: &mut Draft<'d>,
    ) -> Result<Self, Trouble> {
        let Some(program) = unit.line_program.clone() else {
            return Ok(Self::default());
        };
        let mut sequences: Vec<(u64, Vec<Line>)> = Vec::new();
        let mut current: Vec<Line> = Vec::new();
        let mut rows = program.rows();
        while let Ok(Some((_, row))) = rows.next_row() {
            let start = row.address();
            if row.end_sequence() {
                let lines = std::mem::take(&mut current);
                let first = lines.first().map_or(start, |line| line.start);
                if first < start && draft.code.around(first).is_some() {
                    sequences.push((start, lines));
                }
                continue;
            }
            let line = row.line().map_or(0, |line| line.get());
            let line = Line {
                start,
                file: files.number(dwarf, unit, row.file_index(), draft),
                line: u32::try_from(line).unwrap_or(0),
            };
            match current.last_mut() {
                // Of several rows at one address the last one holds.
                Some(last) if last.start == start => *last = line,
                Some(last) if (last.file, last.line) == (line.file, line.line) => {}
                // Addresses do not fall within a sequence; where they do, it is damaged.
                Some(last) if last.start > start => {}
                _ => current.push(line),
            }
        }
        Ok(Self::joined(sequences))
    }

    fn joined(mut sequences: Vec<(u64, Vec<Line>)>) -> Self {
        let first = |lines: &[Line]| lines.first().map_or(0, |line| line.start);
        sequences.sort_by_key(|(end, lines)| (first(lines), *end));
        let mut out = Self::default();
        let mut at = 0;
        let mut sequences = sequences.into_iter().peekable();
        while let Some((end, lines)) = sequences.next() {
            let start = first(&lines).max(at);
            // Sequences lie beside one another. One that reaches into the next has a damaged end, and must not blank it.
            let end = match sequences.peek() {
                Some((_, next)) if first(next) > start => end.min(first(next)),
                _ => end,
            };
            if start >= end {
                continue;
            }
            match out.lines.last() {
                Some(last) if last.start == start => {
                    out.lines.pop();
                }
                _ => {}
            }
            let behind = lines.partition_point(|line| line.start <= start);
            let own = &lines[behind.saturating_sub(1)..];
            out.lines.extend(own.iter().map(|line| Line {
                start: line.start.max(start),
                ..*line
            }));
            out.lines.push(Line {
                start: end,
                file: 0,
                line: 0,
            });
            match out.sequences.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => out.sequences.push((start, end)),
            }
            at = end;
        }
        out
    }
}
