//! Packs the model of `models/` for the encoder.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/minilm-tools.int8w.onnx");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", model.display());
    let packed = nonet_encoder::pack(&fs::read(model)?)?;
    let folder = env::var_os("OUT_DIR").ok_or("cargo names no folder")?;
    fs::write(Path::new(&folder).join("model.packed"), packed)?;
    Ok(())
}
