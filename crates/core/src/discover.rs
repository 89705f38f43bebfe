//! Finding tools: search, browse, describe. Answers are compact and omit empty fields.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use nonet_api::{
    fault::{NextStep, Reader},
    status::ServerState,
    tools::{
        Described, DescribedTool, Found, FoundMark, RankExplanation, SearchAnswer, TieBreak, ToolLine,
        ToolPage, ToolState, ToolView,
    },
};
use nonet_base::text::{MAX_NAME, clean, clip};
use nonet_config::Risk;
use nonet_search::{self as search, Boost, Boosts, Confidence, Hit, LearnedBoost, Query, SearchResult};
use nonet_servers::{
    catalog::{EntryKind, Tool, mark},
    policy::{self, PolicyVerdict},
};
use nonet_text::{
    fault::{Fault, FaultCode},
    leaks::Finding,
    name::{RESERVED, nearest_in_meaning},
};
use serde_json::{Value, json};

use super::learn;
use crate::{find::Find, gate::Gate, ties::Ties};
use nonet_state::{
    give_way,
    session::{Caller, Session},
    snapshot::{ProfileView, Snapshot},
};

/// The share of the first hit's score that a hit of another server needs to replace a hit of the same server.
const SPREAD: f32 = 0.75;
/// Hits below this share of the first hit's score are dropped if confidence is high and the client set no
/// limit.
const FAR: f32 = 0.5;
/// The length of a description in a list, in characters.
pub(super) const SUMMARY: usize = 160;
/// How many hits are shown whole without high confidence, if the client asks for no detail; of the others,
/// the names.
const WHOLE: usize = 2;
/// The number of candidates, among which are hits of a second server and loaded tools.
const POOL: usize = 60;
/// The score bonus of a tool that the session has loaded.
const LOADED_BONUS: f32 = 0.1;
/// What a priority of 1 adds to a score: enough to decide between nearly equal hits. It grows with the
/// square, so 10 adds 2, more than the largest score difference between two hits: up to 1 for meaning, 0.5
/// for words, 0.03 for letters, 0.3 for learned and loaded, 0.3 for action, product and deprecation.
const PRIORITY_STEP: f32 = 0.02;
/// The longest instructions of a server in an answer, in characters.
const INSTRUCTIONS: usize = 4_000;
/// How many words of a description are checked for names of tools.
const MOST_WORDS: usize = 100;
/// How many tags near an unknown one a fault names.
const NEAREST: usize = 3;
/// The maximum number of tools in one `get_tool`.
const MAX_NAMES: usize = 5;

/// How much a search returns for each tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    Name,
    /// Name, short description, signature, risk.
    #[default]
    Signature,
    /// All of `Signature`, with the full description and the input schema.
    Full,
}

/// The arguments of `search_tools`.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
pub struct SearchArguments {
    /// What the tool should do.
    #[serde(default)]
    pub query: String,
    /// Limits the search to this category.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The number of results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// How much to return for each result. By default `Signature`; if the confidence is high, only for the
    /// first result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
    /// The highest risk to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_risk: Option<Risk>,
    /// Limits the search to tools, skills or apps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<EntryKind>,
    /// Limits the search to tools with one of these tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Who reads the answer. For people, each result has its score and everything of its detail.
    #[serde(skip)]
    pub reader: Reader,
    /// Whether to explain each result's rank; for the command line, not for models.
    #[serde(skip)]
    pub explain: bool,
}

/// The arguments of `browse_category`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub struct BrowseArguments {
    /// The category.
    pub category: String,
    /// The page, from 1.
    pub page: Option<usize>,
    /// Tools per page.
    pub page_size: Option<usize>,
    /// Limits the list to tools whose own name starts with this.
    pub prefix: Option<String>,
}

impl SearchArguments {
    /// Whether a tool passes the filters by kind, tags and risk.
    fn wants(&self, tool: &Tool) -> bool {
        let has = |tag: &String| tags_of(tool).any(|own| own.eq_ignore_ascii_case(tag.trim()));
        self.kind.is_none_or(|kind| tool.kind == kind)
            && (self.tags.is_empty() || self.tags.iter().any(has))
            && policy::within(tool.risk, self.max_risk)
    }
}

