//! Every metric of this crate.

use strobe_event::Reason;

/// Counters since the symbolizer was made, and two gauges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// Frames that were asked for. Healthy: as many as the batches' dictionaries hold.
    pub frames: u64,
    /// Frames left as addresses, by reason (the code is the index). Healthy: under 2 %. More: binaries are missing
    /// from the symbol store, or come without symbols.
    pub frames_unknown: [u64; Reason::ALL.len() + 1],
    /// Frames whose answer the memo knew. Healthy: above 95 % of the frames in binaries once a service is warm.
    pub memo_hits: u64,
    /// Addresses asked of the worker. Healthy: only of binaries whose symbol file is being made.
    pub addresses_asked: u64,
    /// Addresses looked up in symbol files. Healthy: nearly all that the memo does not know.
    pub file_lookups: u64,
    /// Symbol files open. Healthy: as many as binaries run, up to the limit of 256.
    pub files_open: u64,
    /// Bytes of symbol files in memory. Healthy: at most the limit, plus half of it while one binary is named.
    pub file_bytes: u64,
    /// Times that bytes of a symbol file were let go of to keep the limit. Healthy: a few a minute.
    pub file_evictions: u64,
    /// Times that a better symbol file took the place of what answered before. Healthy: one for each new binary, since the
    /// worker answers until its file is made.
    pub files_renewed: u64,
    /// Symbol files that did not hold together. Healthy: 0.
    pub files_damaged: u64,
    /// Requests to the worker. Healthy: far fewer than addresses.
    pub requests: u64,
    /// Times that the memo dropped its older half. Healthy: a few a day. More: give it more bytes.
    pub memo_turns: u64,
    /// Bytes that the memo holds. Healthy: at most the limit, plus what one batch adds.
    pub memo_bytes: u64,
    /// Times that a binary was looked for in the store. Healthy: a few for each new binary.
    pub store_lookups: u64,
    /// Looks that found nothing. Healthy: only while new binaries are on their way.
    pub store_misses: u64,
    /// Workers started. Healthy: 1.
    pub worker_starts: u64,
    /// Workers that died, or spoke nonsense, on a request. Healthy: 0.
    pub worker_deaths: u64,
    /// Requests that took too long. Healthy: 0.
    pub worker_timeouts: u64,
    /// Binaries that ended the worker twice. Healthy: 0.
    pub binaries_refused: u64,
    /// Binaries known by name: asked for at least once. Healthy: below the limit of 65,536.
    pub binaries: u64,
}

impl Telemetry {
    /// Returns the share of frames that stayed addresses.
    pub fn unknown_share(&self) -> f64 {
        let unknown: u64 = self.frames_unknown.iter().sum();
        if self.frames == 0 {
            0.0
        } else {
            unknown as f64 / self.frames as f64
        }
    }
}
