//! One location of a stack: a function, where it lies, and what else conditions may ask.

/// A frame, or one of the functions inlined into it, as the matcher takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Location<'a> {
    /// The function's name as it was symbolized; what is shown instead where it has none.
    pub function: &'a str,
    /// Path of its source file; empty if not known.
    pub file: &'a str,
    /// File name of the binary that it lies in; empty if not known.
    pub module: &'a str,
    /// Its line; 0 if not known.
    pub line: u32,
    /// Whether it was inlined into the location before.
    pub inlined: bool,
    /// Whether it lies in the kernel.
    pub kernel: bool,
    /// Whether `function` says why there is no name.
    pub unnamed: bool,
}
