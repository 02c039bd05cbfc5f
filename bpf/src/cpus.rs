//! Which CPUs there are to sample.

use std::fs;
use std::io;

/// No kernel is built for more CPUs than this (`NR_CPUS`); a longer list is a misread one.
const CPUS_MAX: u32 = 8192;

/// Returns the CPUs that are online now, ascending.
pub fn online() -> io::Result<Vec<u32>> {
    parse(&fs::read_to_string("/sys/devices/system/cpu/online")?)
        .ok_or_else(|| io::Error::other("/sys/devices/system/cpu/online holds no list of CPUs"))
}

/// Reads `0-3,5,7-8`.
fn parse(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if last >= CPUS_MAX || first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that gaps in the list of online CPUs stay gaps.
    #[test]
    fn offline_cpus_are_left_out() {
        assert_eq!(parse("0-2,4,6-7\n"), Some(vec![0, 1, 2, 4, 6, 7]));
        assert_eq!(parse("0\n"), Some(vec![0]));
    }

    /// Checks that nonsense is refused instead of becoming a list of two billion CPUs.
    #[test]
    fn a_list_that_is_none_is_refused() {
        for list in ["", "a", "3-1", "0-4294967295", "0,,1", "-1"] {
            assert_eq!(parse(list), None, "{list:?}");
        }
    }
}