/// Returns the tags that a search can ask for.
fn tags_of(tool: &Tool) -> impl Iterator<Item = &str> {
    tool.tags.iter().chain(&tool.search_tags).map(String::as_str)
}

/// Returns the score that a priority adds.
fn lift(priority: f32) -> f32 {
    PRIORITY_STEP * priority * priority.abs()
}

impl Find {
    /// Implements the `search_tools` meta-tool.
    pub async fn search(&self, caller: &Caller, arguments: SearchArguments) -> Result<Found, Fault> {
        let query = arguments.query.trim();
        if query.is_empty() {
            return self.without_query(caller, arguments).await;
        }
        let began = Instant::now();
        let span = caller.meta_span("search_tools");
        self.publisher.searchable().await;
        self.publisher.index_early(&self.servers.config());
        self.calls.fresh_skills().await;
        let gate = Gate::of(&self.publisher, &caller.session);
        let snapshot = &gate.snapshot;
        let view = gate.view();
        let members = match gate.filters(&view, &arguments) {
            Ok(members) => members,
            Err(fault) => {
                span.ended(fault.code.as_str());
                return Err(fault);
            }
        };
        let allowed = |document: usize| {
            view.seen.get(document) == Some(&true)
                && snapshot.tool(document).is_some_and(|tool| {
                    arguments.wants(tool)
                        && members.as_ref().is_none_or(|members| members.contains(&document))
                })
        };
        let request = search::prepare(&snapshot.index, self.publisher.embedder().as_ref(), query).await;
        let words = search::outcomes::words(query);
        let learned = self.observing.learned(snapshot, &words);
        let mut boosts = boosts(&gate, &view, &caller.session);
        learn::add(&mut boosts, &learned);
        give_way::lower(&mut boosts, snapshot, &view, &words, request.has_vectors());
        let pool = POOL.max(2 * limit(&arguments));
        let mut found = snapshot.index.search(&request, pool, &allowed, &boosts);
        let mut ties =
            Ties::new(&gate, self.servers.config().gateway.learn.then_some(&self.observing.figures));
        ties.settle(&mut found.hits);
        give_way::tools_first(&mut found.hits, snapshot);
        self.observing.searched(caller, snapshot, words.clone(), &found);
        found.confidence = give_way::confidence(&found, snapshot);
        // Confidence cannot be high before everything is indexed.
        let indexing = *self.publisher.indexing().borrow();
        let partly =
            !snapshot.index.has_all_vectors() && !indexing.finished && !self.publisher.is_without_embedder();
        if matches!(found.confidence, Confidence::High)
            && (partly || !gate.unlisted().is_empty())
            && !found.hits.first().is_some_and(|hit| hit.exact)
        {
            found.confidence = Confidence::Medium;
        }
        let detail = arguments.detail.unwrap_or_default();
        let is_for_people = arguments.reader == Reader::Shell;
        let is_scored = is_for_people || detail == Detail::Full;
        // A search within one category, kind or tag lists its hits, and looks for nothing beside them.
        let is_limited = members.is_some() || arguments.kind.is_some() || !arguments.tags.is_empty();
        let is_unsure = !matches!(found.confidence, Confidence::High) && !is_limited;
        let whole = match found.confidence {
            _ if arguments.detail.is_some() || is_for_people => usize::MAX,
            Confidence::High => 1,
            _ if is_limited => usize::MAX,
            Confidence::Medium => WHOLE,
            Confidence::None => 0,
        };
        let mut results = Vec::new();
        for (hit, tool, twins) in shown(&gate, &view, &arguments, &found, is_unsure, &mut ties) {
            let detail = if results.len() < whole { detail } else { Detail::Name };
            let mut line = gate.line(tool, detail, SUMMARY, is_scored.then_some(hit.score));
            line.also = twins.into_iter().map(String::from).collect();
            if arguments.explain {
                line.explain = Some(explain(snapshot, &view, &request, &learned, ties.decided(hit), hit));
            }
            results.push(line);
        }
        self.observing.metrics.searched(began.elapsed());
        span.found(results.len(), found.total, found.confidence.as_str());
        let mut hint = self.hint(&gate, &request, &words, &found, &arguments);
        let remembered = if is_unsure { self.remembered(caller, query).await } else { None };
        if remembered.is_some() {
            let told = "A remembered fact may answer this: see `remembered`. gateway.recall finds others.";
            hint = Some(hint.map_or_else(|| told.into(), |hint| format!("{hint} {told}")));
        }
        let is_nothing = is_unsure && matches!(found.confidence, Confidence::None);
        let registry = match is_nothing {
            true => Box::pin(self.publisher.servers.suggested(query)).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let confidence = Some(found.confidence);
        Ok(Found::Hits(SearchAnswer { results, confidence, remembered, registry, hint }))
    }

    /// Answers a search without words: the categories, or all tools that pass the filters.
    async fn without_query(&self, caller: &Caller, arguments: SearchArguments) -> Result<Found, Fault> {
        self.calls.fresh_skills().await;
        let gate = Gate::of(&self.publisher, &caller.session);
        let of_kind = || arguments.kind.and_then(EntryKind::category).map(String::from);
        let category = arguments.category.clone().or_else(of_kind);
        let is_filtered = arguments.kind.is_some() || !arguments.tags.is_empty();
        let page = BrowseArguments { page_size: arguments.limit, ..BrowseArguments::default() };
        let wants = |tool: &Tool| arguments.wants(tool);
        Ok(match category {
            Some(category) => {
                let page = BrowseArguments { category, ..page };
                Found::Page(gate.browse_with_instructions(&page, arguments.reader, &wants)?)
            }
            None if is_filtered => {
                Found::Page(gate.page((0..gate.snapshot.tools.len()).collect(), &page, &wants))
            }
            None => Found::Categories(self.with_work(caller, gate.categories()).await),
        })
    }

    /// Implements the `browse_category` meta-tool.
    pub async fn browse(&self, caller: &Caller, arguments: &BrowseArguments) -> Result<ToolPage, Fault> {
        self.calls.fresh_skills().await;
        let gate = Gate::of(&self.publisher, &caller.session);
        gate.browse_with_instructions(arguments, Reader::Model, &|_| true)
    }

    /// Returns hints about the search: few matches, missing vectors, servers still starting or absent.
    fn hint(
        &self,
        gate: &Gate,
        request: &Query,
        words: &[String],
        found: &SearchResult,
        arguments: &SearchArguments,
    ) -> Option<String> {
        let mut hints: Vec<String> = gate.first_server().into_iter().collect();
        if !hints.is_empty() {
            // Other words would not find more.
        } else if found.hits.is_empty() {
            let category = arguments.category.as_deref().map(search::outcomes::words);
            hints.push(category.and_then(|words| gate.absent_hint(&words)).unwrap_or_else(|| {
                let all = NextStep::new("list_categories", json!({})).named(arguments.reader);
                format!(
                    "Nothing matches. Say what the tool should do in other words, name the product, or call {all}."
                )
            }));
        } else if matches!(found.confidence, Confidence::None) {
            let all = NextStep::new("browse_category", json!({})).named(arguments.reader);
            hints.push(format!(
                "No connected server seems to do this. Try once more in other words, or {all}."
            ));
        }
        let indexing = *self.publisher.indexing().borrow();
        if !request.has_vectors()
            && (indexing.failed || indexing.finished || self.publisher.is_without_embedder())
        {
            hints.push("These are keyword matches: search by meaning is not available, so use the words that a tool's name or description would have.".into());
        } else if !indexing.finished && !gate.snapshot.index.has_all_vectors() {
            hints.push("Not every tool is indexed by meaning yet; the others are found by the words of their names and descriptions.".into());
        }
        if arguments.category.is_none() {
            let may_hold = |server: &Arc<str>| {
                gate.profile().is_none_or(|profile| profile.categories.iter().any(|name| **name == **server))
            };
            let starting: Vec<Arc<str>> = gate.unlisted().into_iter().filter(may_hold).collect();
            if !starting.is_empty() {
                hints.push(format!(
                    "Still starting, so not searched: {}. Search again in a few seconds.",
                    starting.join(", ")
                ));
            }
            hints.extend(gate.absent_hint(words));
        }
        (!hints.is_empty()).then(|| hints.join(" "))
    }

    /// Implements the `get_tool` meta-tool: one tool, or several, with a fault in place of each tool not
    /// found.
    pub async fn describe(&self, caller: &Caller, names: &[String], many: bool) -> Result<Described, Fault> {
        if names.len() > MAX_NAMES {
            return Err(Fault::new(
                FaultCode::InvalidParams,
                format!("`names` holds {} names; at most {MAX_NAMES} are described at once. Use gateway.load_tools for more.", names.len()),
            )
            .next("get_tool", json!({ "names": &names[..MAX_NAMES] })));
        }
        if self.servers.config().gateway.learn {
            self.observing.figures.recall().await;
        }
        if !many {
            let name = names.first().map_or("", String::as_str);
            return self
                .calls
                .find_tool(caller, name)
                .await
                .map(|(gate, tool)| Described::One(Box::new(self.whole(caller, &gate, &tool))));
        }
        let mut tools = Vec::new();
        for name in names {
            tools.push(match self.calls.find_tool(caller, name).await {
                Ok((gate, tool)) => DescribedTool::Tool(Box::new(self.whole(caller, &gate, &tool))),
                Err(fault) => DescribedTool::Unknown { error: Box::new(fault), name: name.clone() },
            });
        }
        Ok(Described::Many { tools })
    }

    /// Describes one tool completely.
    fn whole(&self, caller: &Caller, gate: &Gate, tool: &Tool) -> ToolView {
        let field = |key: &str| tool.visible.get(key).cloned().unwrap_or_default();
        let is_tool = tool.kind == EntryKind::Tool;
        // Skills and apps are left out, because their own meta-tools also run them and only calls of tools
        // are counted. A session's own server is left out, because nothing about it is kept and its name may
        // have been another server's.
        let is_counted = is_tool && tool.session.is_none();
        let report = || {
            let owner = caller.session.profile.as_deref().unwrap_or_default();
            self.observing.figures.of(&tool.own_full(), owner, &tool.version)
        };
        let asks = matches!(gate.verdict(tool), PolicyVerdict::Approve(_));
        let examples = match tool.examples.as_slice() {
            [] => tool.schema.raw().get("examples").cloned().unwrap_or_default(),
            examples => examples.iter().map(|params| json!(tool.call_with(params))).collect(),
        };
        ToolView {
            name: tool.full.clone(),
            kind: tool.kind,
            title: tool.title.clone(),
            description: tool.description.clone(),
            input_schema: tool.schema.raw().clone(),
            output_schema: field("outputSchema"),
            annotations: if is_tool { field("annotations") } else { Value::Null },
            risk: tool.risk,
            category: tool.server.clone(),
            server: tool.of.clone(),
            aliases: tool.aliases.clone(),
            tags: tool.tags.iter().chain(&tool.search_tags).cloned().collect(),
            examples,
            version: tool.version.clone(),
            call: tool.call(),
            policy: asks.then_some("approve: the user is asked before each call".into()),
            note: gate.catalog().clash(&tool.full).map(|holder| {
                format!("the bare name `{}` belongs to `{holder}`; call `{}`", tool.name, tool.full)
            }),
            warning: tool
                .schema
                .broken()
                .map(|broken| format!("the schema cannot be used to check params: {broken}")),
            state: gate.state_of(tool).unwrap_or(ToolState::Server(ServerState::Ready)),
            change: self.calls.told_change(tool),
            report: is_counted.then(report).flatten(),
            instructions: gate.instructions_for(caller, &tool.server),
            warnings: gate.warnings(tool),
        }
    }
}

impl Gate {
    /// Returns the documents of the category that a search is limited to.
    ///
    /// # Errors
    ///
    /// A category or tags that nothing has, with the search that was likely meant.
    fn filters(
        &self,
        view: &ProfileView,
        arguments: &SearchArguments,
    ) -> Result<Option<BTreeSet<usize>>, Fault> {
        let again =
            |fault: Fault, correct: &dyn Fn(String) -> SearchArguments| match fault.did_you_mean.first() {
                Some(near) => fault.clone().next("search_tools", json!(correct(near.clone()))),
                None => fault,
            };
        if !arguments.tags.is_empty() {
            self.has_tag(view, &arguments.tags).map_err(|fault| {
                again(fault, &|near| SearchArguments { tags: vec![near], ..arguments.clone() })
            })?;
        }
        let Some(category) = &arguments.category else { return Ok(None) };
        let members = self.members(category, arguments.reader).map_err(|fault| {
            again(fault, &|near| SearchArguments { category: Some(near), ..arguments.clone() })
        })?;
        Ok(Some(members))
    }

