//! Tiny models in folders, in the layout that tools export: a few words, a table of their vectors, a graph of
//! one or two nodes. All tests go through [`Embedder`]. They need ONNX Runtime: that of `.ci/run`, or an
//! installed one.

use std::{fs, path::PathBuf, sync::Arc};

use prost::Message;
use serde_json::{Value, json};

use super::{
    super::{
        Boosts, Document, EmbedError, Embedder, Index, Passage, RankingWeights, Settings, onnxruntime,
        prepare,
    },
    onnx::{Attribute, FLOAT, INT, OnnxGraph, OnnxModel, OnnxNode, Opset, Tensor, ValueInfo},
};

/// `TensorProto.DataType`.
const INT32: i32 = 6;
const INT64: i32 = 7;
const FLOAT16: i32 = 10;
/// `AttributeProto.AttributeType`.
const INTS: i32 = 7;

/// The words of the tiny models; a word's index is its id.
const WORDS: [&str; 10] =
    ["[UNK]", "[CLS]", "[SEP]", "query", "passage", "le", "chat", "noir", "кот", "Chat"];
const WIDTH: usize = 8;

/// The vector of a token: different at each index, with both signs.
fn token(id: usize) -> [f32; WIDTH] {
    std::array::from_fn(|at| ((id * 7 + at * 5) % 11) as f32 - 4.0)
}

/// The contribution of a token's type.
fn token_type(id: usize) -> [f32; WIDTH] {
    [id as f32 * 3.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]
}

/// The normalised sum of the tokens' vectors: the result of mean pooling.
fn mean(ids: &[usize]) -> Vec<f32> {
    let mut sum = vec![0.0; WIDTH];
    for &id in ids {
        sum.iter_mut().zip(token(id)).for_each(|(sum, value)| *sum += value);
    }
    unit(sum)
}

fn unit(vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.into_iter().map(|value| value / length).collect()
}

fn assert_near(vector: &[f32], expected: &[f32]) {
    let near =
        vector.len() == expected.len() && vector.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(near, "{vector:?} is not {expected:?}");
}

/// The library that `.ci/run` installs.
fn library() -> Option<PathBuf> {
    let real = PathBuf::from(std::env::var_os("NONET_REAL")?);
    let pythons = fs::read_dir(real.join("venv/lib")).expect("`.ci/run` has installed it");
    let folders = pythons.flatten().map(|python| python.path().join("site-packages/onnxruntime/capi"));
    let files = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let mut names = files.map(|file| file.path());
    let is_library = |file: &PathBuf| file.to_string_lossy().contains("/libonnxruntime.so");
    Some(names.find(is_library).expect("`.ci/run` has installed it"))
}

/// Whether this test can run; says so if not.
fn has_library() -> bool {
    let library = onnxruntime::engine(library().as_deref());
    if let Err(reason) = library {
        assert!(std::env::var_os("NONET_REAL").is_none(), "{reason}");
        eprintln!("skipped: {reason}");
    }
    library.is_ok()
}

/// A folder with a model, and a cache for its vectors.
struct Folder(tempfile::TempDir);

impl Folder {
    fn empty() -> Folder {
        let folder = Folder(tempfile::tempdir().expect("temporary folder"));
        fs::create_dir(folder.path("model")).expect("a new folder");
        folder
    }

