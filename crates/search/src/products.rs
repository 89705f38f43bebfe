//! The products that documents are bound to and that requests name: a request for a spreadsheet does not ask
//! for Excel, and a request for GitHub does not ask for GitLab.
//!
//! A document is bound to the products in its group's name, its own name, or the first sentence of either
//! description: well-known products from a list, and any uncommon word of a group's name. Knows names, not
//! scores.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, LazyLock},
};

use super::{Document, text};

/// Well-known products with the words for each, in names of servers and tools and in requests. `_` joins the
/// words of a phrase. A product with `*` is also an English word, so it counts in names only.
const KNOWN: &str = "\
    git, github gh, gitlab gl, bitbucket, gitea, jenkins, circleci, bitrise, sonarqube, codacy, npm \
    npmjs, pypi, docker dockerfile, kubernetes k8s kubectl kube, helm, terraform, ansible, vscode, \
    xcode, jetbrains intellij, godot, blender, unity* unity3d unity_scene unity_project, figma, \
    storybook, playwright, puppeteer, selenium, postman, swagger openapi, vercel, netlify, heroku, \
    cloudflare, sentry, semgrep, snyk, dbt, airflow, argocd, jira, confluence, atlassian, notion, \
    slack, discord, telegram, whatsapp, zoom* zoom_meeting zoom_call, webex, msteams microsoft_teams \
    ms_teams teams_channel, trello, asana, linear* linear_issue linear_ticket, clickup, monday* \
    monday_com, basecamp, todoist, evernote, obsidian, onenote, logseq, airtable, miro, zendesk, \
    intercom, freshdesk, servicenow, pagerduty, opsgenie, hubspot, salesforce, pipedrive, gmail, \
    outlook* microsoft_outlook outlook_mail outlook_calendar, mailchimp, sendgrid, twilio, calendly, \
    dropbox, onedrive, sharepoint, googledrive google_drive gdrive, googlesheets google_sheets \
    google_sheet gsheets, googledocs google_docs google_doc, googlecalendar google_calendar gcal, \
    googlemaps google_maps, typeform, docusign, excel xlsx xls xlsm microsoft_excel, word* docx \
    ms_word microsoft_word word_document word_documents word_file word_files word_doc word_docs in_word, powerpoint pptx ppt potx, \
    libreoffice, latex, acrobat, sqlite, duckdb, postgres postgresql psql, mysql, mariadb, mongodb \
    mongo, redis, elasticsearch, opensearch, neo4j, cassandra, clickhouse, bigquery, snowflake, \
    databricks, dynamodb, supabase, firebase firestore, neon* neondb, milvus, pinecone, qdrant, \
    weaviate, chroma chromadb, kafka, rabbitmq, grafana, prometheus, datadog, newrelic, splunk, aws \
    amazon_web_services, s3, ec2, azure, gcp google_cloud, kusto, tinybird, arangodb arango, \
    influxdb, powerbi power_bi, metabase, wikipedia, wikidata, youtube, twitter tweet tweets, \
    reddit, linkedin, facebook, instagram, tiktok, pinterest, mastodon, bluesky, spotify, netflix, \
    steam* steam_game, twitch, amazon, ebay, airbnb, uber* uber_ride, yelp, tripadvisor, expedia, arxiv, \
    pubmed, stackoverflow stack_overflow, hackernews hacker_news, duckduckgo, bing, brave* \
    brave_search brave_browser, tavily, exa* exa_search, perplexity, wolframalpha wolfram, shopify, \
    stripe, paypal, quickbooks, xero, wordpress, webflow, ghost* ghost_blog, openai chatgpt, \
    huggingface hugging_face, gemini, anthropic, coinbase, binance, etsy, zapier, imdb, chrome \
    devtools, firefox, whois";