    /// Checks that a tool which the caller sees has one of these tags.
    fn has_tag(&self, view: &ProfileView, tags: &[String]) -> Result<(), Fault> {
        let tools = self.snapshot.tools.iter().zip(&view.seen).filter(|(_, seen)| **seen);
        let known: BTreeSet<&str> = tools.flat_map(|(tool, _)| tags_of(tool)).collect();
        let is_known = |tag: &str| known.iter().any(|known| known.eq_ignore_ascii_case(tag.trim()));
        if tags.iter().any(|tag| is_known(tag)) {
            return Ok(());
        }
        let tag = clip(tags.first().map_or("", |tag| tag.trim()), MAX_NAME);
        let near = nearest_in_meaning(&tag, known.iter().copied(), NEAREST);
        let message = match near.first() {
            Some(first) => format!("No tool has the tag `{tag}`. The nearest is `{first}`."),
            None => format!("No tool has the tag `{tag}`. Search without tags."),
        };
        Err(Fault::new(FaultCode::NotFound, message).suggest(near))
    }

    /// Returns the noticeable parts of a tool's definition and of its server's own description: what, where,
    /// and how the text begins.
    fn warnings(&self, tool: &Tool) -> Vec<FoundMark> {
        let mut findings = tool.marks().clone();
        if !tool.is_of_server() {
            return findings.marks_shown();
        }
        if let Some(entry) = self.server(&tool.server) {
            mark(&json!(entry.listing.about), "instructions", &mut findings);
        }
        if let Some(other) = self.named_in(tool) {
            let what = "names a tool of another server";
            findings.marks.push(Finding { what, place: "description".into(), text: other });
        }
        findings.marks_shown()
    }

