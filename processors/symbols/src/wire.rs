//! What parent and child say to each other, over the child's stdin and stdout.
//!
//! A message is its length (4 bytes) and that many bytes; numbers are little endian, text is a length (4 bytes) and
//! UTF-8. The first message is the parent's [`Hello`] with the limits, answered by [`READY`]; then requests and
//! answers alternate. Neither side trusts the other's lengths: a child that parsed a hostile binary may say anything.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use strobe_event::Reason;

/// Most bytes of a message: the answer to [`ADDRESSES_MAX`] addresses, with 16 KiB for each.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Most addresses of one request. It bounds the time of a request and the size of its answer.
pub(crate) const ADDRESSES_MAX: usize = 4_096;

/// What a worker says when its limits are in force. A change of the messages changes the number.
pub(crate) const READY: &[u8] = b"strobe symbol worker 2";

/// Tag of a request for names.
const TAG_NAMES: u8 = 0;
/// Tag of a request for a symbol file.
const TAG_CONVERT: u8 = 1;

/// Tag of an answer that holds for the whole binary.
const TAG_BINARY: u8 = 0;
/// Tag of an answer for each address.
const TAG_ADDRESSES: u8 = 1;
/// Tag of a part of a symbol file.
const TAG_PART: u8 = 2;
/// Tag of the end of a symbol file.
const TAG_END: u8 = 3;

/// Most bytes of a part of a symbol file.
pub(crate) const PART_BYTES: usize = 1 << 20;

/// The parent's first message: limits that the child puts on itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Most bytes of private memory.
    pub memory_bytes: u64,
    /// Most bytes of address space: private memory, mapped binaries and the program itself.
    pub address_space_bytes: u64,
    /// Most bytes of a binary, and of all parsed binaries together.
    pub binary_bytes: u64,
    /// Most binaries kept parsed.
    pub parsed: u32,
    /// Folders with separate debug information; none are consulted unless named here.
    pub debug_folders: Vec<PathBuf>,
}

impl Hello {
    /// Returns the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in [self.memory_bytes, self.address_space_bytes, self.binary_bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.parsed.to_le_bytes());
        out.extend_from_slice(&(self.debug_folders.len() as u32).to_le_bytes());
        for folder in &self.debug_folders {
            put_bytes(&mut out, folder.as_os_str().as_bytes());
        }
        out
    }

    /// Returns what the message says; nothing if it is malformed.
    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        let mut rest = Cursor(message);
        let (memory_bytes, address_space_bytes, binary_bytes) = (rest.u64()?, rest.u64()?, rest.u64()?);
        let parsed = rest.u32()?;
        let debug_folders = (0..rest.u32()?)
            .map(|_| rest.bytes().map(path))
            .collect::<Option<_>>()?;
        Some(Self {
            memory_bytes,
            address_space_bytes,
            binary_bytes,
            parsed,
            debug_folders,
        })
    }
}

/// What the parent asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// The names at ELF virtual addresses of a binary.
    Names(PathBuf, Vec<u64>),
    /// The symbol file of a binary, of its separate debug information and of what was split off from that.
    Convert([Option<PathBuf>; 3]),
}

/// Appends a request for names to `out`: the binary and the ELF virtual addresses asked for.
pub(crate) fn encode_request(out: &mut Vec<u8>, binary: &Path, addresses: &[u64]) {
    out.push(TAG_NAMES);
    put_bytes(out, binary.as_os_str().as_bytes());
    out.extend_from_slice(&(addresses.len() as u32).to_le_bytes());
    addresses
        .iter()
        .for_each(|address| out.extend_from_slice(&address.to_le_bytes()));
}

/// Returns a request for a symbol file.
pub(crate) fn encode_convert(sources: [Option<&Path>; 3]) -> Vec<u8> {
    let mut out = vec![TAG_CONVERT];
    for source in sources {
        put_bytes(
            &mut out,
            source.map_or(&[][..], |path| path.as_os_str().as_bytes()),
        );
    }
    out
}

