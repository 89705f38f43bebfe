//! The rules of the ranking by name, each of which can be switched off to see what it is worth.
//!
//! A rule stays if the catalogues that it was not made for are better with it; `nonet eval --without RULE` shows that.

use std::str::FromStr;

/// One rule of the ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The nearer the vector of a tool's text is to the request's, the better.
    Meaning,
    /// The first sentence of a description has a vector of its own, added to the whole text's.
    FirstSentence,
    /// So has the tool's own name.
    ToolName,
    /// The server's name is part of a tool's text.
    Server,
    /// Words that both have (BM25) add a bounded share to the meaning.
    Keywords,
    /// Words are compared by their stems: `issues` is `issue`.
    Stemming,
    /// Words without a meaning of their own are not compared.
    StopWords,
    /// Words that mean nearly the same count a little.
    Synonyms,
    /// `pr`, `db` and `k8s` are also what they stand for, and the other way round.
    Abbreviations,
    /// Names and descriptions of parameters are searched too.
    Parameters,
    /// Shared three-letter windows forgive typing errors.
    Letters,
    /// A request for several things is also searched part by part.
    Parts,
    /// A request that is, begins or mentions a tool's name finds that tool first.
    Names,
    /// What a request wants to do is compared with what a tool does.
    Actions,
    /// A tool that is bound to a product comes first where that is named, and later where another one is, or none.
    Products,
    /// A tool that calls itself deprecated comes after the one that took its place.
    Deprecated,
    /// What a long description says late has vectors of its own.
    LateSentences,
    /// Usage rules, argument lists, examples and markup are no part of what is embedded.
    Boilerplate,
    /// A request in another language is brought into English.
    Languages,
}

impl Rule {
    /// All of them.
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

    /// What it is called on a command line.
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

/// The rules that are on: all, unless some are taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// A bit for each rule that is off.
    off: u32,
}

impl Rules {
    /// These rules but for one.
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
