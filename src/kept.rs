//! Results that outlive their calls: kept when they are too large to show, read piece by piece, and used in params.
//!
//! The store holds the results; this room adds references, previews and pages. Processing a large result blocks, so
//! that work runs away from the threads that answer. This room knows owners and budgets, but no sessions.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use rmcp::model::ErrorData;
use serde_json::{Map, Value, json};

use crate::{
    allocator,
    fault::{Code, Fault},
    jobs::{self, JobEnd, JobOwner, Jobs},
    results::{self, Body, CallResult, Whole, json_len},
    select::{self, SelectError, Selector},
    store::{KeptCounts, Lasts, Store, StoreError},
    template::{self, Filled, Named, Source},
};

/// From this size on, in bytes, memory is given back to the system after a result was handled.
const LARGE: usize = 4 << 20;
/// How long writing a large result to its client may take.
const WRITE_TIME: Duration = Duration::from_secs(1);

/// When to retry a filter that did not get its turn.
const BUSY_RETRY: Duration = Duration::from_secs(5);

/// Shortens a result of a size to a budget; the whole has this reference.
type Shorten = fn(Value, usize, usize, Result<&str, &str>) -> Value;

/// The kept results, including those of jobs.
#[derive(Debug)]
pub struct KeptResults {
    store: Arc<dyn Store>,
    jobs: Arc<Jobs>,
    selector: Selector,
}

/// Where a result is kept. Displays as text for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAs {
    pub reference: String,
    pub lasts: Lasts,
}

impl KeptAs {
    /// Returns how long the result is kept, if that differs from the configuration.
    pub fn passing(&self) -> Option<&'static str> {
        (self.lasts == Lasts::UntilEnd).then_some(results::PASSING)
    }
}

impl fmt::Display for KeptAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.reference)?;
        match self.passing() {
            Some(passing) => write!(f, " ({passing})"),
            None => Ok(()),
        }
    }
}

impl KeptResults {
    /// Creates the kept results of a store, with a selector for jq filters.
    pub fn new(store: Arc<dyn Store>, jobs: Arc<Jobs>, selector: Selector) -> Self {
        Self { store, jobs, selector }
    }

    /// Answers `gateway.fetch_result`, with at most `budget` bytes.
    pub async fn fetch(
        &self,
        owner: &JobOwner,
        query: Map<String, Value>,
        budget: usize,
    ) -> Result<Value, Fault> {
        let reference = query.get("ref").and_then(Value::as_str).unwrap_or_default();
        let whole = self.whole(owner, reference).await?;
        let body = match query.get("select").and_then(Value::as_str) {
            None => whole.body,
            Some(filter) => {
                let selected = self.select(owner, filter, whole).await;
                let fault = |error: SelectError| match error {
                    SelectError::Busy(_) => busy(&error),
                    error => results::bad_query(&query, error.to_string()),
                };
                match selected.map_err(fault)? {
                    Value::String(text) => Body::Text(text),
                    value => Body::Json(value.to_string()),
                }
            }
        };
        blocking(move || results::read(body, &query, budget)).await?
    }

