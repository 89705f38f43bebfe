//! The search's quality on recorded lists of real servers, and the built-in engine beside ONNX Runtime.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

/// Returns the figures of `nonet-lab eval` on the recorded lists, and its stderr output. `queries`: the file
/// of requests. `model`: the folder of a model to use, and the ONNX Runtime for it.
fn evaluated(queries: &str, model: Option<(&Path, &Path)>) -> (Value, String) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nonet-lab"));
    command.args(["eval", "--confidence", "--replay", "--cache"]).arg(cache.path());
    if let Some((model, library)) = model {
        command.arg("--model").arg(model).arg("--onnxruntime").arg(library);
    }
    command.args([data.join("tools.jsonl"), data.join(queries)]);
    command.env("NONET_LOG", "info").env_remove("ORT_DYLIB_PATH");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

/// The floor is a few points below the value measured when it was set, so that noise passes and a broken
/// signal does not. The labels were assigned before any ranking was seen.
#[test]
fn search_quality_on_recorded_lists_keeps_its_floor() {
    let (report, _) = evaluated("queries.jsonl", None);
    assert_eq!((report["tools"].as_u64(), report["queries"].as_u64()), (Some(165), Some(300)));
    let figure = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap();
    for (metric, floor) in [
        ("/recall@5", 0.82),
        ("/mrr@10", 0.76),
        ("/ndcg@10", 0.77),
        ("/hit@1", 0.67),
        ("/hit@5", 0.87),
        ("/kinds/agent/hit@5", 0.94),
        ("/kinds/user/hit@5", 0.88),
        ("/kinds/task/hit@5", 0.9),
        ("/confidence/high/hit@1", 0.93),
        ("/confidence/high/hit@5", 0.98),
        ("/confidence/high/share", 0.27),
        ("/confidence/medium/hit@5", 0.87),
        ("/confidence/removed/2", 0.17),
    ] {
        let measured = figure(metric);
        assert!(measured >= floor, "{metric} is {measured}, its floor is {floor}: {report}");
    }
    assert!(figure("/confidence/none/share") <= 0.14, "all of these requests have a tool: {report}");
    // Ten requests are few, so the eight languages count together.
    let languages = ["de", "fr", "es", "pt", "it", "ru", "zh", "ja"];
    let hits: f64 = languages.iter().map(|language| figure(&format!("/kinds/{language}/hit@5"))).sum();
    assert!(hits / 8.0 >= 0.87, "{report}");
    // Fourteen languages without a dictionary.
    let (others, _) = evaluated("languages.jsonl", None);
    for (metric, floor) in [("hit@1", 0.45), ("hit@5", 0.75), ("ndcg@10", 0.6)] {
        assert!(others[metric].as_f64().unwrap() >= floor, "{metric} has the floor {floor}: {others}");
    }
    // Learned outcomes help repeated requests, and do not harm others.
    let plain = figure("/mrr@10");
    assert!(figure("/replay/repeated_mrr@10") > plain + 0.05, "{report}");
    assert!(figure("/replay/others_mrr@10") >= plain - 0.01, "{report}");
}

#[test]
fn the_built_in_engine_finds_what_onnx_runtime_finds() {
    let Some(real) = std::env::var_os("NONET_REAL") else {
        return eprintln!("skipped: NONET_REAL is not set; `.ci/run` installs ONNX Runtime and sets it");
    };
    let library = fs::read_dir(Path::new(&real).join("venv/lib"))
        .unwrap()
        .flatten()
        .map(|python| python.path().join("site-packages/onnxruntime/capi"))
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .find(|file| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so"))
        })
        .expect("`.ci/run` has installed it");
    // The same model, as a user would bring it.
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let folder = tempfile::tempdir().unwrap();
    fs::copy(models.join("minilm-tools.int8w.onnx"), folder.path().join("model.onnx")).unwrap();
    fs::copy(models.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let (built_in, _) = evaluated("queries.jsonl", None);
    let (native, said) = evaluated("queries.jsonl", Some((folder.path(), &library)));
    assert!(said.contains("runs on ONNX Runtime"), "{said}");
    // Requests are translated for the built-in model only, which may touch an English one too.
    for kind in ["agent", "user", "task"] {
        for metric in ["hit@1", "hit@5", "ndcg@10"] {
            let figure = |report: &Value| report["kinds"][kind][metric].as_f64().unwrap();
            let (one, other) = (figure(&built_in), figure(&native));
            assert!((one - other).abs() < 0.02, "{kind} {metric}: {one} and {other}");
        }
    }
}

#[test]
fn a_small_set_is_measured_whole_and_in_pools() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let tool = |server: &str, name: &str, description: &str| {
        json!({ "server": server, "name": name, "description": description, "input_schema": { "type": "object" } }).to_string() + "\n"
    };
    let text = tool("Any Name", "read.file", "Reads a file") + &tool("mail", "send", "Sends an e-mail");
    fs::write(path("tools"), text).unwrap();
    let requests = [("send an e-mail", "mail.send"), ("read a file", "mail.send")];
    let line = |(query, id): (&str, &str)| json!({ "query": query, "relevant": [id] }).to_string() + "\n";
    fs::write(path("queries"), requests.map(line).concat()).unwrap();
    let measured = |more: &[&str]| -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nonet-lab"));
        command.arg("eval").args([path("tools"), path("queries")]).args(["--cache".as_ref(), folder.path()]);
        let output = command.args(more).arg("--out").arg(path("ranked")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let report = measured(&[]);
    assert_eq!(
        (&report["tools"], &report["queries"], &report["recall@1"]),
        (&json!(2), &json!(2), &json!(0.5))
    );
    for key in [
        "recall@3",
        "recall@5",
        "recall@10",
        "mrr@10",
        "ndcg@10",
        "index_ms",
        "search_p50_ms",
        "search_p95_ms",
    ] {
        assert!(report[key].is_number(), "{key}: {report}");
    }
    let ranked = fs::read_to_string(path("ranked")).unwrap();
    assert!(ranked.starts_with("{\"query\":\"send an e-mail\",\"ranked\":[\"mail.send\""), "{ranked}");
    // The right tool alone.
    assert_eq!(measured(&["--pool", "1"])["recall@1"], json!(1.0));
}
