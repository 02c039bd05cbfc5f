//! Frames as they are named, page by page: what is named anew when a binary arrives late.

use strobe_event::generation::TIME_MASK;

use super::Explorer;
use crate::Error;

/// A frame in a binary, and what it is called.
#[derive(Debug, Clone, PartialEq, Eq, clickhouse::Row, serde::Deserialize)]
pub struct NamedFrame {
    /// Its key.
    pub frame: u64,
    /// Functions, the outermost first; none where `reason` says why.
    pub functions: Vec<String>,
    /// The source file of each.
    pub files: Vec<String>,
    /// The source line of each.
    pub lines: Vec<u32>,
    /// Path of the binary.
    #[serde(rename = "of_module")]
    pub module: String,
    /// Build id of the binary, in lower-case hexadecimal digits.
    pub build_id: String,
    /// Code of its kind.
    #[serde(rename = "of_kind")]
    pub kind: u8,
    /// ELF virtual address.
    pub address: u64,
    /// Why it has no name.
    #[serde(rename = "of_reason")]
    pub reason: String,
    /// Last day of use, since 1970.
    #[serde(rename = "of_day")]
    pub day: u16,
}

/// Which frames are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FramesAsked {
    /// Used since this day, since 1970.
    pub since_day: u16,
    /// Only of binaries whose build id begins so.
    pub build_id: String,
    /// Only those without a name.
    pub unnamed: bool,
}

impl Explorer {
    /// Returns up to `most` frames in files with symbols, in the order of their keys, whose keys are above `after`.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn frames_after(
        &self,
        after: Option<u64>,
        asked: &FramesAsked,
        most: u64,
    ) -> Result<Vec<NamedFrame>, Error> {
        let sql = "SELECT frame, functions, files, lines, toString(module) AS of_module, build_id, toUInt8(kind) AS of_kind, \
                   address, toString(reason) AS of_reason, toUInt16(day) AS of_day FROM frames FINAL WHERE (frame > ? OR ?) \
                   AND kind IN ('gnu', 'go', 'file_hash', 'vdso') AND day >= toDate(?) AND startsWith(build_id, ?) AND \
                   (empty(functions) OR ?) ORDER BY frame LIMIT ?";
        let query = self
            .client
            .query(sql)
            .bind(after.unwrap_or_default())
            .bind(after.is_none())
            .bind(asked.since_day)
            .bind(&asked.build_id)
            .bind(!asked.unnamed)
            .bind(most);
        query
            .fetch_all::<NamedFrame>()
            .await
            .map_err(self.failed("read frames"))
    }

    /// Returns when the newest names were made, microseconds since 1970, 0 where there are none: what is made anew must be later.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn newest_names(&self) -> Result<u64, Error> {
        let newest = self.newest_of("frames");
        newest.await.map_err(self.failed("read the newest names"))
    }

    /// Returns when the newest row of a table with generations was made: the rank, which is above the time, is left out.
    pub(super) async fn newest_of(&self, table: &'static str) -> Result<u64, clickhouse::error::Error> {
        let sql = format!("SELECT max(bitAnd(generation, {TIME_MASK})) FROM {table}");
        self.client.query_raw(&sql).fetch_one::<u64>().await
    }
}
