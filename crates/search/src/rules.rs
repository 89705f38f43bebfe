//! The ranking rules by name. Each can be switched off to measure its worth.
//!
//! A rule stays if it improves catalogues that it was not made for; `nonet-lab eval --without RULE` shows that.

use std::str::FromStr;

/// One ranking rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Ranks by the cosine of the tool's and the request's vectors.
    Meaning,
    /// Adds a vector for the first sentence of a description to the whole text's.
    FirstSentence,
    /// Adds a vector for the tool's own name.
    ToolName,
    /// Includes the server's name in a tool's text.
    Server,
    /// Adds a bounded share for shared words (BM25).
    Keywords,
    /// Compares words by their stems: `issues` is `issue`.
    Stemming,
    /// Ignores words without a meaning of their own.
    StopWords,
    /// Counts near-synonyms a little.
    Synonyms,
    /// Expands `pr`, `db` and `k8s` to their meanings, and vice versa.
    Abbreviations,
    /// Searches names and descriptions of parameters too.
    Parameters,
    /// Forgives typos by shared trigrams.
    Letters,
    /// Searches a request for several things also part by part.
    Parts,
    /// Ranks a tool first if the request is, begins or contains its name.
    Names,
    /// Compares the wanted action with what a tool does.
    Actions,
    /// Prefers tools bound to a named product over tools bound to another, or to a product when none is
    /// named.
    Products,
    /// Ranks a deprecated tool after its replacement.
    Deprecated,
    /// Adds vectors for the later sentences of a long description.
    LateSentences,
    /// Leaves usage rules, argument lists, examples and markup out of the embedded text.
    Boilerplate,
    /// Gives requests in other languages to an encoder of their own, and translates them into English.
    Languages,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 19] = [
        Rule::Meaning,
        Rule::FirstSentence,
        Rule::ToolName,
        Rule::Server,
        Rule::Keywords,
        Rule::Stemming,
        Rule::StopWords,
        Rule::Synonyms,
        Rule::Abbreviations,
        Rule::Parameters,
        Rule::Letters,
        Rule::Parts,
        Rule::Names,
        Rule::Actions,
        Rule::Products,
        Rule::Deprecated,
        Rule::LateSentences,
        Rule::Boilerplate,
        Rule::Languages,
    ];

    /// Returns the rule's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Meaning => "meaning",
            Rule::FirstSentence => "first-sentence",
            Rule::ToolName => "tool-name",
            Rule::Server => "server",
            Rule::Keywords => "keywords",
            Rule::Stemming => "stemming",
            Rule::StopWords => "stop-words",
            Rule::Synonyms => "synonyms",
            Rule::Abbreviations => "abbreviations",
            Rule::Parameters => "parameters",
            Rule::Letters => "letters",
            Rule::Parts => "parts",
            Rule::Names => "names",
            Rule::Actions => "actions",
            Rule::Products => "products",
            Rule::Deprecated => "deprecated",
            Rule::LateSentences => "late-sentences",
            Rule::Boilerplate => "boilerplate",
            Rule::Languages => "languages",
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(name: &str) -> Result<Rule, String> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name).ok_or_else(|| {
            let names = Rule::ALL.map(Rule::name).join(", ");
            format!("there is no rule `{name}`; there are: {names}")
        })
    }
}

/// The active rules: all, except those removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// A bit for each rule that is off.
    off: u32,
}

impl Rules {
    /// Returns the rules for prose, which has no name, does nothing and belongs to no product.
    pub fn prose() -> Rules {
        let of_tools = [
            Rule::ToolName,
            Rule::Server,
            Rule::Parameters,
            Rule::Actions,
            Rule::Products,
            Rule::Deprecated,
            Rule::Boilerplate,
        ];
        of_tools.into_iter().fold(Rules::default(), Rules::without)
    }

    /// Returns these rules without one.
    #[must_use]
    pub fn without(self, rule: Rule) -> Rules {
        Rules { off: self.off | 1 << rule as u32 }
    }

    /// Whether a rule is on.
    pub fn has(self, rule: Rule) -> bool {
        self.off & 1 << rule as u32 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_go_by_name_and_one_by_one() {
        for rule in Rule::ALL {
            assert_eq!(rule.name().parse(), Ok(rule));
            let rules = Rules::default().without(rule);
            assert!(Rule::ALL.into_iter().all(|other| rules.has(other) == (other != rule)));
        }
        assert!("weather".parse::<Rule>().is_err_and(|error| error.contains("stop-words")));
    }
}
