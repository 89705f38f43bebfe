//! English verbs and what they do: one lexicon for requests, tool names, and the worst effect of a call.
//!
//! Knows words, not tools, risks or scores.

use std::{collections::HashMap, sync::LazyLock};

/// A set of actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Actions(u16);

impl Actions {
    pub(crate) const NONE: Actions = Actions(0);
    pub(crate) const READ: Actions = Actions(1);
    pub(crate) const FIND: Actions = Actions(1 << 1);
    pub(crate) const CREATE: Actions = Actions(1 << 2);
    pub(crate) const CHANGE: Actions = Actions(1 << 3);
    pub(crate) const DELETE: Actions = Actions(1 << 4);
    pub(crate) const SEND: Actions = Actions(1 << 5);
    pub(crate) const RUN: Actions = Actions(1 << 6);
    pub(crate) const STOP: Actions = Actions(1 << 7);
    pub(crate) const MOVE: Actions = Actions(1 << 8);
    pub(crate) const CONVERT: Actions = Actions(1 << 9);
    pub(crate) const COMPUTE: Actions = Actions(1 << 10);

    pub(crate) const fn with(self, other: Actions) -> Actions {
        Actions(self.0 | other.0)
    }

    pub(crate) fn meets(self, other: Actions) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all actions of the set are in `other`.
    pub(crate) fn is_within(self, other: Actions) -> bool {
        self.0 & !other.0 == 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Actions::NONE
    }
}

/// Actions that change nothing.
pub(crate) const LOOKS: Actions = Actions::READ.with(Actions::FIND).with(Actions::COMPUTE);
/// Actions that create or change something.
pub(crate) const MAKES: Actions = Actions::CREATE.with(Actions::CHANGE).with(Actions::SEND);

/// Verbs by action. A verb in several lines may mean any of them.
pub(crate) const VERBS: &[(Actions, &str)] = &[
    (
        Actions::READ,
        "get read show view display fetch retrieve list enumerate browse describe inspect check count summarize explain \
         compare diff status log history measure monitor analyze analyse preview print dump see look tell inform know watch \
         open peek tail examine verify validate test review return obtain identify detect determine track report \
         summary overview statistics stats info blame audit scan ping trace profile estimate predict forecast assess learn \
         understand observe stat resolve extract scrape crawl download access expand lookup discover find",
    ),
    (
        Actions::FIND,
        "search find query look lookup locate discover grep filter recommend suggest seek match explore get list glob \
         research identify detect",
    ),
    (
        Actions::CREATE,
        "create add make new insert generate build register write draft compose initialize init append define schedule \
         book reserve order buy purchase commit fork clone remember store save record draw plot invite upload raise setup \
         produce design establish start put place enter provision attach introduce import copy duplicate note log memorize \
         load subscribe join link connect highlight annotate mount request issue prepare ingest index push embed capture \
         take publish post plan remind leave review",
    ),
    (
        Actions::CHANGE,
        "update edit modify change set rename replace patch alter format adjust configure close reopen assign approve enable \
         disable toggle mark merge resize rotate transition lock unlock protect fix sort freeze hide revert restore undo \
         archive switch label tag put correct rewrite overwrite customize refresh rebase reset amend extend align crop scale \
         mute unmute pin unpin star vote rate complete finish accept reject decline dismiss confirm authorize \
         write insert add append apply stage unstage checkout upgrade improve optimize group ungroup reorder arrange \
         increase decrease raise lower turn activate deactivate suspend resume emulate cordon drain style manage mute \
         encrypt decrypt sign compress resolve bump rollback restart roll annotate revise touch swap tweak clean",
    ),
    (
        Actions::DELETE,
        "delete remove drop erase clear purge uninstall unlink unsubscribe detach revoke retract discard forget wipe \
         truncate destroy prune trash clean deregister unregister unfollow cancel eliminate exclude strip empty",
    ),
    (
        Actions::SEND,
        "send post reply publish notify email mail message share tell comment submit react forward tweet respond answer \
         broadcast announce mention invite dispatch deliver ask remind alert upload push",
    ),
    (
        Actions::RUN,
        "run execute start launch invoke call trigger deploy perform play click press type fill navigate go select \
         drag hover scroll open simulate use interact handle process begin restart visit tap control manage",
    ),
    (
        Actions::STOP,
        "stop cancel kill abort terminate end quit pause exit close shut suspend halt interrupt finish",
    ),
    (
        Actions::MOVE,
        "move copy duplicate transfer upload download import export migrate sync synchronize rename relocate drag \
         transport backup save pull push archive replicate",
    ),
    (
        Actions::CONVERT,
        "convert translate transform export parse encode decode render extract turn reformat compile transcribe transcode \
         format encrypt decrypt compress zip unzip gzip serialize localize",
    ),
    (
        Actions::COMPUTE,
        "calculate compute evaluate solve sum average multiply divide subtract count convert estimate",
    ),
];

