use serde_json::json;

use super::*;
use crate::catalog::{CatalogSource, Listing};

/// Returns twenty servers, each of which lists a thousand tools.
fn sources() -> Vec<CatalogSource> {
    let tool = |at: usize| Arc::new(json!({ "name": format!("tool_{at}"), "description": "Reads" }));
    let of = |number: usize| {
        let listing = Listing { tools: (0..1_000).map(tool).collect(), ..Listing::default() };
        CatalogSource {
            server: format!("server{number:02}").into(),
            listing: Arc::new(listing),
            settings: None,
        }
    };
    (0..20).map(of).collect()
}

#[test]
fn a_tool_more_copies_a_part_of_a_list_and_no_table() {
    let mut sources = sources();
    let names = Arc::new(Namespaces::new(sources.iter().map(|source| &*source.server)));
    let before = Catalog::new(sources.clone(), &BTreeMap::new());
    let mut listing = Listing::clone(&sources[7].listing);
    listing.tools.push(Arc::new(json!({ "name": "one_more" })));
    sources[7].listing = Arc::new(listing);
    let after = before.updated(sources, &BTreeMap::new(), &names);
    assert!(after.get("server07.one_more").is_some());
    let (copied, all) = after.tools.list.parts_beside(&before.tools.list);
    assert!(copied <= 2 && all > 30, "{copied} of {all} parts");
    assert!(after.by_wire.shares_with(&before.by_wire) && after.uses.shares_with(&before.uses));
    assert!(after.by_fold.shares_with(&before.by_fold) && after.by_bare.shares_with(&before.by_bare));
    let others = before.parts.iter().filter(|(server, part)| Arc::ptr_eq(part, &after.parts[*server]));
    assert_eq!(others.count(), 19);
}