/// Common words in servers' names: the kind of server, not the product.
const COMMON: &str = "\
    access account advisor agent agents ai airport alarm algorithm analysis analytics analyzer and \
    android api app apps art article assistant audio auth automation bank blog board book books bot \
    bridge browser business calc calculator calendar car cards career catalog cell chart charts chat \
    check checker city cli client clock cloud code coder color command commander commerce company \
    compare computer connector console contacts content context control convert converter cook \
    crypto csv currency dashboard data database databases date db deep default demo desktop dev \
    developer diagram dictionary directory doc docs document documents download editor education \
    email embedding energy engine eu event events everything example exchange executor expert \
    explorer express facts feed fetch fetcher file files filesystem filter finance financial find \
    finder flight flights food for form forms forum framework free fs game games gateway generator \
    geo get go graph guide health helper history home hotel hotels house html http hub image images \
    info inspector intelligence interactive interpreter ios java job jobs js json kit knowledge lab \
    language law learning library link linux list local location log logs mac machine macos mail \
    make management manager map maps markdown market marketing math mcp media medical meeting memory \
    message messages metrics mind mobile model money monitor monitoring movie movies multi music my \
    natural network news node note notes of office online open operations page paper papers parser \
    payment pdf people personal photo photos plan planner player plot plugin plugins presentation \
    pro process product products profile project projects prompt proxy public python query quote \
    quotes rag reader real recipe recipes reference remote report reports research rest retrieval \
    review risk robot router runner rust sample sandbox schedule scheduler science scientific \
    scraper screen script search security sequential server service services session sheet sheets \
    shell shop shopping simple site slide slides smart social software sports spreadsheet sql ssh \
    stock stocks storage store story studio study subscription suite support system table task tasks \
    team terminal test text the think thinking ticket tickets tide time timeline timer tool toolbox \
    toolkit tools topic tracker trading traffic train translate translation translator transport \
    travel trends tutor uk updates url us user users util utilities utils vault vector video videos \
    view viewer voice weather web website wiki windows with workflow workspace world write writer \
    writing xml your";

/// A sentence with this many products is about none of them.
const MANY: usize = 3;

/// Whether a folded word always names a well-known product.
pub(super) fn is_known(word: &str) -> bool {
    known().get(word).is_some_and(|(_, anywhere)| *anywhere)
}

/// Returns the well-known products by name (words joined with a space): number, and whether the name counts
/// everywhere or in names only.
fn known() -> &'static HashMap<String, (u32, bool)> {
    static NAMES: LazyLock<HashMap<String, (u32, bool)>> = LazyLock::new(|| {
        let lines = (0..).zip(KNOWN.split(','));
        let names = lines.flat_map(|(number, line)| line.split_whitespace().map(move |name| (name, number)));
        let entry = |(name, number): (&str, u32)| match name.strip_suffix('*') {
            Some(name) => (name.to_owned(), (number, false)),
            None => (name.replace('_', " "), (number, true)),
        };
        names.map(entry).collect()
    });
    &NAMES
}

fn is_common(word: &str) -> bool {
    static WORDS: LazyLock<HashSet<&str>> = LazyLock::new(|| COMMON.split_whitespace().collect());
    word.chars().count() < 3 || word.bytes().all(|byte| byte.is_ascii_digit()) || WORDS.contains(word)
}

/// A product that something is bound to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Product {
    /// A well-known one.
    Known(u32),
    /// A word of a group's name that is neither common nor a well-known product.
    Own(Arc<str>),
}

/// The products of every document of an index.
#[derive(Default)]
pub(super) struct Products {
    /// Words of groups' names that are neither common nor well-known products.
    words: HashSet<Arc<str>>,
    /// How many documents each group has.
    groups: HashMap<Arc<str>, usize>,
    /// The products of each document, without duplicates.
    bound: Vec<Arc<[Product]>>,
}

