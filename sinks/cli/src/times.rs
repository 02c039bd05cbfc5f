//! Moments as people type them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns now, microseconds since 1970 (UTC).
pub fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

/// Reads a moment: `now`, `-15m` or `now-1h30m` before `now_us`, or RFC 3339. Microseconds since 1970 (UTC).
///
/// # Errors
/// A sentence that says what can be typed.
pub fn moment(text: &str, now_us: u64) -> Result<u64, String> {
    let text = text.trim();
    let unclear = || format!("`{text}` is no moment: type `-15m`, `now-1h` or `2026-01-31T12:00:00Z`");
    if text == "now" {
        return Ok(now_us);
    }
    if let Some(ago) = text.strip_prefix("now-").or_else(|| text.strip_prefix('-')) {
        let ago = humantime::parse_duration(ago).map_err(|_| unclear())?;
        return Ok(now_us.saturating_sub(u64::try_from(ago.as_micros()).unwrap_or(u64::MAX)));
    }
    let time = humantime::parse_rfc3339_weak(text).map_err(|_| unclear())?;
    time.duration_since(UNIX_EPOCH)
        .map(|since| since.as_micros() as u64)
        .map_err(|_| unclear())
}

/// Reads a span `SINCE..UNTIL`.
///
/// # Errors
/// A sentence that says what can be typed.
pub fn span(text: &str, now_us: u64) -> Result<(u64, u64), String> {
    let (since, until) = text
        .split_once("..")
        .ok_or_else(|| format!("`{text}` is no range: type `now-2h..now-1h`"))?;
    let (since, until) = (moment(since, now_us)?, moment(until, now_us)?);
    if since >= until {
        return Err(format!(
            "the range `{text}` is empty: its start must come before its end"
        ));
    }
    Ok((since, until))
}

/// Returns a moment as people read it: UTC, to the second.
pub fn shown(us: u64) -> String {
    // The last second that the format has room for: a time may come from anybody.
    let seconds = (us / 1_000_000).min(253_402_300_799);
    let time = UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    /// Checks the ways to say a moment, and that nonsense is answered by what can be typed.
    #[test]
    fn moments_are_read_as_people_type_them() {
        assert_eq!(moment("now", NOW), Ok(NOW));
        for text in ["-15m", "now-15m", "-900s"] {
            assert_eq!(moment(text, NOW), Ok(NOW - 900_000_000), "{text}");
        }
        assert_eq!(moment("1970-01-01T00:00:01Z", NOW), Ok(1_000_000));
        assert!(moment("yesterday", NOW).unwrap_err().contains("-15m"));
        assert!(span("now..-1h", NOW).unwrap_err().contains("empty"));
        assert_eq!(
            span("-2h..-1h", NOW),
            Ok((NOW - 7_200_000_000, NOW - 3_600_000_000))
        );
    }

    proptest! {
        /// Checks that a moment that is shown is read back, to the second.
        #[test]
        fn what_is_shown_is_read_back(seconds in 0_u64..4_000_000_000) {
            prop_assert_eq!(moment(&shown(seconds * 1_000_000), NOW), Ok(seconds * 1_000_000));
        }

        /// Checks that no text ends the program.
        #[test]
        fn any_text_is_answered(text in ".*") {
            let _ = moment(&text, NOW);
            let _ = span(&text, NOW);
        }
    }
}
