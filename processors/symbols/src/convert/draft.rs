//! What is gathered of a binary before it is written: functions with their rows, loose lines, symbols.

use std::io::{self, Write};

use strobe_event::Reason;

use super::elf::{Code, Symbols};
use super::flatten::{Interval, flatten};
use super::names::{Interner, demangle};
use crate::file::Facts;
use crate::file::write::{Row, Rows, Scope, Table};

/// A line of a source file, from an address on; file 0 is "nothing is known from here on".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    pub start: u64,
    pub file: u32,
    pub line: u32,
}

/// A stretch of code with its rows.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    start: u32,
    end: u32,
    first: u32,
    count: u32,
}

/// All that was gathered so far.
#[derive(Debug)]
pub(crate) struct Draft<'d> {
    pub facts: Facts,
    pub functions: Interner<&'d [u8]>,
    pub files: Interner<String>,
    pub symbols: Symbols<'d>,
    pub code: Code,
    image_base: u64,
    base: u64,
    span: u32,
    scopes: Vec<Scope>,
    rows: Vec<Row>,
    rows_max: usize,
    chunks: Vec<Chunk>,
    loose: Vec<Chunk>,
}

impl<'d> Draft<'d> {
    /// Returns the draft of a binary of which nothing but code and symbols is known.
    ///
    /// # Errors
    /// [`Reason::OverLimit`] where the code is spread over more than 4 GiB.
    pub(crate) fn new(code: Code, symbols: Symbols<'d>, rows_max: usize) -> Result<Self, Reason> {
        let (base, span) = code.span().ok_or(Reason::OverLimit)?;
        Ok(Self {
            facts: Facts::default(),
            functions: Interner::new(),
            files: Interner::new(),
            symbols,
            image_base: code.image_base(),
            code,
            base,
            span,
            scopes: Vec::new(),
            rows: Vec::new(),
            rows_max,
            chunks: Vec::new(),
            loose: Vec::new(),
        })
    }

    /// Adds a function, or a call that was inlined; returns its number.
    pub(crate) fn scope(&mut self, scope: Scope) -> u32 {
        self.scopes.push(scope);
        self.scopes.len() as u32
    }

    /// Adds a function by its name alone; returns its number.
    pub(crate) fn scope_of(&mut self, name: &'d [u8]) -> u32 {
        let function = self.functions.intern(name);
        self.scope(Scope {
            parent: 0,
            function,
            call_file: 0,
            call_line: 0,
        })
    }

    /// Returns the number of the scope that is added next, less one: for [`Draft::known_since`].
    pub(crate) fn mark(&self) -> usize {
        self.scopes.len()
    }

    /// Returns the number of a scope that says the same and was added since a mark: an unrolled loop has many.
    pub(crate) fn known_since(&self, mark: usize, scope: &Scope) -> Option<u32> {
        // The last few only: a search through all of a function's calls would cost more than it saves.
        let from = mark.max(self.scopes.len().saturating_sub(4));
        let at = self.scopes[from..].iter().position(|known| known == scope)?;
        Some((from + at) as u32 + 1)
    }

    /// Adds a function's stretches, (start, end, scope) in their order, with the lines of its compilation unit.
    ///
    /// # Errors
    /// [`Reason::OverLimit`] where there are more rows than may be.
    pub(crate) fn function(&mut self, stretches: &[(u64, u64, u32)], lines: &[Line]) -> Result<(), Reason> {
        let mut rest = stretches;
        while let Some(&(start, ..)) = rest.first() {
            let gap = rest.windows(2).position(|pair| pair[0].1 != pair[1].0);
            let (piece, behind) = rest.split_at(gap.map_or(rest.len(), |at| at + 1));
            rest = behind;
            let end = piece.last().map_or(start, |last| last.1);
            let first = self.rows.len();
            for &(start, end, scope) in piece {
                self.stretch(start, end, scope, lines)?;
            }
            let chunk = self.chunk(start, end, first);
            self.chunks.push(chunk);
        }
        Ok(())
    }