    /// Returns the tool of another server that a description names.
    fn named_in(&self, tool: &Tool) -> Option<String> {
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        let words = tool.description.split(|c| !is_part(c)).map(|word| word.trim_matches(['.', '-']));
        let names =
            words.filter(|word| word.len() <= MAX_NAME && (word.contains('.') || word.contains("__")));
        let other = |name: &str| {
            let named = self.catalog().resolve(name).ok()?;
            let is_meant = *named.full == *name || *named.wire == *name;
            (is_meant && named.server != tool.server && self.allows(named)).then(|| named.full.to_string())
        };
        names.take(MOST_WORDS).find_map(other)
    }

    /// Describes one tool for a list.
    fn line(&self, tool: &Tool, detail: Detail, summary: usize, score: Option<f32>) -> ToolLine {
        let is_tool = tool.kind == EntryKind::Tool;
        let named = ToolLine {
            name: tool.full.to_string(),
            kind: tool.kind,
            state: self.state_of(tool),
            score: score.map(|score| (f64::from(score) * 1000.0).round() / 1000.0),
            ..ToolLine::default()
        };
        // The name is beside it.
        let signature = || tool.signature.strip_prefix(&*tool.full).unwrap_or(&tool.signature).to_string();
        let described =
            ToolLine { call: (!is_tool).then(|| tool.call()), risk: Some(tool.risk), ..named.clone() };
        match detail {
            Detail::Name => named,
            Detail::Signature => ToolLine {
                description: tool.summary(summary),
                signature: is_tool.then(signature),
                ..described
            },
            Detail::Full => ToolLine {
                description: tool.description.clone(),
                input_schema: Some(tool.schema.raw().clone()),
                ..described
            },
        }
    }

