//! Flame graphs as SVG, drawn by inferno: searchable, zoomable, in one file.

use inferno::flamegraph;
use inferno::flamegraph::color::{BasicPalette, Palette};

use crate::ExportError;
use crate::folded::clean;

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
    let mut picture = Vec::new();
    flamegraph::from_lines(&mut drawing, lines.iter().map(String::as_str), &mut picture)
        .map_err(|error| ExportError::Draw(error.to_string()))?;
    Ok(picture)
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

    /// Checks that nothing to draw is an error, not an empty file.
    #[test]
    fn nothing_to_draw_is_an_error() {
        assert!(svg(&[], &Options::default()).is_err());
    }
}
