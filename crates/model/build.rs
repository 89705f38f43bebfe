//! Packs the models of `models/` for the encoder.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let out = env::var_os("OUT_DIR").ok_or("cargo names no folder")?;
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["minilm-tools.int8w", "languages"] {
        let model = models.join(format!("{name}.onnx"));
        println!("cargo::rerun-if-changed={}", model.display());
        fs::write(Path::new(&out).join(format!("{name}.packed")), nonet_encoder::pack(&fs::read(model)?)?)?;
    }
    let tokenizer = models.join("languages.tokenizer.json");
    println!("cargo::rerun-if-changed={}", tokenizer.display());
    let (scores, map) = nonet_encoder::pack_pieces(&fs::read(tokenizer)?)?;
    fs::write(Path::new(&out).join("languages.scores"), scores)?;
    fs::write(Path::new(&out).join("languages.pieces"), map)?;
    Ok(())
}
