//! Marks: what stack schemas leave out or rename when stacks are shown.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};
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

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct OfPlace {
    left_out_by: Option<Box<str>>,
    name: Option<Box<str>>,
}

/// Marks of a stack, by place: frame counted from the root, location within it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marks(Arc<FxHashMap<(usize, usize), OfPlace>>);

impl MarksRow {
    /// Returns the marks; nothing where there are none.
    pub(crate) fn marks(&self) -> Option<Marks> {
        let mut places: FxHashMap<(usize, usize), OfPlace> = FxHashMap::default();
        let rows = self
            .frames
            .iter()
            .zip(&self.inlines)
            .zip(&self.kinds)
            .zip(&self.texts);
        for (((&frame, &inline), &kind), text) in rows {
            let place = places.entry((frame.into(), inline.into())).or_default();
            let kind = u8::try_from(kind).ok().and_then(MarkKind::from_code);
            match kind {
                Some(MarkKind::Renamed) => place.name = Some(text.as_str().into()),
                Some(_) => place.left_out_by = Some(text.as_str().into()),
                None => {}
            }
        }
        (!places.is_empty()).then(|| Marks(Arc::new(places)))
    }
}

impl Marks {
    pub(crate) fn leaves_out(&self, frame: usize, inline: usize) -> bool {
        self.0
            .get(&(frame, inline))
            .is_some_and(|place| place.left_out_by.is_some())
    }

    pub(crate) fn name(&self, frame: usize, inline: usize) -> Option<&str> {
        self.0.get(&(frame, inline))?.name.as_deref()
    }

    /// Returns the schema that leaves out the location nearest to the leaf: it speaks for a stack of which nothing is left,
    /// since that is where the time was spent.
    pub(crate) fn hidden_by(&self) -> Option<&str> {
        let places = self.0.iter();
        let out = places.filter_map(|(at, place)| Some((at, place.left_out_by.as_deref()?)));
        out.max_by_key(|(at, _)| **at).map(|(_, schema)| schema)
    }

    /// Returns a key for a stack as these marks show it: the same for the same marks.
    pub(crate) fn key(&self, stack: u64) -> u64 {
        let mut places: Vec<_> = self.0.iter().collect();
        places.sort_unstable_by_key(|(at, _)| **at);
        let mut hasher = FxHasher::default();
        (stack, places).hash(&mut hasher);
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
        .marks()
        .unwrap();
        assert!(marks.leaves_out(0, 0) && marks.leaves_out(2, 1));
        assert!(!marks.leaves_out(3, 0) && !marks.leaves_out(2, 0));
        assert_eq!(marks.name(3, 0), Some("other"));
        assert_eq!(marks.name(0, 0), None);
        assert_eq!(marks.hidden_by(), Some("b"), "the one nearest to the leaf speaks");
        assert_eq!(row(&[]).marks(), None);
    }

    /// Checks that other marks, and other stacks, have other keys, and the same ones the same.
    #[test]
    fn keys_tell_marks_apart() {
        let marks = |text| row(&[(1, 0, MarkKind::Renamed, text)]).marks().unwrap();
        assert_eq!(marks("a").key(7), marks("a").key(7));
        assert_ne!(marks("a").key(7), marks("b").key(7));
        assert_ne!(marks("a").key(7), marks("a").key(8));
        assert_ne!(marks("a").key(7), 7);
    }
}
