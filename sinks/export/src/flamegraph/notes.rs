//! What tooltips say more: the picture's boxes lie on one another as calls do, so that a box's path can be read off it.

use std::collections::BTreeMap;

use crate::folded::clean;

/// A box: where it lies, and where its tooltip's text ends.
struct Rect<'p> {
    name: &'p str,
    /// Distance from the top; callers lie below.
    y: f64,
    from: u64,
    width: u64,
    title_end: usize,
}

/// Returns the picture with the notes in the tooltips of their boxes, within the brackets: what stands behind them the picture's own
/// script takes for a part of the name.
pub(super) fn add(picture: &[u8], notes: &BTreeMap<Vec<String>, String>) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(picture) else {
        return picture.to_vec();
    };
    let notes: BTreeMap<Vec<String>, &String> = notes
        .iter()
        .map(|(path, note)| (path.iter().map(|name| clean(name)).collect(), note))
        .collect();
    let mut boxes = boxes(text);
    // Callers first, then from left to right.
    boxes.sort_by(|a, b| b.y.total_cmp(&a.y).then(a.from.cmp(&b.from)));
    let mut rows: Vec<Vec<(u64, u64, Vec<String>)>> = Vec::new();
    let mut inserts: Vec<(usize, &str)> = Vec::new();
    let mut y = f64::INFINITY;
    for one in &boxes {
        if one.y < y {
            y = one.y;
            rows.push(Vec::new());
        }
        let path = match rows.len() {
            // The lowest is everything: its path has no name.
            1 => Vec::new(),
            count => {
                let below = &rows[count - 2];
                let at = below.partition_point(|(from, ..)| *from <= one.from);
                let Some((from, width, caller)) = at.checked_sub(1).map(|at| &below[at]) else {
                    continue;
                };
                if one.from >= from + width {
                    continue;
                }
                let mut path = caller.clone();
                path.push(unescaped(one.name));
                path
            }
        };
        if let Some(note) = notes.get(&path) {
            inserts.push((one.title_end, note.as_str()));
        }
        if let Some(row) = rows.last_mut() {
            row.push((one.from, one.width, path));
        }
    }
    inserts.sort_unstable();
    let mut out = String::with_capacity(text.len() + 32 * inserts.len());
    let mut done = 0;
    for (at, note) in inserts {
        out.push_str(&text[done..at]);
        out.push_str("; ");
        out.push_str(&note.replace('&', "&amp;").replace('<', "&lt;"));
        done = at;
    }
    out.push_str(&text[done..]);
    out.into_bytes()
}

/// Finds the boxes: `<title>NAME (COUNT ...)</title><rect x=".." y=".." width=".." .. fg:x="FROM" fg:w="WIDTH"/>`.
fn boxes(text: &str) -> Vec<Rect<'_>> {
    let mut found = Vec::new();
    let mut rest = 0;
    while let Some(start) = text[rest..].find("<title>").map(|at| rest + at + "<title>".len()) {
        let Some(end) = text[start..].find("</title>").map(|at| start + at) else {
            break;
        };
        rest = end;
        let after = &text[end..];
        let Some(rect) = after
            .find("<rect ")
            .and_then(|at| Some(&after[at..at + after[at..].find('>')?]))
        else {
            break;
        };
        let title = &text[start..end];
        let (Some(name_end), true) = (title.rfind(" ("), title.ends_with(')')) else {
            continue;
        };
        if let Some((y, from, width)) = place(rect) {
            found.push(Rect {
                name: &title[..name_end],
                y,
                from,
                width,
                title_end: end - 1,
            });
        }
    }
    found
}

/// Returns where a rectangle lies: its distance from the top, where it begins and how wide it is, in the picture's own unit.
fn place(rect: &str) -> Option<(f64, u64, u64)> {
    let value = |name: &str| {
        let at = rect.find(&format!(" {name}=\""))? + name.len() + 3;
        rect[at..].split('"').next()
    };
    Some((
        value("y")?.parse().ok()?,
        value("fg:x")?.parse().ok()?,
        value("fg:w")?.parse().ok()?,
    ))
}

fn unescaped(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}