/// Returns what a request asks; nothing if it is malformed.
pub(crate) fn decode_request(message: &[u8]) -> Option<Request> {
    let mut rest = Cursor(message);
    match rest.u8()? {
        TAG_NAMES => {}
        TAG_CONVERT => {
            let mut source = || {
                let bytes = rest.bytes()?;
                Some((!bytes.is_empty()).then(|| path(bytes)))
            };
            return Some(Request::Convert([source()?, source()?, source()?]));
        }
        _ => return None,
    }
    let binary = path(rest.bytes()?);
    let count = rest.u32()? as usize;
    if count > ADDRESSES_MAX {
        return None;
    }
    let addresses = (0..count).map(|_| rest.u64()).collect::<Option<_>>()?;
    Some(Request::Names(binary, addresses))
}

/// A piece of the answer to a request for a symbol file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// The next bytes of the file.
    Part(&'a [u8]),
    /// The file is complete.
    End,
    /// There is none.
    Failed(Reason),
}

impl Piece<'_> {
    /// Returns the message.
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Self::Part(bytes) => [&[TAG_PART], bytes].concat(),
            Self::End => vec![TAG_END],
            Self::Failed(reason) => vec![TAG_BINARY, reason as u8],
        }
    }
}

/// Returns what a message says of a symbol file; nothing if it is malformed.
pub(crate) fn decode_piece(message: &[u8]) -> Option<Piece<'_>> {
    match message.split_first()? {
        (&TAG_PART, bytes) => Some(Piece::Part(bytes)),
        (&TAG_END, []) => Some(Piece::End),
        (&TAG_BINARY, &[reason]) => Reason::from_code(reason).map(Piece::Failed),
        _ => None,
    }
}

/// One location of an answer: function and file are indexes into its text, whose first is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireLocation {
    /// Function, demangled.
    pub function: u32,
    /// Source file; 0 if not known.
    pub file: u32,
    /// Source line; 0 if not known.
    pub line: u32,
}

/// What the child answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// The same reason for every address.
    Binary(Reason),
    /// Names.
    Addresses(Names<'a>),
}

/// The answers to a request's addresses, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Names<'a> {
    /// Distinct text; the first is empty.
    pub text: Vec<&'a str>,
    /// For each address how many locations it has, or why none.
    pub addresses: Vec<Result<u16, Reason>>,
    /// The locations of all addresses, outermost first.
    pub locations: Vec<WireLocation>,
}

impl Answer<'_> {
    /// Returns the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Answer::Binary(reason) => out.extend_from_slice(&[TAG_BINARY, *reason as u8]),
            Answer::Addresses(names) => {
                out.push(TAG_ADDRESSES);
                out.extend_from_slice(&(names.text.len() as u32).to_le_bytes());
                names
                    .text
                    .iter()
                    .for_each(|text| put_bytes(&mut out, text.as_bytes()));
                out.extend_from_slice(&(names.addresses.len() as u32).to_le_bytes());
                for answer in &names.addresses {
                    let (count, reason) = answer.map_or_else(|reason| (0, reason as u8), |count| (count, 0));
                    out.extend_from_slice(&count.to_le_bytes());
                    out.push(reason);
                }
                for location in &names.locations {
                    for number in [location.function, location.file, location.line] {
                        out.extend_from_slice(&number.to_le_bytes());
                    }
                }
            }
        }
        out
    }
}

