//! The phases of a request on one host, and which may follow which.

/// A phase in the life of a request on one host; those from [`Phase::Finished`] on are final.
///
/// ```text
/// asked ─ picked ─ accepted ─┬───────────┬─ running ─ finished
///                            └─ queued ──┘
/// ```
/// From each but the finals the way out may also be failed, cancelled or lost; before it runs refused or expired; from accepted
/// on joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// The trigger has the request, and no host yet.
    Asked = 1,
    /// The trigger has picked the host, and waits for its word.
    Picked = 2,
    /// The host has proved the request and will run it.
    Accepted = 3,
    /// It waits on the host behind something else.
    Queued = 4,
    /// It samples.
    Running = 5,
    /// It sampled as long as was asked, or was ended early by a limit; what it took is whole.
    Finished = 6,
    /// It broke off.
    Failed = 7,
    /// The host, or the trigger, does not do it, and says why.
    Refused = 8,
    /// Somebody ended it.
    Cancelled = 9,
    /// Its time to live was over before it could start.
    Expired = 10,
    /// Nothing was heard of the host by its deadline.
    Lost = 11,
    /// The run of an equal request answers it.
    Joined = 12,
}

/// What a word of a host does to the phase that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It leads on.
    Forward,
    /// It says again what is known.
    Repeat,
    /// It came after a final phase: it is recorded and changes nothing.
    Late,
    /// It leads back, or nowhere: it is void.
    Void,
}

impl Phase {
    /// Every phase, in the order of the codes.
    pub const ALL: [Self; 12] = [
        Self::Asked,
        Self::Picked,
        Self::Accepted,
        Self::Queued,
        Self::Running,
        Self::Finished,
        Self::Failed,
        Self::Refused,
        Self::Cancelled,
        Self::Expired,
        Self::Lost,
        Self::Joined,
    ];

    /// Returns the phase that `code` stands for on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the phase's name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Picked => "picked",
            Self::Accepted => "accepted",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Lost => "lost",
            Self::Joined => "joined",
        }
    }

    /// Returns whether nothing can follow.
    pub fn is_final(self) -> bool {
        self >= Self::Finished
    }

    /// Returns whether sampling can no longer begin from here: it has begun, or it is over.
    pub fn has_begun(self) -> bool {
        self >= Self::Running
    }

    /// Returns what `next` does to this phase.
    pub fn step(self, next: Self) -> Step {
        if self.is_final() {
            return if self == next { Step::Repeat } else { Step::Late };
        }
        if self == next {
            return Step::Repeat;
        }
        let leads_on = match next {
            Self::Asked => false,
            Self::Picked | Self::Accepted | Self::Queued | Self::Running => next > self,
            // Of what has begun neither can be true.
            Self::Refused | Self::Expired => !self.has_begun(),
            // Words in between may have been lost with the agent that had them.
            Self::Finished | Self::Joined => self >= Self::Accepted,
            Self::Failed | Self::Cancelled | Self::Lost => true,
        };
        if leads_on { Step::Forward } else { Step::Void }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn phase() -> impl Strategy<Value = Phase> {
        prop::sample::select(&Phase::ALL[..])
    }

    proptest! {
        /// Checks that whatever words come, in whatever order and however often, there is at most one final phase, phases only
        /// lead forward, and what expired or was refused never ran.
        #[test]
        fn a_life_has_one_end(words in prop::collection::vec(phase(), 0..40)) {
            let mut known = Phase::Asked;
            let mut passed = vec![known];
            for word in words {
                match known.step(word) {
                    Step::Forward => {
                        prop_assert!(!known.is_final());
                        prop_assert!(word > known, "{known:?} to {word:?}");
                        known = word;
                        passed.push(word);
                    }
                    Step::Repeat => prop_assert_eq!(word, known),
                    Step::Late => prop_assert!(known.is_final()),
                    Step::Void => prop_assert!(!known.is_final()),
                }
            }
            prop_assert!(passed.iter().filter(|phase| phase.is_final()).count() <= 1);
            if matches!(known, Phase::Expired | Phase::Refused) {
                prop_assert!(!passed.contains(&Phase::Running), "{passed:?}");
            }
        }

        /// Checks that from every phase that is not final each way of dying leads out, so that no life can get stuck.
        #[test]
        fn no_life_gets_stuck(from in phase()) {
            prop_assume!(!from.is_final());
            for out in [Phase::Failed, Phase::Cancelled, Phase::Lost] {
                prop_assert_eq!(from.step(out), Step::Forward);
            }
        }
    }

    /// Checks that codes lead back to phases, and that others are none.
    #[test]
    fn codes_lead_back() {
        for phase in Phase::ALL {
            assert_eq!(Phase::from_code(phase as u8), Some(phase));
        }
        assert_eq!((Phase::from_code(0), Phase::from_code(13)), (None, None));
    }
}
