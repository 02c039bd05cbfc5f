//! The shipped stack schemas, inside of the executable: packages and images need no files beside it.

use strobe_stack_schema::Source;

macro_rules! file {
    ($name:literal) => {
        (
            concat!($name, ".stacks"),
            include_str!(concat!("../../../schemas/stacks/", $name, ".stacks")),
        )
    };
}

/// Name and text of each file.
const FILES: [(&str, &str); 12] = [
    file!("allocators"),
    file!("compression"),
    file!("cpp"),
    file!("crypto"),
    file!("kernel"),
    file!("locks"),
    file!("memory-copy"),
    file!("names"),
    file!("rpc"),
    file!("runtimes"),
    file!("rust"),
    file!("serialization"),
];

/// Returns their texts.
pub fn sources() -> impl Iterator<Item = Source> {
    FILES.iter().map(|(name, text)| Source::new(name, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the executable holds every schema of the folder, and no other.
    #[test]
    fn every_shipped_schema_is_inside() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/stacks");
        let entries = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries
            .filter(|path| path.extension().is_some_and(|end| end == "stacks"))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        files.sort();
        let mut inside: Vec<_> = sources().map(|source| source.text.to_string()).collect();
        inside.sort();
        assert_eq!(inside, files);
    }
}