    /// Applies a jq filter to the value of a result when it is the owner's turn.
    pub async fn select(&self, owner: &JobOwner, filter: &str, whole: Whole) -> Result<Value, SelectError> {
        let mut failed = None;
        for reading in whole.readings(filter) {
            match self.selector.select(owner.account.id, filter, reading).await {
                Ok(value) => return Ok(value),
                // The first reading's error refers to the value that was shown.
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        Err(failed.unwrap_or_else(|| SelectError::Failed(filter.into(), "there is no value".into())))
    }

    /// Whether a jq filter holds for JSON text.
    pub async fn holds(&self, owner: &JobOwner, filter: &str, json: String) -> Result<bool, SelectError> {
        Ok(select::holds(&self.selector.outputs(owner.account.id, filter, json).await?))
    }

    /// Returns why a text is not a jq filter; `None` if it is one.
    pub async fn syntax_error(&self, owner: &JobOwner, filter: &str) -> Option<SelectError> {
        let outputs = self.selector.outputs(owner.account.id, filter, "null".into()).await;
        outputs.err().filter(|error| matches!(error, SelectError::Syntax(..)))
    }

    /// Returns a result of `size` bytes unchanged if it fits into `budget` bytes; otherwise keeps the result and
    /// returns a preview with its reference.
    pub async fn fit(&self, owner: &JobOwner, result: CallResult, size: usize, budget: usize) -> CallResult {
        self.fit_by(owner, result, size, budget, results::shorten).await
    }

    /// Does the same for an answer of Nonet's own, which stays a JSON object. A result to which a budget has been applied stays
    /// as it is.
    pub async fn fit_own(&self, owner: &JobOwner, mut answer: CallResult, budget: usize) -> CallResult {
        if answer.is_fitted() {
            return answer;
        }
        let size = answer.size().await;
        if size > budget && size - results::media_len(answer.tree().await) <= budget {
            return answer.fitted();
        }
        self.fit_by(owner, answer, size, budget, results::shorten_own).await
    }

    async fn fit_by(
        &self,
        owner: &JobOwner,
        mut result: CallResult,
        size: usize,
        budget: usize,
        shorten: Shorten,
    ) -> CallResult {
        if size <= budget
            || result.fits(budget)
            || !results::must_be_shortened(result.tree().await, size, budget)
        {
            return result.fitted();
        }
        let result = Arc::new(result.into_tree().await);
        let kept = self.kept_of(owner, result.clone()).await;
        let shortened = blocking(move || {
            let reference = reference_of(&kept);
            let mut shown = shorten(Arc::unwrap_or_clone(result), size, budget, reference);
            if kept.is_ok_and(|kept| kept.passing().is_some()) {
                results::note_passing(&mut shown);
            }
            shown
        });
        CallResult::from(shortened.await.unwrap_or_else(|_| jobs::panicked())).fitted()
    }

    /// Shortens a server's prompt, in the form of `prompts/get`, to `budget` bytes.
    pub async fn fit_prompt(&self, owner: &JobOwner, prompt: Value, budget: usize) -> Value {
        let size = json_len(&prompt);
        if size <= budget {
            return prompt;
        }
        let kept = self.kept_of(owner, Arc::new(text_result(&prompt))).await;
        let shortened =
            blocking(move || results::shorten_prompt(&prompt, size, budget, reference_of(&kept))).await;
        shortened.unwrap_or_else(|_| json!({ "messages": [] }))
    }

    /// Shortens a server's JSON-RPC error to `budget` bytes.
    pub async fn fit_error(&self, owner: &JobOwner, error: ErrorData, budget: usize) -> ErrorData {
        let size = json_len(&json!(error));
        if size <= budget {
            return error;
        }
        let kept = self.kept_of(owner, Arc::new(text_result(&json!(error)))).await;
        let (message, data) = results::shorten_error(&error.message, size, budget, reference_of(&kept));
        ErrorData::new(error.code, message, Some(data))
    }

    /// Keeps a large result. The log says if that failed.
    async fn kept_of(&self, owner: &JobOwner, result: Arc<Value>) -> Result<KeptAs, String> {
        self.keep(owner, result).await.map_err(|error| {
            tracing::error!(%error, "a large result was not kept");
            error.to_string()
        })
    }

    /// Keeps a result for later calls.
    pub async fn keep(&self, owner: &JobOwner, result: Arc<Value>) -> Result<KeptAs, StoreError> {
        let reference = results::new_reference();
        let lasts = self.store.put_result(&reference, owner.key(), owner.share(), result).await?;
        Ok(KeptAs { reference, lasts })
    }

    /// Removes expired results.
    pub async fn sweep(&self) {
        if let Err(error) = self.store.sweep().await {
            tracing::debug!(%error, "expired entries were not removed");
        }
    }

    /// Returns the result of a finished task, just as the call itself would have. A result that does not fit into
    /// `budget` bytes becomes a preview, with the task's handle as its reference.
    pub async fn of_task(&self, owner: &JobOwner, id: &str, budget: usize) -> Result<Value, Fault> {
        let text = self.text(owner, id).await?;
        let id = id.to_string();
        blocking(move || {
            let size = text.len();
            let result = serde_json::from_str(&text).map_err(|error| unreadable(&id, &error))?;
            Ok(match results::must_be_shortened(&result, size, budget) {
                true => results::shorten(result, size, budget, Ok(&id)),
                false => result,
            })
        })
        .await?
    }

    /// Replaces the `{{ref:ID.path}}` templates in `params` with kept results; `None` if there are no such templates.
    /// Other templates stay unchanged.
    pub async fn fill(&self, owner: &JobOwner, params: &Value) -> Result<Option<Filled>, Fault> {
        let references = self.references(owner, params).await?;
        if references.0.is_empty() {
            return Ok(None);
        }
        let filled = template::fill(params, &|name| references.named(name));
        filled.map(Some).map_err(|error| Fault::new(Code::NotFound, error.to_string()))
    }

    /// Returns the kept results that templates in `params` name. Text in braces that does not look like one of our
    /// references is not a template of ours.
    pub async fn references(&self, owner: &JobOwner, params: &Value) -> Result<References, Fault> {
        let mut found = BTreeMap::new();
        for id in template::references(params).into_iter().filter(|id| results::is_reference(id)) {
            let whole = self.whole(owner, &id).await?;
            let source =
                blocking(move || whole.into_source()).await?.map_err(|error| unreadable(&id, &error))?;
            found.insert(id, Arc::new(source));
        }
        Ok(References(found))
    }

    /// Returns how much is kept; `None` if nothing was kept or read in this run.
    pub async fn counts(&self) -> Option<KeptCounts> {
        self.store.counts().await.ok()?
    }

    /// Returns the value of a kept result.
    async fn whole(&self, owner: &JobOwner, reference: &str) -> Result<Whole, Fault> {
        let text = self.text(owner, reference).await?;
        blocking(move || Whole::read(&text)).await
    }

    /// Returns a kept result, or the result of a job, as JSON text.
    async fn text(&self, owner: &JobOwner, id: &str) -> Result<String, Fault> {
        match self.jobs.get(id, owner).map(|job| job.end()) {
            Some(Some(JobEnd { value: Some(value), .. })) => {
                return blocking(move || value.to_string()).await;
            }
            Some(Some(_)) => {}
            Some(None) => {
                let message = format!("The task `{id}` is still running; it has no result yet.");
                return Err(Fault::new(Code::NotFound, message).then(jobs::wait_call(id)));
            }
            None if self.jobs.knows(id) => return Err(gone(id)),
            None => {}
        }
        let text = self.store.text(id, owner.key()).await.map_err(|error| unreadable(id, &error))?;
        settle_memory(text.as_ref().map_or(0, String::len));
        text.ok_or_else(|| gone(id))
    }
}

/// The kept results that templates name.
#[derive(Debug, Default)]
pub struct References(BTreeMap<String, Arc<Source>>);

impl References {
    /// Returns the value behind a name in a template.
    pub fn named(&self, name: &str) -> Named {
        match name.strip_prefix("ref:").and_then(|id| self.0.get(id)) {
            Some(value) => Named::Value(value.clone()),
            None => Named::Foreign,
        }
    }
}

/// Gives memory back to the system after a large result was sent or read.
pub fn settle_memory(bytes: usize) {
    if bytes >= LARGE {
        tokio::spawn(async {
            tokio::time::sleep(WRITE_TIME).await;
            let _ = tokio::task::spawn_blocking(allocator::give_back).await;
        });
    }
}

/// Runs blocking work away from the threads that answer.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let failed =
        |_| Fault::new(Code::Internal, "Nonet failed while it read a kept result; the log has the reason.");
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

fn reference_of(kept: &Result<KeptAs, String>) -> Result<&str, &str> {
    kept.as_ref().map(|kept| kept.reference.as_str()).map_err(String::as_str)
}

/// Returns JSON as the text of a result.
fn text_result(json: &Value) -> Value {
    json!({ "content": [{ "type": "text", "text": json.to_string() }] })
}

/// Builds the fault for a filter that did not get its turn.
fn busy(error: &SelectError) -> Fault {
    Fault::new(Code::RateLimited, format!("{error}.")).retry_after(BUSY_RETRY)
}

fn gone(id: &str) -> Fault {
    let message =
        format!("No result is kept as `{id}`: the reference is wrong or has expired. Make the call again.");
    Fault::new(Code::NotFound, message)
}

fn unreadable(id: &str, error: &dyn std::error::Error) -> Fault {
    Fault::new(Code::Internal, format!("The result `{id}` cannot be read: {error}"))
}