    /// `input_ids` and `attention_mask` to `last_hidden_state`.
    fn of_words() -> Folder {
        Folder::empty().graph(&graph()).json("tokenizer.json", &words("[SEP]:0"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(self, name: &str, bytes: &[u8]) -> Folder {
        let file = self.path("model").join(name);
        fs::create_dir_all(file.parent().expect("it has a folder")).expect("a new folder");
        fs::write(file, bytes).expect("a new file");
        self
    }

    fn without(self, name: &str) -> Folder {
        fs::remove_file(self.path("model").join(name)).expect("it was there");
        self
    }

    fn json(self, name: &str, value: &Value) -> Folder {
        self.file(name, value.to_string().as_bytes())
    }

    fn graph(self, graph: &OnnxGraph) -> Folder {
        self.file("model.onnx", &onnx(graph))
    }

    fn embedder(&self) -> Embedder {
        Embedder::start(&Settings {
            model: Some(self.path("model")),
            onnxruntime: library(),
            cache: Some(self.path("cache")),
            ..Settings::default()
        })
    }

    async fn query(&self, text: &str) -> Arc<[f32]> {
        embedded(&self.embedder(), text).await.expect("a model that fits")
    }

    async fn document(&self, text: &str) -> Arc<[f32]> {
        let vectors =
            self.embedder().embed_documents(&[Passage::new(vec![(text.to_owned(), 1.0)])], |_, _| {}).await;
        vectors.expect("a model that fits").remove(0).expect("a vector")
    }
}

async fn embedded(embedder: &Embedder, text: &str) -> Result<Arc<[f32]>, EmbedError> {
    embedder.embed_queries(&[text.to_owned()]).await.map(|mut vectors| vectors.remove(0))
}

fn onnx(graph: &OnnxGraph) -> Vec<u8> {
    let opset = Opset { domain: Some(String::new()), version: Some(13) };
    OnnxModel { ir_version: Some(8), graph: Some(graph.clone()), opset_import: vec![opset] }.encode_to_vec()
}

fn input(name: &str, element: i32) -> Vec<u8> {
    ValueInfo::tensor(name, element, &["batch", "sequence"]).encode_to_vec()
}

fn node(kind: &str, input: &[&str], output: &str, attribute: Vec<Attribute>) -> OnnxNode {
    OnnxNode {
        input: input.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        op_type: Some(kind.to_owned()),
        attribute,
        ..OnnxNode::default()
    }
}

fn number(name: &str, value: i64) -> Attribute {
    Attribute { name: Some(name.to_owned()), i: Some(value), kind: Some(INT), ..Attribute::default() }
}

fn numbers(name: &str, values: &[i64]) -> Attribute {
    Attribute { name: Some(name.to_owned()), ints: values.to_vec(), kind: Some(INTS), ..Attribute::default() }
}

fn table(name: &str, rows: &[impl AsRef<[f32]>]) -> Tensor {
    let width = rows.first().map_or(0, |row| row.as_ref().len());
    Tensor {
        dims: vec![rows.len() as i64, width as i64],
        data_type: Some(FLOAT),
        name: Some(name.to_owned()),
        raw_data: Some(
            rows.iter().flat_map(|row| row.as_ref()).flat_map(|value| value.to_le_bytes()).collect(),
        ),
    }
}

/// Looks up [`token`]: `input_ids` and `attention_mask` to `last_hidden_state`.
fn graph() -> OnnxGraph {
    let rows: Vec<_> = (0..WORDS.len()).map(token).collect();
    OnnxGraph {
        name: Some("tiny".to_owned()),
        node: vec![node("Gather", &["words", "input_ids"], "last_hidden_state", vec![number("axis", 0)])],
        initializer: vec![table("words", &rows)],
        input: vec![input("input_ids", INT64), input("attention_mask", INT64)],
        output: vec![ValueInfo::tensor("last_hidden_state", FLOAT, &["batch", "sequence", "8"])],
    }
}

/// The same with one more node, which has the only output.
fn graph_with(more: OnnxNode, element: i32, dims: &[&str]) -> OnnxGraph {
    let output = ValueInfo::tensor(&more.output[0], element, dims);
    let mut graph = graph();
    graph.node.push(more);
    graph.output = vec![output];
    graph
}

/// In the layout of sentence-transformers' own exports: token vectors, and a pooled vector. Here it holds
/// their minimum, which none of our poolings computes.
fn pooled_graph() -> OnnxGraph {
    let attributes = vec![numbers("axes", &[1]), number("keepdims", 0)];
    let last = node("ReduceMin", &["last_hidden_state"], "sentence_embedding", attributes);
    let mut graph = graph_with(last, FLOAT, &["batch", "8"]);
    graph.output.insert(0, ValueInfo::tensor("last_hidden_state", FLOAT, &["batch", "sequence", "8"]));
    graph
}

fn smallest(ids: &[usize]) -> Vec<f32> {
    unit((0..WIDTH).map(|at| ids.iter().map(|&id| token(id)[at]).fold(f32::INFINITY, f32::min)).collect())
}

/// A tokenizer of whole words, as `[CLS] text [SEP]`; `end` is the last token with its type.
fn words(end: &str) -> Value {
    let (end, end_type) = end.split_once(':').expect("a token and its type");
    let vocabulary: serde_json::Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let special = |token: &str| json!({"id": token, "ids": [vocabulary[token]], "tokens": [token]});
    json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": end, "type_id": end_type.parse::<u32>().expect("a number")}},
            ],
            "pair": [],
            "special_tokens": {"[CLS]": special("[CLS]"), "[SEP]": special("[SEP]")},
        },
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    })
}

