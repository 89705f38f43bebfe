//! The JSON files of sentence-transformers beside a model: its prompts, its token limit, and how token
//! vectors are pooled.
//!
//! A missing file means the usual default. Knows files and numbers, not graphs or tokenizers.

use std::{fs, io, path::Path};

use serde_json::Value;

use super::EXPORT;

/// How a text is prepared for the tokenizer, and how much of it may be read.
#[derive(Debug, Default)]
pub(crate) struct Recipe {
    /// The prefix of each request.
    pub(super) query_prompt: String,
    /// The prefix of each document.
    pub(super) document_prompt: String,
    /// Whether to lower-case text. Unset if the tokenizer does so itself.
    pub(super) lower_case: bool,
    /// The token limit set by the model's authors, special tokens included.
    pub(super) max_tokens: Option<usize>,
    /// The most tokens that the model has positions for.
    pub(super) positions: Option<usize>,
}

impl Recipe {
    pub(super) fn read(folder: &Path) -> Result<Recipe, String> {
        let prompts = json(&folder.join("config_sentence_transformers.json"))?.unwrap_or_default();
        let file = folder.join("sentence_bert_config.json");
        let limits = json(&file)?.unwrap_or_default();
        let max_tokens = match &limits["max_seq_length"] {
            Value::Null => None,
            number => {
                let fault =
                    || format!("{}: `max_seq_length` is {number}, not a number of tokens", file.display());
                Some(number.as_u64().and_then(|number| usize::try_from(number).ok()).ok_or_else(fault)?)
            }
        };
        let config = json(&folder.join("config.json"))?.unwrap_or_default();
        let positions = config["max_position_embeddings"].as_u64().filter(|&positions| positions > 0);
        Ok(Recipe {
            query_prompt: prompt(&prompts, &["query"]),
            document_prompt: prompt(&prompts, &["document", "passage", "corpus"]),
            lower_case: limits["do_lower_case"].as_bool() == Some(true),
            max_tokens,
            positions: positions.and_then(|positions| usize::try_from(positions).ok()),
        })
    }
}

/// Returns the first of these prompts that exists, or else the default, as `encode_query` and
/// `encode_document` do.
fn prompt(config: &Value, names: &[&str]) -> String {
    let prompts = &config["prompts"];
    let default = config["default_prompt_name"].as_str();
    let mut names = names.iter().copied().chain(default);
    names.find_map(|name| prompts[name].as_str()).unwrap_or_default().to_owned()
}

/// How token vectors become one vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pooling {
    Mean,
    /// The nth token has weight n.
    WeightedMean,
    Max,
    First,
    Last,
}

impl Pooling {
    /// Reads `modules.json` and the pooling's own file; mean without either, as in sentence-transformers.
    pub(super) fn read(folder: &Path) -> Result<Pooling, String> {
        let file = folder.join("modules.json");
        let modules = json(&file)?.unwrap_or_default();
        let mut listed = None;
        for module in modules.as_array().into_iter().flatten() {
            let class = module["type"].as_str().unwrap_or_default();
            match class.rsplit('.').next().unwrap_or_default() {
                // Length does not matter: all vectors are normalised.
                "Transformer" | "Normalize" | "Dropout" => {}
                "Pooling" => listed = module["path"].as_str(),
                other => {
                    return Err(format!(
                        "{}: after the token vectors comes the layer `{other}`, which the graph does not have, so its \
                         vectors would be wrong; export the whole model, so that the graph gives \
                         `sentence_embedding`: {EXPORT}",
                        file.display()
                    ));
                }
            }
        }
        let pooling = folder.join(listed.unwrap_or("1_Pooling")).join("config.json");
        match json(&pooling)? {
            Some(config) => {
                Pooling::parse(&config).map_err(|reason| format!("{}: {reason}", pooling.display()))
            }
            None if listed.is_some() => Err(format!(
                "{}: no such file, but modules.json names it; copy it from the model's repository",
                pooling.display()
            )),
            None => Ok(Pooling::Mean),
        }
    }

    /// Reads a name (`pooling_mode`), or the flags of older versions (`pooling_mode_mean_tokens`).
    fn parse(config: &Value) -> Result<Pooling, String> {
        let modes: Vec<&str> = match &config["pooling_mode"] {
            Value::String(mode) => vec![mode],
            Value::Array(modes) => modes.iter().filter_map(Value::as_str).collect(),
            _ => {
                let switches = config.as_object().into_iter().flatten();
                let on = switches.filter(|(_, on)| on.as_bool() == Some(true));
                on.filter_map(|(key, _)| key.strip_prefix("pooling_mode_")).collect()
            }
        };
        match modes[..] {
            // The two differ by a factor, which normalising removes.
            ["mean" | "mean_tokens" | "mean_sqrt_len_tokens"] => Ok(Pooling::Mean),
            ["weightedmean" | "weightedmean_tokens"] => Ok(Pooling::WeightedMean),
            ["max" | "max_tokens"] => Ok(Pooling::Max),
            ["cls" | "cls_token"] => Ok(Pooling::First),
            ["lasttoken"] => Ok(Pooling::Last),
            [] => Err("it names no pooling mode".to_owned()),
            _ => Err(format!(
                "the pooling mode `{}` is unknown; it must be one of mean, cls, max, weightedmean, lasttoken",
                modes.join("` with `")
            )),
        }
    }

