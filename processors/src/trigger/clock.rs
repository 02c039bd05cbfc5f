//! The broker's clock, as far as it can be known from its messages.

use std::time::Instant;

/// The broker's time: what its youngest message said, and what has passed since by a clock that nobody sets.
#[derive(Debug)]
pub struct BrokerClock {
    at: Instant,
    us: u64,
}

impl BrokerClock {
    /// Returns one that believes the wall until it has seen a message.
    pub fn new(wall_us: u64) -> Self {
        Self {
            at: Instant::now(),
            us: wall_us,
        }
    }

    /// Returns the time, microseconds since 1970 (UTC).
    pub fn now_us(&self) -> u64 {
        self.us.saturating_add(self.at.elapsed().as_micros() as u64)
    }

    /// Takes in when the broker took a message that was sent a moment ago by this process: that is what its clock says.
    pub fn set(&mut self, taken_us: u64) {
        *self = Self::new(taken_us);
    }
}
