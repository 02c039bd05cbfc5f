//! What is wrong with numbers that somebody configured or that came over the bus.

/// Why a setting, a plan or a record is refused. Nothing of it is used: a wrong number here would be
/// multiplied into every total.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// Not a probability.
    #[error("{name} = {value} is not in (0, 1]")]
    Probability {
        /// What it is the probability of.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// A number outside of its range.
    #[error("{name} = {value} is not in [{least}, {most}]")]
    OutOfRange {
        /// What it is.
        name: &'static str,
        /// What was given.
        value: f64,
        /// The least that is accepted.
        least: f64,
        /// The most that is accepted.
        most: f64,
    },
    /// Slots that do not fill a day.
    #[error("slots of {0} us do not fill a day: take a divisor of 24 h from 200 ms to 1 h")]
    SlotLength(u64),
    /// A plan that is in force only later than clocks can differ.
    #[error("the plan is from {ahead_us} us in the future: check the clock of who made it")]
    FromTheFuture {
        /// How far ahead of this clock it is.
        ahead_us: u64,
    },
    /// A coverage record whose counts contradict each other.
    #[error("coverage of {host} does not add up: {what}")]
    Coverage {
        /// Whose record it is.
        host: String,
        /// What contradicts what.
        what: &'static str,
    },
}

/// Returns `value` if it is in the range.
///
/// # Errors
/// [`SamplingError::OutOfRange`] otherwise, also for what is not a number.
pub(crate) fn in_range(name: &'static str, value: f64, least: f64, most: f64) -> Result<f64, SamplingError> {
    if value >= least && value <= most {
        Ok(value)
    } else {
        Err(SamplingError::OutOfRange {
            name,
            value,
            least,
            most,
        })
    }
}