    /// Pools `[sequence, width]` token vectors into one.
    pub(super) fn pool(self, tokens: &[f32], width: usize) -> Vec<f32> {
        let mut tokens = tokens.chunks_exact(width);
        let weighted = |tokens: std::slice::ChunksExact<f32>, weight: fn(usize) -> f32| {
            let mut sum = vec![0.0; width];
            for (at, token) in tokens.enumerate() {
                sum.iter_mut().zip(token).for_each(|(sum, value)| *sum += weight(at) * value);
            }
            sum
        };
        match self {
            Pooling::Mean => weighted(tokens, |_| 1.0),
            Pooling::WeightedMean => weighted(tokens, |at| (at + 1) as f32),
            Pooling::Max => {
                let mut most = vec![f32::NEG_INFINITY; width];
                for token in tokens {
                    most.iter_mut().zip(token).for_each(|(most, value)| *most = most.max(*value));
                }
                most
            }
            Pooling::First => tokens.next().unwrap_or_default().to_vec(),
            Pooling::Last => tokens.last().unwrap_or_default().to_vec(),
        }
    }
}

/// Reads a file; `None` if it does not exist.
fn json(file: &Path) -> Result<Option<Value>, String> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| format!("{}: {error}", file.display()))?,
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        format!("{}: not JSON: {error}; copy it from the model's repository again", file.display())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pooling_is_read_from_old_and_new_configs() {
        let check = |config: Value, expected: Result<Pooling, &str>| match (Pooling::parse(&config), expected)
        {
            (Err(reason), Err(part)) => assert!(reason.contains(part), "{config}: {reason}"),
            (pooling, expected) => assert_eq!(pooling, expected.map_err(str::to_owned), "{config}"),
        };
        let old = |on: &[&str]| {
            let modes = [
                "cls_token",
                "mean_tokens",
                "max_tokens",
                "mean_sqrt_len_tokens",
                "weightedmean_tokens",
                "lasttoken",
            ];
            let switches =
                modes.iter().map(|mode| (format!("pooling_mode_{mode}"), on.contains(mode).into()));
            let others = [
                ("word_embedding_dimension".to_owned(), json!(384)),
                ("include_prompt".to_owned(), json!(true)),
            ];
            Value::Object(switches.chain(others).collect())
        };
        check(old(&["mean_tokens"]), Ok(Pooling::Mean));
        check(old(&["mean_sqrt_len_tokens"]), Ok(Pooling::Mean));
        check(old(&["weightedmean_tokens"]), Ok(Pooling::WeightedMean));
        check(old(&["max_tokens"]), Ok(Pooling::Max));
        check(old(&["cls_token"]), Ok(Pooling::First));
        check(old(&["lasttoken"]), Ok(Pooling::Last));
        check(old(&["cls_token", "mean_tokens"]), Err("`cls_token` with `mean_tokens`"));
        check(old(&[]), Err("no pooling mode"));
        check(json!({"pooling_mode": "mean", "embedding_dimension": 384}), Ok(Pooling::Mean));
        check(json!({"pooling_mode": ["cls"]}), Ok(Pooling::First));
        check(
            json!({"pooling_mode": "attention"}),
            Err("`attention` is unknown; it must be one of mean, cls"),
        );
        check(json!([]), Err("no pooling mode"));
    }

    #[test]
    fn token_vectors_become_one() {
        let check = |pooling: Pooling, expected: [f32; 2]| {
            assert_eq!(pooling.pool(&[1.0, -4.0, 3.0, -6.0, 2.0, -1.0], 2), expected, "{pooling:?}");
        };
        check(Pooling::Mean, [6.0, -11.0]);
        check(Pooling::WeightedMean, [13.0, -19.0]);
        check(Pooling::Max, [3.0, -1.0]);
        check(Pooling::First, [1.0, -4.0]);
        check(Pooling::Last, [2.0, -1.0]);
    }

    #[test]
    fn prompts_are_chosen_as_sentence_transformers_does() {
        let check = |config: Value, query: &str, document: &str| {
            assert_eq!(prompt(&config, &["query"]), query, "{config}");
            assert_eq!(prompt(&config, &["document", "passage", "corpus"]), document, "{config}");
        };
        check(json!({"prompts": {"query": "q: ", "document": "d: ", "passage": "p: "}}), "q: ", "d: ");
        check(json!({"prompts": {"query": "q: ", "passage": "p: "}}), "q: ", "p: ");
        check(
            json!({"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}),
            "q: ",
            "",
        );
        check(json!({"prompts": {"query": "q: "}, "default_prompt_name": "query"}), "q: ", "q: ");
        check(json!({"prompts": {"query": "q: "}, "default_prompt_name": null}), "q: ", "");
        check(json!({"prompts": {}}), "", "");
        check(Value::Null, "", "");
    }
}
