//! Flame graphs as SVG, drawn by inferno: searchable, zoomable, in one file.

use std::collections::{BTreeMap, BTreeSet};

use inferno::flamegraph;
use inferno::flamegraph::color::{BasicPalette, Color, Palette, PaletteMap};

use crate::ExportError;
use crate::folded::clean;

mod notes;

/// A stack with what it takes by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedStack {
    /// Names, root first.
    pub frames: Vec<String>,
    /// Value now, in millionths of a core.
    pub value: u64,
    /// Value in the baseline; 0 without one.
    pub baseline: u64,
}

/// What stands around the picture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Title.
    pub title: String,
    /// Line below it.
    pub subtitle: String,
    /// Whether colours show the difference to the baseline: red is more, blue is less.
    pub differential: bool,
    /// Groups of functions by name, where colours show those: a group has one colour in every picture, what has none or the
    /// empty one is grey, and the groups that are there are named below the title.
    pub groups: Option<BTreeMap<String, String>>,
    /// What tooltips say more of a box, by its path of names from the root.
    pub notes: BTreeMap<Vec<String>, String>,
}

/// Most groups that are named below the title: what fits a line.
const NAMED_MAX: usize = 8;

/// Returns the colour of a group: grey for none, else a hue drawn by its name.
fn colour(group: &str) -> Color {
    if group.is_empty() {
        return Color {
            r: 190,
            g: 190,
            b: 190,
        };
    }
    let hash = group.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        // FNV-1a.
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // Of each channel the upper half, so that dark text can be read on it; one of three is low, so that it is no grey.
    let channel = |shift: u32| 128 + (hash >> shift & 0x7f) as u8;
    let (mut r, mut g, mut b) = (channel(3), channel(11), channel(19));
    match hash % 3 {
        0 => r = 90,
        1 => g = 90,
        _ => b = 90,
    }
    Color { r, g, b }
}

/// Returns the colours of all functions in the stacks, by the groups that they are in.
fn palette(stacks: &[FoldedStack], groups: &BTreeMap<String, String>) -> PaletteMap {
    let mut palette = PaletteMap::default();
    for frame in stacks.iter().flat_map(|stack| &stack.frames) {
        let group = groups.get(frame).map_or("", String::as_str);
        palette.insert(clean(frame), colour(group));
    }
    palette
}

