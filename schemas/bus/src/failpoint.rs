//! Points at which a test lets a process die: `STROBE_FAIL_AT=name` ends it at the first passage of that point,
//! `STROBE_FAIL_AT=name:3` at the third. Without the variable a point costs one load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable.
pub const VARIABLE: &str = "STROBE_FAIL_AT";

struct Chosen {
    point: String,
    passages_left: AtomicU64,
}

/// Ends the process, as a crash would (nothing more runs, no file is closed by us), when the environment names this point and this passage.
pub fn hit(point: &str) {
    static CHOSEN: OnceLock<Option<Chosen>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var(VARIABLE).ok().map(|text| parse(&text)));
    if let Some(chosen) = chosen
        && chosen.point == point
        && chosen.passages_left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        tracing::error!(point, "ended by {VARIABLE}");
        std::process::abort();
    }
}

fn parse(text: &str) -> Chosen {
    let (point, passages) = match text.rsplit_once(':') {
        Some((point, number)) => (point, number.parse().unwrap_or(1).max(1)),
        None => (text, 1),
    };
    Chosen {
        point: point.to_owned(),
        passages_left: AtomicU64::new(passages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks how a point and a passage are named.
    #[test]
    fn a_point_and_a_passage_are_named() {
        for (text, point, passages) in [
            ("sink.a", "sink.a", 1),
            ("sink.a:3", "sink.a", 3),
            ("b:0", "b", 1),
        ] {
            let chosen = parse(text);
            assert_eq!(
                (chosen.point.as_str(), chosen.passages_left.into_inner()),
                (point, passages)
            );
        }
    }
}
