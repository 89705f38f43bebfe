//! Writes the description of the page's API into `docs/`.

use std::{fs, io};

use nonet_api::reference;

fn main() -> io::Result<()> {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
    fs::write(format!("{docs}api.md"), reference::reference())?;
    fs::write(format!("{docs}api.schema.json"), format!("{:#}\n", reference::schema()))
}