    /// Returns the instructions of a server on the first call in a session.
    fn instructions(&self, server: &str) -> Option<String> {
        let (server, entry) = self.catalog().servers().get_key_value(server)?;
        // A group may have the same name as another session's server.
        if self.is_foreign(server) {
            return None;
        }
        let text = entry.listing.about.trim();
        let are_new = !RESERVED.contains(&&**server) && !text.is_empty() && self.instruct(server);
        are_new.then(|| clip(&clean(text), INSTRUCTIONS))
    }

    /// Returns the same if the caller's session lasts. Without a session, each request would repeat the
    /// instructions.
    pub(super) fn instructions_for(&self, caller: &Caller, server: &str) -> Option<String> {
        caller.lasting.then(|| self.instructions(server)).flatten()
    }

    /// Returns one page of a category filtered by `wants`, with the instructions of its server if they are
    /// new to the session.
    fn browse_with_instructions(
        &self,
        arguments: &BrowseArguments,
        reader: Reader,
        wants: &dyn Fn(&Tool) -> bool,
    ) -> Result<ToolPage, Fault> {
        let page = self.browse_what(arguments, reader, wants)?;
        let instructions = (page.total != 0).then(|| self.instructions(arguments.category.trim())).flatten();
        Ok(ToolPage { instructions, ..page })
    }

