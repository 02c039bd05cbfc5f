//! What is wrong with a scenario.

/// Why a scenario cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// It is not what a scenario looks like.
    #[error("the scenario cannot be read: {0}")]
    Unreadable(#[from] toml::de::Error),
    /// Hosts run a service that is not described.
    #[error("hosts run `{0}`, which no [[service]] describes")]
    UnknownService(String),
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
    /// A number that sampling itself refuses.
    #[error(transparent)]
    Sampling(#[from] strobe_sampling::SamplingError),
    /// What stands outside of the fleet cannot go on.
    #[error("{0}")]
    Outside(#[source] crate::outside::OutsideError),
    /// A weight that could not be formed.
    #[error("a sample has no weight: {0}")]
    Weight(#[from] strobe_sampling::WeightError),
}
