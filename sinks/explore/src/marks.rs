//! Marks: what stack schemas leave out or rename when stacks are shown.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::{FxHashSet, FxHasher};
use strobe_event::MarkKind;

/// Marks of a stack as their row says them.
#[derive(Debug, Clone, PartialEq, Eq, clickhouse::Row, serde::Deserialize)]
pub(crate) struct MarksRow {
    pub(crate) stack: u64,
    pub(crate) of_service: String,
    pub(crate) frames: Vec<u16>,
    pub(crate) inlines: Vec<u16>,
    pub(crate) kinds: Vec<i8>,
    pub(crate) texts: Vec<String>,
}

/// Texts of marks, each distinct one once: a few schemas and names stand in the marks of very many stacks.
pub(crate) type MarkTexts = FxHashSet<Arc<str>>;

/// What becomes of one location.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct OfPlace {
    frame: u16,
    inline: u16,
    /// Whether the text is the schema that leaves the location out, or the name that it is shown by.
    left_out: bool,
    text: Arc<str>,
}

/// Marks of a stack, by place: frame counted from the root, location within it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Marks(Arc<[OfPlace]>);

impl MarksRow {
    /// Returns the marks; nothing where there are none.
    pub(crate) fn marks(&self, texts: &mut MarkTexts) -> Option<Marks> {
        let mut places = Vec::with_capacity(self.frames.len());
        let rows = self
            .frames
            .iter()
            .zip(&self.inlines)
            .zip(&self.kinds)
            .zip(&self.texts);
        for (((&frame, &inline), &kind), text) in rows {
            let Some(kind) = u8::try_from(kind).ok().and_then(MarkKind::from_code) else {
                continue;
            };
            let text = match texts.get(text.as_str()) {
                Some(known) => Arc::clone(known),
                None => {
                    let made: Arc<str> = text.as_str().into();
                    texts.insert(Arc::clone(&made));
                    made
                }
            };
            places.push(OfPlace {
                frame,
                inline,
                left_out: kind != MarkKind::Renamed,
                text,
            });
        }
        places.sort_unstable();
        (!places.is_empty()).then(|| Marks(places.into()))
    }
}

impl Marks {
    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the text of a mark of one of both kinds.
    fn text(&self, frame: usize, inline: usize, left_out: bool) -> Option<&str> {
        let key = (u16::try_from(frame).ok()?, u16::try_from(inline).ok()?, left_out);
        let found = self
            .0
            .binary_search_by_key(&key, |mark| (mark.frame, mark.inline, mark.left_out))
            .ok()?;
        Some(&self.0[found].text)
    }

    pub(crate) fn leaves_out(&self, frame: usize, inline: usize) -> bool {
        self.text(frame, inline, true).is_some()
    }

    pub(crate) fn name(&self, frame: usize, inline: usize) -> Option<&str> {
        self.text(frame, inline, false)
    }

    /// Returns the schema that leaves out the location nearest to the leaf: it speaks for a stack of which nothing is left,
    /// since that is where the time was spent.
    pub(crate) fn hidden_by(&self) -> Option<&str> {
        let out = self.0.iter().rev().find(|mark| mark.left_out)?;
        Some(&out.text)
    }

    /// Returns a key for a stack as these marks show it: the same for the same marks.
    pub(crate) fn key(&self, stack: u64) -> u64 {
        let mut hasher = FxHasher::default();
        (stack, self).hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(marks: &[(u16, u16, MarkKind, &str)]) -> MarksRow {
        MarksRow {
            stack: 7,
            of_service: "s".into(),
            frames: marks.iter().map(|mark| mark.0).collect(),
            inlines: marks.iter().map(|mark| mark.1).collect(),
            kinds: marks.iter().map(|mark| mark.2 as i8).collect(),
            texts: marks.iter().map(|mark| mark.3.to_owned()).collect(),
        }
    }

    /// Checks that a row's marks stand at their places, and that one may both rename and leave out.
    #[test]
    fn marks_stand_at_their_places() {
        let marks = row(&[
            (0, 0, MarkKind::Hidden, "a"),
            (2, 1, MarkKind::Renamed, "short"),
            (2, 1, MarkKind::Folded, "b"),
            (3, 0, MarkKind::Renamed, "other"),
        ])
        .marks(&mut MarkTexts::default())
        .unwrap();
        assert_eq!(marks.len(), 4);
        assert!(marks.leaves_out(0, 0) && marks.leaves_out(2, 1));
        assert!(!marks.leaves_out(3, 0) && !marks.leaves_out(2, 0));
        assert_eq!(marks.name(3, 0), Some("other"));
        assert_eq!(marks.name(0, 0), None);
        assert_eq!(marks.hidden_by(), Some("b"), "the one nearest to the leaf speaks");
        assert_eq!(row(&[]).marks(&mut MarkTexts::default()), None);
    }

    /// Checks that the text of many marks is held once.
    #[test]
    fn texts_of_marks_are_held_once() {
        let mut texts = MarkTexts::default();
        let rows = [7, 8].map(|_| {
            row(&[
                (1, 0, MarkKind::Hidden, "noise"),
                (2, 0, MarkKind::Hidden, "noise"),
            ])
        });
        let marks: Vec<Marks> = rows.iter().map(|row| row.marks(&mut texts).unwrap()).collect();
        assert_eq!(texts.len(), 1);
        let text = texts.get("noise").unwrap();
        assert_eq!(Arc::strong_count(text), 1 + 2 * marks.len());
    }

    /// Checks that other marks, and other stacks, have other keys, and the same ones the same.
    #[test]
    fn keys_tell_marks_apart() {
        let marks = |text| {
            let row = row(&[(1, 0, MarkKind::Renamed, text)]);
            row.marks(&mut MarkTexts::default()).unwrap()
        };
        assert_eq!(marks("a").key(7), marks("a").key(7));
        assert_ne!(marks("a").key(7), marks("b").key(7));
        assert_ne!(marks("a").key(7), marks("a").key(8));
        assert_ne!(marks("a").key(7), 7);
    }
}