    /// Returns one page of a category.
    pub fn browse(&self, arguments: &BrowseArguments) -> Result<ToolPage, Fault> {
        self.browse_what(arguments, Reader::Model, &|_| true)
    }

    /// Returns one page of the tools in a category that pass `wants`.
    fn browse_what(
        &self,
        arguments: &BrowseArguments,
        reader: Reader,
        wants: &dyn Fn(&Tool) -> bool,
    ) -> Result<ToolPage, Fault> {
        let category = arguments.category.trim();
        let page = self.page(self.members(category, reader)?, arguments, wants);
        Ok(ToolPage { category: Some(category.into()), state: self.trouble(category), ..page })
    }

    /// Returns one page of these documents.
    fn page(
        &self,
        members: BTreeSet<usize>,
        arguments: &BrowseArguments,
        wants: &dyn Fn(&Tool) -> bool,
    ) -> ToolPage {
        let prefix = arguments.prefix.as_deref().unwrap_or_default().to_lowercase();
        let tools: Vec<Arc<Tool>> = members
            .into_iter()
            .filter_map(|document| self.snapshot.tool(document))
            .filter(|tool| self.allows(tool) && wants(tool))
            .filter(|tool| {
                tool.name.to_lowercase().starts_with(&prefix) || tool.full.to_lowercase().starts_with(&prefix)
            })
            .cloned()
            .collect();
        let page = arguments.page.unwrap_or(1).max(1);
        let page_size = arguments.page_size.unwrap_or(20).clamp(1, 100);
        let shown = tools
            .iter()
            .skip((page - 1).saturating_mul(page_size))
            .take(page_size)
            .map(|tool| self.line(tool, Detail::Signature, SUMMARY, None))
            .collect();
        ToolPage {
            category: None,
            page,
            page_size,
            total: tools.len(),
            tools: shown,
            state: None,
            instructions: None,
        }
    }
}

/// Returns the maximum number of results.
fn limit(arguments: &SearchArguments) -> usize {
    arguments.limit.unwrap_or(5).clamp(1, 50)
}

/// A hit, its tool, and the full names of tools with the same definition.
type ShownHit<'a> = (&'a Hit, &'a Arc<Tool>, Vec<&'a str>);