/// Returns the answer to a request of `asked` addresses; nothing unless every part of it holds.
pub(crate) fn decode_answer(message: &[u8], asked: usize) -> Option<Answer<'_>> {
    let mut rest = Cursor(message);
    match rest.u8()? {
        TAG_BINARY => return Reason::from_code(rest.u8()?).map(Answer::Binary),
        TAG_ADDRESSES => {}
        _ => return None,
    }
    let mut text = Vec::new();
    for _ in 0..rest.u32()? {
        text.push(std::str::from_utf8(rest.bytes()?).ok()?);
    }
    if text.first().is_none_or(|first| !first.is_empty()) || rest.u32()? as usize != asked {
        return None;
    }
    let mut total = 0_usize;
    let mut addresses = Vec::with_capacity(asked);
    for _ in 0..asked {
        let (count, reason) = (rest.u16()?, rest.u8()?);
        total += usize::from(count);
        addresses.push(match count {
            0 => Err(Reason::from_code(reason)?),
            _ => Ok(count),
        });
    }
    let mut locations = Vec::new();
    for _ in 0..total {
        let location = WireLocation {
            function: rest.u32()?,
            file: rest.u32()?,
            line: rest.u32()?,
        };
        // A function without a name is not one: index 0 is the empty text.
        if location.function == 0 || location.function.max(location.file) as usize >= text.len() {
            return None;
        }
        locations.push(location);
    }
    rest.0.is_empty().then_some(Answer::Addresses(Names {
        text,
        addresses,
        locations,
    }))
}

/// Returns `message` with its length before it.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + message.len());
    put_bytes(&mut out, message);
    out
}

/// Reads one message; nothing at the end of the stream.
///
/// # Errors
/// What the system said, or that the message is too long.
pub(crate) fn read_message(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("message of {length} bytes"),
        ));
    }
    let mut message = vec![0; length];
    from.read_exact(&mut message)?;
    Ok(Some(message))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Every caller's bytes are bounded far below 4 GiB: paths, cut names, messages.
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Reads numbers and text from the front of a message; each read gives nothing where too few bytes are left.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()?;
        self.take(count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names<'static> {
        Names {
            text: vec!["", "outer", "a.c", "inner"],
            addresses: vec![Ok(2), Err(Reason::NoSymbolAtAddress), Ok(1)],
            locations: vec![
                WireLocation {
                    function: 1,
                    file: 2,
                    line: 7,
                },
                WireLocation {
                    function: 3,
                    file: 2,
                    line: 9,
                },
                WireLocation {
                    function: 1,
                    file: 0,
                    line: 0,
                },
            ],
        }
    }

    /// Checks that each message comes back as it went in.
    #[test]
    fn messages_come_back_as_they_went_in() {
        let hello = Hello {
            memory_bytes: 1,
            address_space_bytes: 2,
            binary_bytes: 3,
            parsed: 4,
            debug_folders: vec![PathBuf::from("/usr/lib/debug")],
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let mut request = Vec::new();
        encode_request(&mut request, Path::new("/x"), &[1, u64::MAX]);
        assert_eq!(
            decode_request(&request),
            Some(Request::Names(PathBuf::from("/x"), vec![1, u64::MAX]))
        );
        let sources = [Some(Path::new("/x")), None, Some(Path::new("/y.dwp"))];
        assert_eq!(
            decode_request(&encode_convert(sources)),
            Some(Request::Convert(sources.map(|path| path.map(Path::to_path_buf))))
        );
        for piece in [Piece::Part(b"bytes"), Piece::End, Piece::Failed(Reason::Damaged)] {
            assert_eq!(decode_piece(&piece.encode()), Some(piece));
        }
        for answer in [Answer::Binary(Reason::Damaged), Answer::Addresses(names())] {
            let asked = if matches!(answer, Answer::Binary(_)) { 1 } else { 3 };
            assert_eq!(decode_answer(&answer.encode(), asked), Some(answer));
        }
    }

    /// Checks that an answer which does not hold together is refused: cut anywhere, of another length, or with an
    /// index outside of its text; and that no damaged byte makes the reader fail.
    #[test]
    fn answers_that_do_not_hold_together_are_refused() {
        let good = Answer::Addresses(names()).encode();
        assert!((0..good.len()).all(|cut| decode_answer(&good[..cut], 3).is_none()));
        assert_eq!(decode_answer(&good, 2), None);
        let mut outside = names();
        outside.locations[0].file = 4;
        assert_eq!(decode_answer(&Answer::Addresses(outside).encode(), 3), None);
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = decode_answer(&bad, 3);
            }
        }
    }
}