    /// Adds lines that belong to no function of their unit: assembly has them.
    ///
    /// # Errors
    /// As [`Draft::function`].
    pub(crate) fn loose(&mut self, start: u64, end: u64, lines: &[Line]) -> Result<(), Reason> {
        let first = self.rows.len();
        self.stretch(start, end, 0, lines)?;
        let chunk = self.chunk(start, end, first);
        self.loose.push(chunk);
        Ok(())
    }

    fn chunk(&self, start: u64, end: u64, first: usize) -> Chunk {
        Chunk {
            start: self.relative(start),
            end: self.relative(end),
            first: first as u32,
            count: (self.rows.len() - first) as u32,
        }
    }

    fn relative(&self, address: u64) -> u32 {
        address.saturating_sub(self.base).min(self.span.into()) as u32
    }

    /// Adds the rows of code that lies in one scope.
    fn stretch(&mut self, start: u64, end: u64, scope: u32, lines: &[Line]) -> Result<(), Reason> {
        let mut next = lines.partition_point(|line| line.start <= start);
        let mut at = start;
        while at < end {
            let (file, line) = match next.checked_sub(1).and_then(|last| lines.get(last)) {
                Some(line) => (line.file, line.line),
                None => (0, 0),
            };
            let start = self.relative(at);
            self.rows.push(Row {
                start,
                scope,
                file,
                line,
            });
            at = lines.get(next).map_or(end, |line| line.start);
            next += 1;
        }
        if self.rows.len() > self.rows_max {
            return Err(Reason::OverLimit);
        }
        Ok(())
    }

    /// Writes the symbol file.
    ///
    /// # Errors
    /// What `out` said.
    pub(crate) fn write(self, out: &mut impl Write) -> io::Result<()> {
        let Self {
            facts,
            mut functions,
            files,
            symbols,
            image_base,
            base,
            span,
            mut scopes,
            rows: drafted,
            mut chunks,
            mut loose,
            ..
        } = self;
        // Of identical functions that a linker has folded the first one holds. Others do not overlap; where damage makes
        // them, one that reaches over others must not blank them: what began last counts.
        chunks.sort_unstable_by_key(|chunk| (chunk.start, chunk.end, chunk.first));
        chunks.dedup_by_key(|chunk| (chunk.start, chunk.end));
        let mut stretches: Vec<Interval> = chunks
            .iter()
            .enumerate()
            .map(|(at, chunk)| Interval {
                start: chunk.start.into(),
                end: chunk.end.into(),
                depth: 0,
                value: at as u32,
            })
            .collect();
        loose.sort_unstable_by_key(|chunk| (chunk.start, chunk.end));
        let mut rows = Rows::default();
        let mut gaps = Gaps {
            base,
            symbols: &symbols,
            loose: &loose,
            drafted: &drafted,
            scope_of: vec![0; symbols.len()],
            next: 0,
            next_loose: 0,
        };
        let mut at = 0;
        flatten(&mut stretches, |start, end, chunk| {
            let (start, end) = (start as u32, end as u32);
            gaps.fill(at, start, &mut scopes, &mut functions, &mut rows);
            push_clipped(&drafted, &chunks[chunk as usize], start, end, 0, &mut rows);
            at = end;
        });
        gaps.fill(at, span, &mut scopes, &mut functions, &mut rows);
        drop((drafted, chunks, stretches, loose));
        let functions = functions.into_list();
        let table = Table {
            facts,
            image_base,
            base,
            span,
            rows,
            scopes,
            files: files.into_list(),
            functions: functions.into_iter().map(|raw| (raw, demangle(raw))).collect(),
        };
        table.write(out)
    }
}

/// Pushes the rows of a chunk between two addresses; with `scope`, as lying in that.
fn push_clipped(rows: &[Row], chunk: &Chunk, start: u32, end: u32, scope: u32, out: &mut Rows) {
    let own = &rows[chunk.first as usize..][..chunk.count as usize];
    let behind = own.partition_point(|row| row.start <= start);
    for row in own[behind.saturating_sub(1)..]
        .iter()
        .take_while(|row| row.start < end)
    {
        out.push(Row {
            start: row.start.max(start),
            scope: if scope == 0 { row.scope } else { scope },
            ..*row
        });
    }
}