#[tokio::test]
async fn the_vectors_of_the_tokens_are_pooled_as_the_folder_says() {
    if !has_library() {
        return;
    }
    let check = async |pooling: Option<Value>, expected: &[f32]| {
        let folder = Folder::of_words();
        let folder = match &pooling {
            Some(config) => folder.json("1_Pooling/config.json", config),
            None => folder,
        };
        assert_near(&folder.query("le chat noir").await, expected);
        assert_near(&folder.document("le chat noir").await, expected);
    };
    let cls = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    check(None, &mean(&[1, 5, 6, 7, 2])).await;
    check(Some(json!({"pooling_mode": "mean"})), &mean(&[1, 5, 6, 7, 2])).await;
    check(Some(cls), &mean(&[1])).await;
    check(Some(json!({"pooling_mode": "lasttoken"})), &mean(&[2])).await;
}

#[tokio::test]
async fn the_pooling_may_have_another_name() {
    if !has_library() {
        return;
    }
    let modules = json!([
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pool", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]);
    let folder = Folder::of_words().json("modules.json", &modules);
    let folder = folder.json("1_Pool/config.json", &json!({"pooling_mode": "cls"}));
    assert_near(&folder.query("chat").await, &mean(&[1]));
}

#[tokio::test]
async fn what_the_graph_has_pooled_is_taken_as_it_is() {
    if !has_library() {
        return;
    }
    // An unsupported layer that is not needed.
    let dense = json!([{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]);
    let folder = Folder::of_words().graph(&pooled_graph()).json("modules.json", &dense);
    assert_near(&folder.query("le chat").await, &smallest(&[1, 5, 6, 2]));
}

#[tokio::test]
async fn an_output_of_any_name_is_told_by_its_rank() {
    if !has_library() {
        return;
    }
    let check = async |graph: OnnxGraph, expected: &[f32]| {
        assert_near(&Folder::of_words().graph(&graph).query("le chat").await, expected);
    };
    let renamed = node("Identity", &["last_hidden_state"], "hidden", vec![]);
    check(graph_with(renamed, FLOAT, &["batch", "sequence", "8"]), &mean(&[1, 5, 6, 2])).await;
    let mut pooled = pooled_graph();
    pooled.output.remove(0);
    pooled.output[0].name = Some("text".to_owned());
    pooled.node[1].output[0] = "text".to_owned();
    check(pooled, &smallest(&[1, 5, 6, 2])).await;
}

#[tokio::test]
async fn a_graph_may_do_without_a_mask_and_lie_in_a_folder_of_its_own() {
    if !has_library() {
        return;
    }
    let mut graph = graph();
    graph.input.pop();
    let folder = Folder::of_words().without("model.onnx").file("onnx/model.onnx", &onnx(&graph));
    assert_near(&folder.query("le chat").await, &mean(&[1, 5, 6, 2]));
}

#[tokio::test]
async fn token_types_are_fed_as_the_tokenizer_gives_them() {
    if !has_library() {
        return;
    }
    let mut typed = graph();
    typed.node = vec![
        node("Gather", &["words", "input_ids"], "word", vec![]),
        node("Gather", &["types", "token_type_ids"], "type", vec![]),
        node("Add", &["word", "type"], "last_hidden_state", vec![]),
    ];
    typed.initializer.push(table("types", &[token_type(0), token_type(1)]));
    typed.input.push(input("token_type_ids", INT64));
    let check = async |end: &str, types: [usize; 3]| {
        let folder = Folder::of_words().graph(&typed).json("tokenizer.json", &words(end));
        let rows = [1, 6, 2].into_iter().zip(types);
        let sum = rows.fold(vec![0.0; WIDTH], |sum, (id, kind)| {
            let row = token(id).into_iter().zip(token_type(kind)).map(|(a, b)| a + b);
            sum.into_iter().zip(row).map(|(a, b)| a + b).collect()
        });
        assert_near(&folder.query("chat").await, &unit(sum));
    };
    check("[SEP]:0", [0, 0, 0]).await;
    check("[SEP]:1", [0, 0, 1]).await;
}

#[tokio::test]
async fn prompts_stand_before_requests_and_documents() {
    if !has_library() {
        return;
    }
    let folder = Folder::of_words();
    assert_near(&folder.query("chat").await, &mean(&[1, 6, 2]));
    assert_near(&folder.document("chat").await, &mean(&[1, 6, 2]));
    // With the same cache, vectors from before the prompts must not be found.
    let prompts = json!({"prompts": {"query": "query ", "passage": "passage "}, "default_prompt_name": null});
    let folder = folder.json("config_sentence_transformers.json", &prompts);
    assert_near(&folder.query("chat").await, &mean(&[1, 3, 6, 2]));
    assert_near(&folder.document("chat").await, &mean(&[1, 4, 6, 2]));
}

#[tokio::test]
async fn letters_are_made_small_where_the_model_wants_it() {
    if !has_library() {
        return;
    }
    let folder = Folder::of_words();
    assert_near(&folder.query("Chat").await, &mean(&[1, 9, 2]));
    let folder = folder.json("sentence_bert_config.json", &json!({"do_lower_case": true}));
    assert_near(&folder.query("Chat").await, &mean(&[1, 6, 2]));
}

#[tokio::test]
async fn no_more_tokens_are_read_than_the_model_takes() {
    if !has_library() {
        return;
    }
    let text = "le chat noir ".repeat(50);
    let check = async |folder: Folder, words: usize| {
        let ids: Vec<usize> =
            [1].into_iter().chain([5, 6, 7].into_iter().cycle().take(words)).chain([2]).collect();
        assert_near(&folder.query(&text).await, &mean(&ids));
        assert_near(&folder.document(&text).await, &mean(&ids));
    };
    let truncation = |length: usize| {
        let mut tokenizer = words("[SEP]:0");
        tokenizer["truncation"] =
            json!({"max_length": length, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
        tokenizer
    };
    let limit = |length: Value| json!({"max_seq_length": length, "do_lower_case": false});
    // 96 is enough where the model takes more.
    check(Folder::of_words(), 94).await;
    check(Folder::of_words().json("sentence_bert_config.json", &limit(json!(512))), 94).await;
    check(Folder::of_words().json("sentence_bert_config.json", &limit(json!(4))), 2).await;
    check(Folder::of_words().json("tokenizer.json", &truncation(7)), 5).await;
    // The authors' limit takes precedence over the tokenizer's; neither exceeds the model's positions.
    let both = Folder::of_words().json("tokenizer.json", &truncation(7));
    check(both.json("sentence_bert_config.json", &limit(json!(9))), 7).await;
    let both = Folder::of_words().json("sentence_bert_config.json", &limit(Value::Null));
    check(both.json("config.json", &json!({"max_position_embeddings": 6})), 4).await;
}

/// In the layout of multilingual models (XLM-R): pieces with `▁` for a space, `<s> text </s>`, padding, and
/// an empty table of character rules.
fn pieces(vocabulary: &[&str]) -> Value {
    let special = |token: &str, id: usize| json!({"id": token, "ids": [id], "tokens": [token]});
    let scored: Vec<Value> = vocabulary.iter().map(|piece| json!([piece, -2.0])).collect();
    json!({
        "version": "1.0",
        "truncation": {"max_length": 128, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>",
        },
        "added_tokens": (0..4).map(|id| json!({
            "id": id, "content": vocabulary[id], "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false,
        })).collect::<Vec<_>>(),
        // The length of a table of 256 numbers, then the numbers, all zero.
        "normalizer": {
            "type": "Precompiled",
            "precompiled_charsmap": format!("AAQA{}AAA=", "A".repeat(4 * 341)),
        },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "add_prefix_space": true},
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {"<s>": special("<s>", 0), "</s>": special("</s>", 2)},
        },
        "decoder": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": true},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": scored},
    })
}

/// A model of 12 numbers, one per meaning, in which words of three languages mean the same.
#[tokio::test]
async fn a_multilingual_model_finds_by_meaning_in_any_language() {
    if !has_library() {
        return;
    }
    let meanings: [(usize, &[&str]); 4] = [
        (0, &["<s>", "<pad>", "</s>", "<unk>"]),
        (1, &["▁weather", "▁météo", "▁погод", "▁forecast"]),
        (2, &["▁mail", "▁courrier", "▁почт", "▁send"]),
        (3, &["у", "а", "е"]),
    ];
    let all = || meanings.iter().flat_map(|(meaning, pieces)| pieces.iter().map(|piece| (*meaning, *piece)));
    let vocabulary: Vec<&str> = all().map(|(_, piece)| piece).collect();
    let row = |(meaning, _)| -> Vec<f32> {
        (0..12).map(|at| if at == meaning { [0.1, 1.0, 1.0, 0.2][meaning] } else { 0.0 }).collect()
    };
    let mut graph = graph();
    graph.initializer = vec![table("words", &all().map(row).collect::<Vec<_>>())];
    graph.output = vec![ValueInfo::tensor("last_hidden_state", FLOAT, &["batch", "sequence", "12"])];
    let folder = Folder::empty().graph(&graph).json("tokenizer.json", &pieces(&vocabulary));

    let documents: Vec<Document> = [("post", "send", "send mail"), ("sky", "tell", "weather forecast")]
        .map(|(server, name, description)| {
            let id = format!("{server}.{name}");
            Document::from_definition(&id, server, name, "", description, &Value::Null, Vec::new(), "")
        })
        .into();
    let embedder = folder.embedder();
    let passages: Vec<Passage> =
        documents.iter().map(|document| document.passage(&RankingWeights::TOOLS)).collect();
    let vectors = embedder.embed_documents(&passages, |_, _| {}).await.expect("a model that fits");
    assert_eq!(vectors.iter().flatten().map(|vector| vector.len()).collect::<Vec<_>>(), [12, 12]);
    // Such a model gets requests untranslated.
    let settings = Settings { model: Some("a folder".into()), ..Settings::default() };
    let index = Index::new(documents, &settings).with_vectors(vectors);
    assert!(index.has_vectors());

    let check = async |text: &str, expected: &str| {
        let query = prepare(&index, Some(&embedder), text).await;
        let found = index.search(&query, 1, &|_| true, &Boosts::new());
        let hit = found.hits.first().expect("something is found");
        assert_eq!(&*index.documents()[hit.document].id, expected, "{text}");
        assert!(hit.dense > 0.9, "{text}: {hit:?}");
    };
    check("погода", "sky.tell").await;
    check("météo", "sky.tell").await;
    check("почту", "post.send").await;
    check("courrier", "post.send").await;
}

#[tokio::test]
async fn a_special_token_in_a_text_that_the_graph_does_not_know_costs_that_text_only() {
    if !has_library() {
        return;
    }
    let mut tokenizer = words("[SEP]:0");
    tokenizer["added_tokens"] = json!([{
        "id": WORDS.len(), "content": "<mask>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false,
    }]);
    let folder = Folder::of_words().json("tokenizer.json", &tokenizer);
    let embedder = folder.embedder();
    let error = embedded(&embedder, "le <mask>").await.expect_err("there is no such row").to_string();
    assert!(error.contains("cannot be run") && error.contains("idx=10"), "{error}");
    assert_near(&embedded(&embedder, "le chat").await.expect("others are"), &mean(&[1, 5, 6, 2]));
    let passage = |texts: [&str; 2]| Passage::new(texts.map(|text| (text.to_owned(), 1.0)).to_vec());
    let passages = [passage(["le <mask>", "le"]), passage(["le chat", "chat"])];
    let vectors = embedder.embed_documents(&passages, |_, _| {}).await.expect("one odd text harms no other");
    assert!(vectors[0].is_none());
    let alone = embedder.embed_passage(&passages[1]).await.expect("a vector");
    assert_near(vectors[1].as_deref().expect("a vector"), &alone);
}

#[tokio::test]
async fn faults_name_the_file_and_the_remedy() {
    if !has_library() {
        return;
    }
    let check = async |folder: Folder, parts: &[&str]| {
        let error = folder.embedder().ready().await.expect_err("a fault").to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    };
    let export = "optimum-cli export onnx";

    let folder = Folder::empty();
    fs::remove_dir(folder.path("model")).expect("it is empty");
    check(folder, &["model: no such folder", "model.onnx and tokenizer.json"]).await;
    check(Folder::empty(), &["no model.onnx or onnx/model.onnx", export]).await;
    check(Folder::of_words().without("tokenizer.json"), &["tokenizer.json: ", "save_pretrained"]).await;
    let check_file = async |name: &str, bytes: &[u8], parts: &[&str]| {
        check(Folder::of_words().file(name, bytes), &[&[name], parts].concat()).await;
    };
    check_file("tokenizer.json", b"[PAD]\n[UNK]\n", &["not a supported tokenizer", export]).await;
    check_file("tokenizer.json", br#"{"model": {"type": "Other"}}"#, &["not a supported tokenizer", export])
        .await;
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 470301610\n";
    check_file("model.onnx", pointer, &["cannot be loaded", "Git LFS pointer", export]).await;
    check_file("model.onnx", &onnx(&graph())[..200], &["cannot be loaded", export]).await;
    for name in ["config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json"] {
        check_file(name, b"{", &["not JSON", "copy it"]).await;
    }
    check_file("sentence_bert_config.json", br#"{"max_seq_length": "long"}"#, &["is \"long\""]).await;
    let none_left = &["accepts 2 tokens", "none for the text", "max_seq_length"];
    let folder = Folder::of_words().json("sentence_bert_config.json", &json!({"max_seq_length": 2}));
    check(folder, none_left).await;

    let check_graph = async |graph: OnnxGraph, parts: &[&str]| {
        check(Folder::of_words().graph(&graph), &[&["model.onnx: "], parts].concat()).await;
    };
    let mut other = graph();
    other.input.push(input("position_ids", INT64));
    check_graph(other, &["needs the input `position_ids`", "input_ids, attention_mask, token_type_ids"])
        .await;
    let mut other = graph();
    other.input = vec![input("attention_mask", INT64)];
    other.node[0].input[1] = "attention_mask".to_owned();
    check_graph(other, &["no input `input_ids`"]).await;
    let mut other = graph();
    other.input[0] = input("input_ids", INT32);
    check_graph(other, &["`input_ids` is i32", export]).await;
    let mut other = graph();
    other.node.push(node("Neg", &["last_hidden_state"], "b", vec![]));
    other.node[0].output[0] = "a".to_owned();
    other.node[1].input[0] = "a".to_owned();
    other.output = ["a", "b"].map(|name| ValueInfo::tensor(name, FLOAT, &["batch", "sequence", "8"])).into();
    check_graph(other, &["outputs (a, b)", "sentence_embedding, last_hidden_state"]).await;
    let cast =
        |element: i32| node("Cast", &["last_hidden_state"], "cast", vec![number("to", element.into())]);
    let dims = ["batch", "sequence", "8"];
    check_graph(graph_with(cast(FLOAT16), FLOAT16, &dims), &["`cast` is f16", "--dtype"]).await;
    check_graph(graph_with(cast(INT32), INT32, &dims), &["`cast` is i32", export]).await;
    let twice = node("Gather", &["words", "input_ids"], "last_hidden_state", vec![number("axis", 1)]);
    let mut other = graph();
    other.node = vec![twice];
    other.output = vec![ValueInfo::tensor("last_hidden_state", FLOAT, &["10", "batch", "sequence"])];
    check_graph(other, &["has the shape", "[1, tokens, width]", export]).await;

    let mut smaller = graph();
    smaller.initializer[0] = table("words", &[token(0), token(1), token(2)]);
    let apart = ["tokenizer.json: has 10 tokens", "do not match", "from the same export"];
    check(Folder::of_words().graph(&smaller), &apart).await;

    let layers = |last: &str| {
        json!([
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Last", "type": format!("sentence_transformers.models.{last}")},
        ])
    };
    let folder = Folder::of_words().json("modules.json", &layers("Dense"));
    check(folder, &["modules.json", "layer `Dense`", "`sentence_embedding`", export]).await;
    let folder = Folder::of_words().json("modules.json", &layers("Normalize"));
    check(folder, &["1_Pooling", "no such file", "modules.json names it"]).await;
    let pooling = br#"{"pooling_mode": "attention"}"#;
    check_file("1_Pooling/config.json", pooling, &["`attention` is unknown", "mean, cls"]).await;
}
