//! Configuration on the bus: what `strobe.config` carries.

use std::fmt;

/// The key, on the topic, of what is desired of the fleet.
pub const CONFIG_KEY: &str = "fleet/default";
/// Longest signed bytes of a configuration: a message of 1 MiB, with room for its signature and for Kafka's own.
pub const CONFIG_PAYLOAD_BYTES_MAX: usize = 768 << 10;
/// Longest time for which a configuration may be valid: a year, and a month to be late.
pub const CONFIG_VALID_US_MAX: u64 = 400 * 86_400_000_000;
/// How far ahead the clock of whoever made one may be.
pub const CONFIG_SKEW_US: u64 = 300_000_000;

/// 128 random bits that name a configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConfigId(pub [u8; 16]);

impl fmt::Display for ConfigId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// One file of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigFile {
    /// Its name, within the folder.
    pub name: String,
    /// Its text, TOML; at most [`crate::codec::TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

/// Files that together say what is desired of the fleet. Its framed bytes are what is signed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigSet {
    /// Its name.
    pub id: ConfigId,
    /// When it was made, microseconds since 1970 (UTC): of two the newer counts.
    pub made_us: u64,
    /// Until when it may be in force, microseconds since 1970 (UTC).
    pub until_us: u64,
    /// Who made it, for people; who may is decided by the signature.
    pub by: String,
    /// Why, for people; may be empty.
    pub why: String,
    /// The files, by name.
    pub files: Vec<ConfigFile>,
}

/// A configuration as it travels: the exact bytes that were signed, and the signature.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignedConfig {
    /// A framed [`ConfigSet`]. At most [`CONFIG_PAYLOAD_BYTES_MAX`].
    pub payload: Vec<u8>,
    /// An SSH signature over the payload; empty: none.
    pub signature: Vec<u8>,
}

/// One stack schema as somebody applied it. Its key on the topic is [`StackSchemaFile::key`]; an empty value under that key
/// takes it out of force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackSchemaFile {
    /// Name of the schema.
    pub name: String,
    /// Its version, as its text says.
    pub version: u32,
    /// Whether it is in force by itself; if not, it is there to be included.
    pub enabled: bool,
    /// When it was applied, unix microseconds.
    pub applied_us: u64,
    /// Who applied it: `user@host`.
    pub applied_by: String,
    /// Text of the file, in pieces of at most [`crate::codec::TEXT_BYTES_MAX`] bytes.
    pub text: Vec<String>,
}

/// What the keys of stack schemas begin with.
pub const STACK_SCHEMA_PREFIX: &str = "stack-schema/";

impl StackSchemaFile {
    /// Returns the key of a schema on the topic.
    pub fn key(name: &str) -> String {
        format!("{STACK_SCHEMA_PREFIX}{name}")
    }

    /// Returns the name of the schema whose key this is, if it is one.
    pub fn name_of(key: &[u8]) -> Option<&str> {
        std::str::from_utf8(key).ok()?.strip_prefix(STACK_SCHEMA_PREFIX)
    }

    /// Sets the text, cut into pieces that the wire carries.
    #[must_use]
    pub fn with_text(mut self, text: &str) -> Self {
        let mut rest = text;
        self.text = Vec::new();
        while !rest.is_empty() {
            let piece = crate::codec::clip(rest);
            self.text.push(piece.to_owned());
            rest = &rest[piece.len()..];
        }
        self
    }

    /// Returns the whole text.
    pub fn whole_text(&self) -> String {
        self.text.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    /// Checks that a text of a megabyte, cut between characters, travels whole, and that keys lead back to names.
    #[test]
    fn a_long_text_travels_whole() {
        let text = "# ä comment\n".repeat(80_000);
        let file = StackSchemaFile {
            name: "cpp".into(),
            version: 3,
            enabled: true,
            applied_us: 7,
            applied_by: "me@here".into(),
            text: Vec::new(),
        }
        .with_text(&text);
        let framed = codec::encode_framed(&file).unwrap();
        let read: StackSchemaFile = codec::decode_framed(&framed).unwrap();
        assert_eq!(read, file);
        assert_eq!(read.whole_text(), text);
        let key = StackSchemaFile::key("cpp");
        assert_eq!(StackSchemaFile::name_of(key.as_bytes()), Some("cpp"));
        assert_eq!(StackSchemaFile::name_of(b"profiler/cpu"), None);
    }
}