/// What lies between the functions of the debug information: symbols, and the lines of assembly.
struct Gaps<'a, 'd> {
    base: u64,
    symbols: &'a Symbols<'d>,
    loose: &'a [Chunk],
    drafted: &'a [Row],
    /// For each symbol the number of its scope, 0 for none yet.
    scope_of: Vec<u32>,
    next: usize,
    next_loose: usize,
}

impl<'d> Gaps<'_, 'd> {
    /// Pushes what is known of the code between two addresses. Calls go upwards.
    fn fill(
        &mut self,
        from: u32,
        to: u32,
        scopes: &mut Vec<Scope>,
        functions: &mut Interner<&'d [u8]>,
        out: &mut Rows,
    ) {
        let mut at = from;
        while at < to {
            let address = self.base + u64::from(at);
            while self
                .symbols
                .covered
                .get(self.next)
                .is_some_and(|&(_, end, _)| end <= address)
            {
                self.next += 1;
            }
            let relative = |address: u64| (address - self.base).min(to.into()) as u32;
            let (end, scope) = match self.symbols.covered.get(self.next) {
                Some(&(start, end, symbol)) if start <= address => {
                    let known = &mut self.scope_of[symbol as usize];
                    if *known == 0 {
                        scopes.push(Scope {
                            parent: 0,
                            function: functions.intern(self.symbols.name(symbol)),
                            call_file: 0,
                            call_line: 0,
                        });
                        *known = scopes.len() as u32;
                    }
                    (relative(end), *known)
                }
                Some(&(start, ..)) => (relative(start), 0),
                None => (to, 0),
            };
            self.piece(at, end, scope, out);
            at = end;
        }
    }

    /// Pushes the rows of one symbol, or of none.
    fn piece(&mut self, start: u32, end: u32, scope: u32, out: &mut Rows) {
        let bare = |start| Row {
            start,
            scope,
            file: 0,
            line: 0,
        };
        out.push(bare(start));
        if scope == 0 {
            return;
        }
        while self
            .loose
            .get(self.next_loose)
            .is_some_and(|chunk| chunk.end <= start)
        {
            self.next_loose += 1;
        }
        let mut at = start;
        for chunk in &self.loose[self.next_loose..] {
            let (from, to) = (chunk.start.max(at), chunk.end.min(end));
            if chunk.start >= end {
                break;
            }
            if from < to {
                push_clipped(self.drafted, chunk, from, to, scope, out);
                out.push(bare(to));
                at = to;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::SymbolFile;

    /// Checks that a function whose damaged range lies over all others leaves their addresses to them, and that of two at the
    /// same place the first one holds.
    #[test]
    fn a_damaged_range_does_not_blank_its_neighbours() {
        let code = Code::in_range(0x1000..0x2000);
        let mut draft = Draft::new(code, Symbols::default(), 1_000).unwrap();
        let functions = [
            ("liar", 0x1000, 0x2000),
            ("one", 0x1100, 0x1200),
            ("folded into one", 0x1100, 0x1200),
            ("two", 0x1400, 0x1480),
        ];
        for (name, start, end) in functions {
            let scope = draft.scope_of(name.as_bytes());
            draft.function(&[(start, end, scope)], &[]).unwrap();
        }
        let mut bytes = Vec::new();
        draft.write(&mut bytes).unwrap();
        let length = bytes.len() as u64;
        let mut file = SymbolFile::open(Box::new(bytes), length, 1 << 20).unwrap();
        for (address, expected) in [
            (0x1050, "liar"),
            (0x1100, "one"),
            (0x11ff, "one"),
            (0x1200, "liar"),
            (0x1400, "two"),
            (0x147f, "two"),
            (0x1480, "liar"),
        ] {
            let mut places = Vec::new();
            assert!(file.find(address, &mut places).unwrap());
            assert_eq!(
                file.function(places[0].function).unwrap().name,
                expected,
                "{address:#x}"
            );
        }
    }
}
