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
    services: GlobSet,
    profilers: GlobSet,
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
            services: globs("services", services)?,
            profilers: globs("profilers", profilers)?,
        })
    }

    /// Returns whether this entry allows it. A request for a whole host asks with the service `*`, which only an entry for every
    /// service covers.
    pub(crate) fn allows(&self, action: Action, service: &str, profiler: &str) -> bool {
        self.actions.contains(&action) && self.services.is_match(service) && self.profilers.is_match(profiler)
    }
}

fn globs(field: &str, patterns: &[String]) -> Result<GlobSet, String> {
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
    set.build().map_err(|e| format!("`{field}`: {e}"))
}
