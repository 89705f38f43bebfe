//! The weights of the ranking, in one place.
//!
//! They were measured over several public tool catalogues at once and lie on a plateau: the cosine is the
//! best single signal, and keywords help most as a small bounded bonus. Raw keyword counts, or rank fusion
//! with equal weights, drown the meaning. A weight stays if it improves catalogues that it was not made for;
//! `nonet-lab eval --weight NAME=0` shows that.

/// What counts how much. 0 takes a signal away.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankingWeights {
    /// Whether documents are prose, which has no name, does nothing, belongs to no product and is embedded as
    /// it is written.
    pub prose: bool,

    /// The vector of a description's first sentence relative to the whole text's: a long description blurs
    /// its direction. Measured from 0 to 1.2 over six catalogues: +0.4 points of nDCG on average, nowhere
    /// worse by more than 0.2.
    pub first_sentence: f32,
    /// The vector of the name. Measured from 0 to 0.5: +0.4, best where servers have descriptive names; a
    /// higher weight drowns the description.
    pub tool_name: f32,
    /// The vectors of a long description's later sentences, together.
    pub late_sentences: f32,
    /// The vector by the encoder of other languages, if the description is not English. Measured from 1 to 4,
    /// with and without the name: facts in 14 languages are found first in 90.4 to 94.9 % of requests in the
    /// others (94.0 with this), and tools described in Chinese by English requests a little worse with more.
    pub other_language: f32,
    /// The vector of a translation beside that of the request in its own language. Measured from 0 to 2 over
    /// eight languages of two sets: 2 to 3 points of nDCG, most at 0.5 to 1; the less, the better for
    /// languages that are taken for one with a dictionary.
    pub translation: f32,
    /// The cosine assumed for a document without a vector, at the best keyword score; scaled by its keyword
    /// score. Right answers have about this cosine on average.
    pub meaning_by_words: f32,

    /// What the best keyword score adds to a cosine. Measured from 0.08 to 0.22 over seven catalogues.
    pub keywords: f32,
    /// The same for a request with several parts, for the whole and for each part.
    pub keywords_in_parts: f32,
    /// A synonym relative to the word itself. Measured from 0 to 0.3; more drowns the request's own words.
    pub synonyms: f32,
    /// An abbreviation's meaning relative to the abbreviation, and vice versa.
    pub abbreviations: f32,
    /// The words of a parameter's name relative to those of the tool's.
    pub parameters: f32,
    /// The words of a parameter's description, which says what goes in, not what comes out. Measured from 0
    /// to 0.5.
    pub parameter_descriptions: f32,
    /// The words of a group's description, which is the same for all its documents. Measured from 0 to 0.4.
    pub group_description: f32,
    /// What the best trigram score adds: enough to forgive a typo.
    pub letters: f32,
    /// The same without vectors, relative to a keyword score of at most 1.
    pub letters_without_meaning: f32,
    /// The words of a request that no dictionary translates, as a share; its letters have none. Most
    /// documents are in English and share both with it by chance: 1.2 points of nDCG over fourteen languages.
    pub untranslated: f32,

    /// The bonus for the wanted action. Measured from 0 to 0.06; more drowns the object of the action.
    pub same_action: f32,
    /// The penalty if one reads and the other changes something. Measured from 0 to 0.12.
    pub other_action: f32,
    /// The penalty if only one of the two deletes, which cannot be undone.
    pub takes_away: f32,
    /// The bonus for a named product. Measured from 0 to 0.15.
    pub named_product: f32,
    /// The penalty for another product. Measured from 0 to 0.2.
    pub other_product: f32,
    /// The penalty for a product that was not named: enough to prefer an equally good document without one.
    pub unnamed_product: f32,
    /// The penalty for a deprecated document.
    pub deprecated: f32,
    /// The best part's share in the score of a request with several parts; the rest is the whole request's.
    pub best_part: f32,
}

impl RankingWeights {
    /// The weights of tools.
    pub const TOOLS: RankingWeights = RankingWeights {
        prose: false,
        first_sentence: 1.0,
        tool_name: 0.3,
        late_sentences: 1.0,
        other_language: 2.0,
        translation: 0.5,
        meaning_by_words: 0.5,
        keywords: 0.14,
        keywords_in_parts: 0.5,
        synonyms: 0.3,
        abbreviations: 0.6,
        parameters: 1.0,
        parameter_descriptions: 0.3,
        group_description: 0.2,
        letters: 0.03,
        letters_without_meaning: 0.15,
        untranslated: 0.5,
        same_action: 0.02,
        other_action: 0.05,
        takes_away: 0.08,
        named_product: 0.05,
        other_product: 0.1,
        unnamed_product: 0.01,
        deprecated: 0.1,
        best_part: 0.7,
    };
    /// The weights of prose.
    pub const PROSE: RankingWeights = RankingWeights { prose: true, ..RankingWeights::TOOLS };
}

impl Default for &RankingWeights {
    fn default() -> Self {
        &RankingWeights::TOOLS
    }
}