/// Returns a line that names the groups.
fn legend(groups: &BTreeMap<String, String>) -> String {
    let names: BTreeSet<&str> = groups
        .values()
        .map(String::as_str)
        .filter(|name| !name.is_empty())
        .collect();
    let shown = names.iter().take(NAMED_MAX).map(|name| {
        let Color { r, g, b } = colour(name);
        format!("{name} rgb({r},{g},{b})")
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if names.len() > NAMED_MAX {
        text.push_str(&format!(" and {} more", names.len() - NAMED_MAX));
    }
    text
}

/// Returns the picture.
///
/// # Errors
/// [`ExportError::Draw`] where there is nothing to draw.
pub fn svg(stacks: &[FoldedStack], options: &Options) -> Result<Vec<u8>, ExportError> {
    let mut lines: Vec<String> = stacks
        .iter()
        .map(|stack| {
            let frames = stack
                .frames
                .iter()
                .map(|frame| clean(frame))
                .collect::<Vec<_>>()
                .join(";");
            match options.differential {
                true => format!("{frames} {} {}", stack.baseline, stack.value),
                false => format!("{frames} {}", stack.value),
            }
        })
        .collect();
    lines.sort_unstable();
    let mut drawing = flamegraph::Options::default();
    drawing.title.clone_from(&options.title);
    drawing.subtitle = Some(options.subtitle.clone()).filter(|text| !text.is_empty());
    drawing.count_name = "millionths of a core".to_owned();
    // One colour for one name, in every picture.
    drawing.hash = true;
    drawing.colors = Palette::Basic(BasicPalette::Hot);
    drawing.min_width = 0.05;
    let mut palette = options.groups.as_ref().map(|groups| palette(stacks, groups));
    if let Some(groups) = &options.groups {
        drawing.palette_map = palette.as_mut();
        drawing.subtitle = Some(
            format!("{}   {}", options.subtitle, legend(groups))
                .trim()
                .to_owned(),
        );
    }
    let mut picture = Vec::new();
    flamegraph::from_lines(&mut drawing, lines.iter().map(String::as_str), &mut picture)
        .map_err(|error| ExportError::Draw(error.to_string()))?;
    Ok(match options.notes.is_empty() {
        true => picture,
        false => notes::add(&picture, &options.notes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(frames: &[&str], value: u64, baseline: u64) -> FoldedStack {
        FoldedStack {
            frames: frames.iter().map(|&frame| frame.to_owned()).collect(),
            value,
            baseline,
        }
    }

    fn drawn(stacks: &[FoldedStack], differential: bool) -> String {
        let options = Options {
            title: "t".into(),
            subtitle: "s".into(),
            differential,
            ..Options::default()
        };
        String::from_utf8(svg(stacks, &options).unwrap()).unwrap()
    }

    /// Checks that functions stand in the picture with their share.
    #[test]
    fn functions_stand_in_the_picture() {
        let picture = drawn(
            &[stack(&["main", "work"], 75, 0), stack(&["main", "rest"], 25, 0)],
            false,
        );
        assert!(
            picture.contains("work (75 millionths of a core, 75.00%)"),
            "{picture}"
        );
        assert!(picture.starts_with("<?xml"));
    }

    /// Checks that a function named like markup is text in the picture.
    #[test]
    fn a_name_that_looks_like_markup_is_text() {
        let picture = drawn(&[stack(&["main", "<script>alert(1)</script>"], 1, 0)], false);
        assert!(!picture.contains("<script>alert"), "{picture}");
    }

    /// Checks that a difference is drawn, also for what is no longer there.
    #[test]
    fn a_difference_is_drawn() {
        let picture = drawn(
            &[stack(&["main", "new"], 50, 0), stack(&["main", "old"], 50, 50)],
            true,
        );
        assert!(picture.contains("new") && picture.contains("old"));
    }

    /// Checks that functions of one group have one colour, those of another one another, and those of none grey.
    #[test]
    fn groups_have_colours() {
        let stacks = [
            stack(&["main", "copy"], 50, 0),
            stack(&["main", "move"], 30, 0),
            stack(&["main", "parse"], 20, 0),
        ];
        let groups = [
            ("copy", "copy=vector"),
            ("move", "copy=vector"),
            ("parse", "work=parse"),
            ("main", ""),
        ];
        let options = Options {
            groups: Some(
                groups
                    .map(|(name, group)| (name.to_owned(), group.to_owned()))
                    .into(),
            ),
            ..Options::default()
        };
        let picture = String::from_utf8(svg(&stacks, &options).unwrap()).unwrap();
        let fill = |name: &str| {
            let at = picture.find(&format!("<title>{name} (")).unwrap();
            let rest = &picture[at..];
            let start = rest.find("fill=\"").unwrap() + 6;
            rest[start..].split('"').next().unwrap().to_owned()
        };
        assert_eq!(fill("copy"), fill("move"));
        assert_ne!(fill("copy"), fill("parse"));
        assert_eq!(fill("main"), "rgb(190,190,190)");
        assert!(picture.contains("copy=vector rgb("), "the groups are named");
    }

    /// Checks that a note stands in the tooltip of its own box, though another one bears the same name.
    #[test]
    fn notes_stand_in_their_own_tooltips() {
        let stacks = [
            stack(&["main", "copy"], 50, 0),
            stack(&["main", "a<b>", "copy"], 30, 0),
            stack(&["main", "z"], 20, 0),
        ];
        let note = |path: &[&str], text: &str| {
            (
                path.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(),
                text.to_owned(),
            )
        };
        let options = Options {
            notes: [
                note(&[], "± 9"),
                note(&["main", "copy"], "± 5"),
                note(&["main", "a<b>", "copy"], "± 3"),
                note(&["main", "a<b>"], "fewer than 10 runs"),
            ]
            .into(),
            ..Options::default()
        };
        let picture = String::from_utf8(svg(&stacks, &options).unwrap()).unwrap();
        for title in [
            "<title>all (100 millionths of a core, 100%; ± 9)</title>",
            "<title>copy (50 millionths of a core, 50.00%; ± 5)</title>",
            "<title>copy (30 millionths of a core, 30.00%; ± 3)</title>",
            "<title>a&lt;b&gt; (30 millionths of a core, 30.00%; fewer than 10 runs)</title>",
            "<title>z (20 millionths of a core, 20.00%)</title>",
        ] {
            assert!(picture.contains(title), "{title}: {picture}");
        }
    }

    /// Checks that nothing to draw is an error, not an empty file.
    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(svg(&[], &Options::default()).is_err());
    }
}
