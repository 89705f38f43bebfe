//! The names that models give to arguments instead of the arguments' own.

/// Arguments, each with its other names in lower case and without separators, the likeliest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aliases(pub &'static [(&'static str, &'static [&'static str])]);

impl Aliases {
    /// Arguments without other names.
    pub const NONE: Self = Self(&[]);

    /// Returns the argument that a key means, if the key (lower case, no separators) is an other name.
    pub fn meant(self, plain: &str) -> Option<&'static str> {
        self.0.iter().find(|(_, others)| others.contains(&plain)).map(|(own, _)| *own)
    }
}
