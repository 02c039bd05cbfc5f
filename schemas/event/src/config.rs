//! Configuration on the bus: what `strobe.config` carries.

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