/// Selects the hits of an answer. `spread`: from several servers if possible.
fn shown<'a>(
    gate: &'a Gate,
    view: &ProfileView,
    arguments: &SearchArguments,
    found: &'a SearchResult,
    spread: bool,
    ties: &mut Ties,
) -> Vec<ShownHit<'a>> {
    let mut hits = distinct(&gate.snapshot, &found.hits, limit(arguments), spread, view, ties);
    if matches!(found.confidence, Confidence::High) && arguments.limit.is_none() {
        let least = found.hits.first().map_or(0.0, |hit| FAR * hit.score);
        hits.retain(|(hit, ..)| hit.score >= least);
    }
    hits
}

/// Explains a hit's score to people.
fn explain(
    snapshot: &Snapshot,
    view: &ProfileView,
    request: &Query,
    learned: &[(usize, LearnedBoost)],
    tie: Option<TieBreak>,
    hit: &Hit,
) -> RankExplanation {
    let learned = learned.iter().find(|(document, _)| *document == hit.document);
    RankExplanation {
        search: snapshot.index.explain(request, hit),
        learned_from: learned.map(|(_, from)| from.words.clone()).unwrap_or_default(),
        priority: view.priority(hit.document),
        tie,
    }
}

/// Ranks loaded tools higher, and tools with a priority higher or lower.
fn boosts(gate: &Gate, view: &ProfileView, session: &Session) -> Boosts {
    let boost = |priority: f32| Boost { priority: lift(priority), ..Boost::default() };
    let priorities = view.priorities.iter();
    let mut boosts: Boosts = priorities.map(|(document, priority)| (*document, boost(*priority))).collect();
    for document in session.loaded().iter().filter_map(|full| gate.snapshot.place(full)) {
        boosts.entry(document).or_default().learned += LOADED_BONUS;
    }
    boosts
}

/// Selects the first `most` hits, each with the full names of its twins: tools of other servers with the same
/// definition and no priority set by the user. Among twins, the one that `ties` prefers becomes the hit.
/// `spread`: include a second server if its hits are close enough.
fn distinct<'a>(
    snapshot: &'a Snapshot,
    hits: &'a [Hit],
    most: usize,
    spread: bool,
    view: &ProfileView,
    ties: &mut Ties,
) -> Vec<ShownHit<'a>> {
    let mut kept: Vec<ShownHit<'a>> = Vec::new();
    for hit in hits {
        let Some(tool) = snapshot.tool(hit.document) else { continue };
        let twin = |(_, other, _): &&mut ShownHit<'a>| {
            other.name == tool.name && other.version == tool.version && !view.ranks(tool)
        };
        match kept.iter_mut().find(twin) {
            Some((first, shown, twins)) if ties.prefers((hit, tool), (first, shown)) => {
                twins.insert(0, &shown.full);
                (*first, *shown) = (hit, tool);
            }
            Some((.., twins)) => twins.push(&tool.full),
            None => kept.push((hit, tool, Vec::new())),
        }
    }
    let one_server = |kept: &[ShownHit<'a>]| kept.windows(2).all(|pair| pair[0].1.server == pair[1].1.server);
    if spread
        && most > 1
        && kept.len() > most
        && one_server(&kept[..most])
        && let Some(other) = kept.iter().position(|(hit, tool, _)| {
            tool.server != kept[0].1.server && hit.score >= SPREAD * kept[0].0.score
        })
    {
        kept.swap(most - 1, other);
    }
    kept.truncate(most);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_of_1_is_little_and_10_is_more_than_any_score() {
        let check = |priority: f32, expected: f32| {
            assert!((lift(priority) - expected).abs() < 1e-6, "{priority}: {}", lift(priority));
            assert_eq!(lift(-priority), -lift(priority));
        };
        check(0.0, 0.0);
        check(1.0, 0.02);
        check(0.5, 0.005);
        check(3.0, 0.18);
        check(10.0, 2.0);
    }
}