impl Products {
    /// Returns the products of these documents. `kept` has the index in `before` of each known document;
    /// `removed` are the documents of `before` that are dropped.
    pub(super) fn updated<'a>(
        before: &Products,
        documents: &[Arc<Document>],
        kept: &[Option<usize>],
        removed: impl Iterator<Item = &'a Arc<Document>>,
    ) -> Products {
        let mut groups = before.groups.clone();
        for document in removed {
            groups.entry(document.group.clone()).and_modify(|count| *count -= 1);
        }
        let mut bound = Vec::with_capacity(documents.len());
        for (document, kept) in documents.iter().zip(kept) {
            bound.push(match kept {
                Some(at) => before.bound[*at].clone(),
                None => {
                    *groups.entry(document.group.clone()).or_default() += 1;
                    let numbers = named_by(&document.group_description)
                        .into_iter()
                        .chain(known_in(&plain_words(&document.name), true))
                        .chain(named_by(&document.description));
                    let mut found: Vec<Product> =
                        of_group(&document.group).chain(numbers.map(Product::Known)).collect();
                    found.sort_unstable();
                    found.dedup();
                    found.into()
                }
            });
        }
        groups.retain(|_, count| *count > 0);
        let own = |product| if let Product::Own(word) = product { Some(word) } else { None };
        let words = groups.keys().flat_map(|group| of_group(group)).filter_map(own).collect();
        Products { words, groups, bound }
    }

    /// Returns the products that a request names.
    pub(super) fn named(&self, request: &str) -> Vec<Product> {
        let words = plain_words(request);
        let own = words.iter().filter_map(|word| self.words.get(word.as_str())).cloned().map(Product::Own);
        known_in(&words, false).into_iter().map(Product::Known).chain(own).collect()
    }

    /// Returns how a document relates to the named products.
    pub(super) fn bound(&self, named: &[Product], document: usize) -> ProductMatch {
        let bound = self.bound.get(document).map_or(&[][..], |bound| bound);
        if bound.iter().any(|product| named.contains(product)) {
            ProductMatch::Named
        } else if bound.iter().any(|product| matches!(product, Product::Known(_))) {
            ProductMatch::Other
        } else {
            ProductMatch::Free
        }
    }
}

/// How a document relates to the products that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductMatch {
    /// Bound to one of them.
    Named,
    /// Bound to another well-known product.
    Other,
    /// Bound to none, or only to a word of its group that is not a well-known product.
    Free,
}

/// Returns the products in the name of a group.
fn of_group(group: &str) -> impl Iterator<Item = Product> {
    let own = plain_words(group).into_iter().filter(|word| !is_common(word));
    own.map(|word| match known().get(&word) {
        Some((number, _)) => Product::Known(*number),
        None => Product::Own(word.into()),
    })
}

/// Returns the words as written, and the parts of `GitHubActions`: a capital does not split a product's name.
fn plain_words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for run in text.split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty()) {
        let whole = text::fold(run);
        let parts = text::words(run);
        if parts.len() > 1 && !is_known(&whole) {
            words.extend(parts);
        } else {
            words.push(whole);
        }
    }
    words
}

/// Returns the well-known products in a first sentence; none if it names many.
fn named_by(description: &str) -> Vec<u32> {
    let mut named = known_in(&plain_words(text::first_sentence(description)), false);
    named.sort_unstable();
    named.dedup();
    if named.len() < MANY { named } else { Vec::new() }
}

/// Returns the well-known products in a list of words, up to three words each.
fn known_in(words: &[String], are_name: bool) -> Vec<u32> {
    let phrases =
        (0..words.len()).flat_map(|at| (1..=3.min(words.len() - at)).map(move |length| (at, length)));
    let found = phrases.filter_map(|(at, length)| match length {
        1 => known().get(&words[at]),
        _ => known().get(&words[at..at + length].join(" ")),
    });
    found.filter(|(_, anywhere)| are_name || *anywhere).map(|(number, _)| *number).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn documents_are_bound_to_what_their_names_and_first_sentences_name() {
        let document = |server: &str, name: &str, description: &str| {
            Document::from_definition(
                &format!("{server}.{name}"),
                server,
                name,
                "",
                description,
                &Value::Null,
                vec![],
                "",
            )
        };
        let documents = [
            document("github", "create_issue", "Opens an issue in a GitHub repository"),
            document("office", "add_row", "Adds a row to an Excel workbook"),
            document("files", "read_file", "Reads a file"),
            document("convert", "to_markdown", "Converts PDF, Word documents, Excel and PowerPoint files"),
            document("verodat", "query", "Asks a question"),
        ];
        let products =
            Products::updated(&Products::default(), &documents.map(Arc::new), &[None; 5], [].iter());
        let check = |request: &str, expected: [ProductMatch; 5]| {
            let named = products.named(request);
            assert_eq!([0, 1, 2, 3, 4].map(|at| products.bound(&named, at)), expected, "{request}");
        };
        use ProductMatch::{Free, Named, Other};
        check("open an issue", [Other, Other, Free, Free, Free]);
        check("open an issue on GitHub", [Named, Other, Free, Free, Free]);
        check("a row in report.xlsx", [Other, Named, Free, Free, Free]);
        check("ask Verodat", [Other, Other, Free, Free, Named]);
        check("a word on Monday", [Other, Other, Free, Free, Free]);
        check("", [Other, Other, Free, Free, Free]);
    }
}
