//! Frames, binaries and text that the host has met, each with a small number, so that a sample costs no allocation.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use strobe_event::{BinaryKind, BuildId, Reason};

/// Frames known at one time: some 6 MiB. Beyond, those that no kept stack has are forgotten and met again.
const FRAMES_MAX: usize = 1 << 16;
/// Texts known at one time.
const TEXTS_MAX: usize = 1 << 16;
/// Longest text kept: paths are rarely longer than 200 bytes, and the kernel's names never than 512. It bounds what one sample can
/// add to a batch.
pub const TEXT_BYTES_MAX: usize = 1_024;
const _: () = assert!(TEXT_BYTES_MAX <= strobe_event::codec::TEXT_BYTES_MAX);

/// Number of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TextId(pub u32);

/// Number of a binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BinaryId(pub u32);

/// Number of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// A binary.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KnownBinary {
    /// What kind of identity `id` is.
    pub kind: BinaryKind,
    /// Its identity.
    pub id: BuildId,
    /// Its path.
    pub path: TextId,
}

/// A frame: see [`strobe_event::Frames`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KnownFrame {
    /// An address in a binary, with the name that the host gave it.
    InBinary {
        /// Which binary.
        binary: BinaryId,
        /// ELF virtual address, or the kernel's offset.
        address: u64,
        /// The host's name; the empty text for none.
        name: TextId,
    },
    /// A frame that has only a name.
    Named(TextId),
    /// An unknown one.
    Unknown(Reason),
}

/// All that is known.
#[derive(Debug)]
pub struct Vocabulary {
    texts: Vec<Arc<str>>,
    text_ids: FxHashMap<Arc<str>, TextId>,
    binaries: Vec<KnownBinary>,
    binary_ids: FxHashMap<(BinaryKind, BuildId), BinaryId>,
    frames: Vec<KnownFrame>,
    frame_ids: FxHashMap<KnownFrame, FrameId>,
}

/// The empty text.
pub const EMPTY: TextId = TextId(0);

impl Default for Vocabulary {
    fn default() -> Self {
        let mut vocabulary = Self {
            texts: Vec::new(),
            text_ids: FxHashMap::default(),
            binaries: Vec::new(),
            binary_ids: FxHashMap::default(),
            frames: Vec::new(),
            frame_ids: FxHashMap::default(),
        };
        vocabulary.text("");
        vocabulary
    }
}

impl Vocabulary {
    /// Returns whether it is time to start a new one, with what is still needed of this one.
    pub fn is_full(&self) -> bool {
        self.frames.len() >= FRAMES_MAX || self.texts.len() >= TEXTS_MAX
    }

    /// Returns the number of a text, cut at [`TEXT_BYTES_MAX`].
    pub fn text(&mut self, text: &str) -> TextId {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        if let Some(&id) = self.text_ids.get(text) {
            return id;
        }
        let id = TextId(self.texts.len() as u32);
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.text_ids.insert(text, id);
        id
    }

    /// Returns the number of a binary.
    pub fn binary(&mut self, kind: BinaryKind, id: &BuildId, path: &str) -> BinaryId {
        if let Some(&known) = self.binary_ids.get(&(kind, id.clone())) {
            return known;
        }
        let path = self.text(path);
        let number = BinaryId(self.binaries.len() as u32);
        self.binaries.push(KnownBinary {
            kind,
            id: id.clone(),
            path,
        });
        self.binary_ids.insert((kind, id.clone()), number);
        number
    }

    /// Returns the number of a frame.
    pub fn frame(&mut self, frame: KnownFrame) -> FrameId {
        let next = FrameId(self.frames.len() as u32);
        let id = *self.frame_ids.entry(frame).or_insert(next);
        if id == next {
            self.frames.push(frame);
        }
        id
    }

    /// Takes over a frame that another vocabulary knows; returns its number here.
    pub fn adopt(&mut self, from: &Self, frame: FrameId) -> FrameId {
        let frame = match *from.frame_of(frame) {
            KnownFrame::InBinary {
                binary,
                address,
                name,
            } => {
                let known = from.binary_of(binary);
                KnownFrame::InBinary {
                    binary: self.binary(known.kind, &known.id, from.text_of(known.path)),
                    address,
                    name: self.text(from.text_of(name)),
                }
            }
            KnownFrame::Named(name) => KnownFrame::Named(self.text(from.text_of(name))),
            unknown @ KnownFrame::Unknown(_) => unknown,
        };
        self.frame(frame)
    }

    /// Returns the text of a number.
    pub fn text_of(&self, id: TextId) -> &str {
        &self.texts[id.0 as usize]
    }

    /// Returns the binary of a number.
    pub fn binary_of(&self, id: BinaryId) -> &KnownBinary {
        &self.binaries[id.0 as usize]
    }

    /// Returns the frame of a number.
    pub fn frame_of(&self, id: FrameId) -> &KnownFrame {
        &self.frames[id.0 as usize]
    }

    /// Returns how many frames, binaries and texts are known.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.frames.len(), self.binaries.len(), self.texts.len())
    }
}
