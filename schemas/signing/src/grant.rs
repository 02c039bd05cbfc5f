//! What a signer may do, as the file says it and as it is asked for.

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::Deserialize;

/// One thing that can be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Run a profiler on demand.
    Profile,
    /// Have the last minutes that a host keeps in its ring.
    Ring,
    /// End a run that somebody else asked for. Whoever asked may always end their own.
    Cancel,
    /// Lift limits for a stated time.
    Override,
    /// Say which profilers run, how much, and which alerts start some.
    Configure,
    /// Start what a signed rule says. For the trigger service's own key.
    Trigger,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Profile => "profile",
            Self::Ring => "ring",
            Self::Cancel => "cancel",
            Self::Override => "override",
            Self::Configure => "configure",
            Self::Trigger => "trigger",
        })
    }
}

/// What one entry of the file allows.
#[derive(Debug)]
pub(crate) struct Grant {
    actions: Vec<Action>,
    services: Patterns,
    profilers: Patterns,
}

/// The names that a field of an entry covers.
#[derive(Debug)]
struct Patterns {
    set: GlobSet,
    /// Beginnings of names of which every one is covered: `a` for `a*`, nothing for `*`.
    beginnings: Vec<String>,
}

impl Patterns {
    /// Returns whether all that is asked for is covered: one name, or with `*` at its end every one that begins so. For the latter it is
    /// not enough that some pattern fits the text.
    fn cover(&self, asked: &str) -> bool {
        match asked.strip_suffix('*') {
            Some(beginning) => self.beginnings.iter().any(|own| beginning.starts_with(own)),
            None => self.set.is_match(asked),
        }
    }
}

impl Grant {
    /// Proves the patterns of an entry; says which one is none.
    pub(crate) fn new(
        actions: Vec<Action>,
        services: &[String],
        profilers: &[String],
    ) -> Result<Self, String> {
        if actions.is_empty() {
            return Err(
                "`may` is empty: name at least one of profile, ring, cancel, override, configure, trigger"
                    .into(),
            );
        }
        Ok(Self {
            actions,
            services: patterns("services", services)?,
            profilers: patterns("profilers", profilers)?,
        })
    }

    /// Returns whether this entry allows it. A request for a whole host asks with the service `*`, an entry of a configuration perhaps with
    /// `checkout*`: only an entry for every such service covers it.
    pub(crate) fn allows(&self, action: Action, service: &str, profiler: &str) -> bool {
        self.actions.contains(&action) && self.services.cover(service) && self.profilers.cover(profiler)
    }
}

fn patterns(field: &str, patterns: &[String]) -> Result<Patterns, String> {
    if patterns.is_empty() {
        return Err(format!(
            "`{field}` is empty: leave it out for all of them, or name some"
        ));
    }
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(
            Glob::new(pattern).map_err(|e| format!("`{field}`: `{pattern}` is no pattern: {}", e.kind()))?,
        );
    }
    let plain = |beginning: &&str| !beginning.contains(['*', '?', '[', ']', '{', '}', '\\', '!']);
    Ok(Patterns {
        set: set.build().map_err(|e| format!("`{field}`: {e}"))?,
        beginnings: patterns
            .iter()
            .filter_map(|pattern| pattern.strip_suffix('*'))
            .filter(plain)
            .map(str::to_owned)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(own: &[&str], asked: &str) -> bool {
        let own: Vec<String> = own.iter().map(|&name| name.to_owned()).collect();
        let grant = Grant::new(vec![Action::Configure], &own, &["*".to_owned()]).unwrap();
        grant.allows(Action::Configure, asked, "cpu")
    }

    /// Checks that what is asked for many services needs an entry for all of them: a pattern that happens to fit the text of another
    /// covers less than that stands for.
    #[test]
    fn a_pattern_covers_no_wider_one() {
        assert!(allows(&["checkout-?"], "checkout-1"));
        for own in [
            &["checkout-?"][..],
            &["?"],
            &["[!x]*"],
            &["[^a]"],
            &["checkout-[*]"],
            &["check?ut*"],
        ] {
            for asked in ["checkout-*", "*"] {
                assert!(!allows(own, asked), "{own:?} {asked}");
            }
        }
        assert!(allows(&["checkout*"], "checkout-*") && allows(&["checkout*"], "checkout*"));
        assert!(!allows(&["checkout*"], "check*") && !allows(&["checkout-1"], "checkout-1*"));
        assert!(allows(&["a", "*"], "*") && allows(&["*"], "checkout-*"));
    }
}
