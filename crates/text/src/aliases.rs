//! Wrong argument names that models use.

/// Arguments, each with its aliases in lower case and without separators, the likeliest first.
#[derive(Clone, Copy, Debug)]
pub struct Aliases(pub &'static [(&'static str, &'static [&'static str])]);

impl Aliases {
    /// Arguments without aliases.
    pub const NONE: Self = Self(&[]);

    /// Returns the argument that a key means, if the key (lower case, no separators) is an alias.
    pub fn meant(self, plain: &str) -> Option<&'static str> {
        self.0.iter().find(|(_, others)| others.contains(&plain)).map(|(own, _)| *own)
    }
}
