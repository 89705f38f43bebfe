use std::{collections::BTreeMap, path::Path};

use nonet_config as config;
use nonet_search::{Boosts, Passages};
use nonet_servers::catalog::Listing;
use proptest::{prelude::*, sample::select};
use serde_json::json;

use super::*;

/// Names that collide in every way: `a` + `b.x` and `a.b` + `x`, equal cleaned names, another server's word.
const SERVERS: [&str; 5] = ["a", "a.b", "a_b", "github", "verodat"];
const TOOLS: [&str; 6] = ["x", "b.x", "b_x", "b x", "read_file", "create_issue"];
const SAID: [&str; 4] = [
    "Reads a file. Takes its path.",
    "Opens an issue in a GitHub repository",
    "Deprecated: asks Verodat",
    "Adds a row to an Excel workbook, or takes it away again",
];
const ABOUT: [&str; 3] = ["", "Tools for files.", "Everything about GitHub"];
/// How the configuration may treat a server.
const SETTINGS: [&str; 6] = [
    "",
    "expose = 'verbatim'",
    "blocked_tools = ['b*']",
    "description = 'Spreadsheets'",
    "tools.x.rename = 'b_x'\ntools.read_file.rename = 'create_issue'\ntools.read_file.description = 'Looks'",
    "tools.b_x.rename = 'y'\ntools.'b x'.rename = 'y'\ntools.create_issue.rename = 'read_file'",
];
const REQUESTS: [&str; 8] = [
    "read a file",
    "open an issue on github",
    "ask verodat",
    "x",
    "a.b.x",
    "create_issue",
    "add a row to a spreadsheet and read the file",
    "delete it",
];

type Text = &'static str;

/// A change to one server: it leaves, or it gets another list.
#[derive(Clone, Debug)]
struct Change {
    server: Text,
    listed: Option<ServerLists>,
}

#[derive(Clone, Debug)]
struct ServerLists {
    tools: Vec<(Text, Text)>,
    about: Text,
    settings: Text,
}

fn change() -> impl Strategy<Value = Change> {
    let tools = prop::collection::vec((select(&TOOLS[..]), select(&SAID[..])), 0..5);
    let listed = (tools, select(&ABOUT[..]), select(&SETTINGS[..]));
    let listed = listed.prop_map(|(tools, about, settings)| ServerLists { tools, about, settings });
    let listed = prop::option::weighted(0.85, listed);
    (select(&SERVERS[..]), listed).prop_map(|(server, listed)| Change { server, listed })
}

fn configured(server: &str, settings: &str) -> Config {
    let text = format!("[servers.'{server}']\ncommand = 'x'\n{settings}");
    config::parse(&text, Path::new("f"), config::ValueSources::NONE).expect("it is usable").config
}

fn source(server: &str, tools: &[(&str, &str)], about: &str, settings: &str) -> CatalogSource {
    let definition = |(name, said): &(&str, &str)| {
        let schema = json!({ "type": "object", "properties": { "path": { "description": said } } });
        Arc::new(json!({ "name": name, "description": said, "inputSchema": schema }))
    };
    let tools = tools.iter().map(definition).collect();
    let listing = Listing { tools, about: about.into(), ..Listing::default() };
    // The configuration does not accept a name with a dot, but the catalogue does.
    let name = server.replace('.', "-");
    let settings = configured(&name, settings).servers.into_values().next().expect("it has no fault");
    let settings = Some(Arc::new(settings));
    CatalogSource { server: server.into(), listing: Arc::new(listing), settings }
}

/// Returns the index with a vector for each document that depends on its text.
fn with_vectors(index: &Index) -> Index {
    let vector = |key: &[u8; 16]| -> Arc<[f32]> {
        let values: Vec<f32> = key.iter().map(|&byte| f32::from(byte) - 100.0).collect();
        let length = values.iter().map(|value| value * value).sum::<f32>().sqrt();
        values.into_iter().map(|value| value / length).collect()
    };
    index.with_vectors(index.keys().iter().map(vector).map(Some).collect())
}

fn assert_same_answers(one: &Index, other: &Index) {
    assert_eq!(one.documents(), other.documents());
    assert_eq!(one.keys(), other.keys());
    for request in REQUESTS {
        let query = one.parse(request);
        let found = [one, other].map(|index| index.search(&query, 10, &|at| at % 5 != 3, &Boosts::new()));
        assert_eq!(found[0].hits, found[1].hits, "{request}");
        assert_eq!((found[0].total, found[0].confidence), (found[1].total, found[1].confidence), "{request}");
        for hit in &found[0].hits {
            assert_eq!(one.explain(&query, hit), other.explain(&query, hit), "{request}");
        }
        let query = one.parse(request);
        let parts = query.texts().len();
        let like: Arc<[f32]> = [0.25; 16].into();
        let query = query.with_vectors(vec![like; parts]);
        let found =
            [one, other].map(|index| with_vectors(index).search(&query, 10, &|_| true, &Boosts::new()).hits);
        assert_eq!(found[0], found[1], "{request}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_updated_snapshot_is_the_same_as_a_new_one(changes in prop::collection::vec(change(), 1..12)) {
        let config = configured("x", "[policies.careful]\nrisk = 'medium'\npolicy = 'approve'");
        let mut sources: BTreeMap<&str, CatalogSource> = BTreeMap::new();
        let mut snapshot = Snapshot::empty(&config);
        for (generation, Change { server, listed }) in (1..).zip(changes) {
            match listed {
                Some(ServerLists { tools, about, settings }) => {
                    let mut new = source(server, &tools, about, settings);
                    if let Some(old) = sources.get(server) {
                        new.listing = Arc::new(Listing::clone(&new.listing).sharing(&old.listing));
                    }
                    sources.insert(server, new);
                }
                None => drop(sources.remove(server)),
            }
            let updated = snapshot.updated(sources.values().cloned(), &config, generation);
            let copied = sources.values().map(|source| {
                let tools = source.listing.tools.iter().map(|tool| Arc::new((**tool).clone())).collect();
                CatalogSource { listing: Arc::new(Listing { tools, ..(*source.listing).clone() }), ..source.clone() }
            });
            let new = Snapshot::empty(&config).updated(copied, &config, generation);
            prop_assert_eq!(updated.catalog.picture(), new.catalog.picture());
            assert_same_answers(&updated.index, &new.index);
            for old in snapshot.catalog.tools().filter(|tool| &*tool.server != server) {
                let now = updated.catalog.get(&old.full).filter(|now| now.server == old.server && now.wire == old.wire);
                prop_assert!(now.is_none_or(|now| Arc::ptr_eq(old, now)), "{} was made again", old.full);
            }
            snapshot = updated;
        }
    }
}