pub(crate) fn verbs() -> impl Iterator<Item = &'static str> {
    VERBS.iter().flat_map(|(_, words)| words.split_whitespace())
}

/// Verbs with irreversible effects.
const DESTROY: &str = "clear delete destroy discard drop eliminate empty erase forget kill overwrite prune purge remove reset \
                       revoke terminate truncate uninstall wipe";

/// Reading verbs that may change something in a tool's name: `report_spam`, `track_event`,
/// `watch_repository`.
const DOUBTFUL: &str =
    "access evaluate inform learn monitor print profile report return solve test trace track verify watch";

/// Verbs that are as often nouns in a tool's name: `get_pull_request`, `list_open_issues`, `order_status`.
const THINGS: &str = "alert answer archive audit average backup blame book broadcast build call capture change check \
                      checkout clean clear clone close comment commit complete control copy correct count design diff \
                      download draft draw drop duplicate email empty end estimate exit export extract filter forecast \
                      fork format forward group handle highlight history import index info invite issue label launch \
                      leave link list load lock log lower mail mark match measure mention merge message mount move new \
                      note open order overview patch pin place plan play plot post press preview process publish pull \
                      purchase push query raise rate record reply request reserve reset resume review roll run scale \
                      scan schedule setup share sign sort stage star start stat statistics stats status stop store style \
                      sum summary switch sync tag tail transfer transport trash trigger turn tweet type upload view \
                      visit vote";

/// Words that mark a tool's name as reading, though requests do not use them as verbs.
const SIGHTS: &str = "echo exists tree whoami";

/// Returns what a verb does. Only imperatives count: `unstaged` is not `unstage`.
pub(crate) fn of(verb: &str) -> Actions {
    static BY_WORD: LazyLock<HashMap<&str, Actions>> = LazyLock::new(|| {
        let mut by_word: HashMap<&str, Actions> = HashMap::new();
        for (actions, words) in VERBS {
            for word in words.split_whitespace() {
                let known = by_word.entry(word).or_default();
                *known = known.with(*actions);
            }
        }
        by_word
    });
    BY_WORD.get(verb).copied().unwrap_or_default()
}

/// Whether a word in a tool's name only reads.
pub fn looks(word: &str) -> bool {
    let actions = of(word);
    let is_look = !actions.is_empty() && actions.is_within(LOOKS);
    is_look && !contains(DOUBTFUL, word) || contains(SIGHTS, word)
}

/// Whether a word in a tool's name changes something.
pub fn changes(word: &str) -> bool {
    !of(word).is_within(LOOKS)
}

/// Whether a verb's effect is irreversible.
pub fn destroys(word: &str) -> bool {
    contains(DESTROY, word)
}

/// Whether a word is as often a noun as a verb.
pub fn is_thing(word: &str) -> bool {
    contains(THINGS, word) || contains(SIGHTS, word)
}

fn contains(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|one| one == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_on_a_verb_of_the_lexicon() {
        for word in [DESTROY, DOUBTFUL, THINGS].into_iter().flat_map(str::split_whitespace) {
            assert!(!of(word).is_empty(), "{word}");
        }
        for word in SIGHTS.split_whitespace() {
            assert!(of(word).is_empty(), "{word}: searches know it already");
        }
        assert!(DESTROY.split_whitespace().all(changes));
    }
}
