//! Results that outlive their calls: kept when they are too large to show, read piece by piece, and used in
//! params.
//!
//! The store holds the results; this room adds references, previews and pages. Processing a large result
//! blocks, so that work runs away from the threads that answer. This room knows owners and budgets, but no
//! sessions.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use nonet_api::work::{KeptCounts, wait_call};
use nonet_base::{allocator, json::set_member};
use nonet_config::select::{self, SelectError, Selector};
use nonet_store::{Lifespan, Store, StoreError};
use nonet_text::{
    fault::{Fault, FaultCode},
    results::{self, CallResult, ResultBody, ResultValue, json_len},
    template::{self, FilledTemplate, NameLookup, TemplateError, TemplateSource},
};
use rmcp::model::ErrorData;
use serde_json::{Map, Value, json};

use crate::jobs::{self, JobEnd, JobOwner, Jobs};

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
pub struct KeptReference {
    /// The name for later calls: `r-` and 10 hex digits.
    pub reference: String,
    /// Whether the result is on disk, or kept only until this gateway ends.
    pub lasts: Lifespan,
}

impl KeptReference {
    /// Returns how long the result is kept, if that differs from the configuration.
    pub fn passing(&self) -> Option<&'static str> {
        (self.lasts == Lifespan::UntilEnd).then_some(results::PASSING)
    }
}

impl fmt::Display for KeptReference {
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
        let filter = select::given(query.get("select").and_then(Value::as_str).map(String::from));
        if let Some(filter) = &filter {
            let fault = |(_, error): (usize, SelectError)| wrong_filter(&query, &error);
            select::check_all(vec![filter.clone()]).await.map_err(fault)?;
        }
        let whole = self.value(owner, reference).await?;
        let (body, note) = match &filter {
            None => (whole.body, None),
            Some(filter) => {
                let selected = self.select(owner, filter, whole).await;
                let FilterOutput { value, note } = selected.map_err(|error| wrong_filter(&query, &error))?;
                match value {
                    Value::String(text) => (ResultBody::Text(text), note),
                    value => (ResultBody::Json(value.to_string()), note),
                }
            }
        };
        let mut answer = blocking(move || results::read(body, &query, budget)).await??;
        if let Some(note) = note {
            set_member(&mut answer, "note", note);
        }
        Ok(answer)
    }

    /// Applies a jq filter to the value of a result when it is the owner's turn.
    pub async fn select(
        &self,
        owner: &JobOwner,
        filter: &str,
        whole: ResultValue,
    ) -> Result<FilterOutput, SelectError> {
        let mut failed = None;
        for reading in whole.readings(filter) {
            match self.selector.select(owner.account.id, filter, reading).await {
                Ok(value) => {
                    let is_first = failed.is_none();
                    let note = is_first.then(|| whole.lacks(filter, !is_blank(&value))).flatten();
                    return Ok(FilterOutput { value, note });
                }
                // The first reading's error refers to the value that was shown.
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        Err(match failed {
            Some(SelectError::Failed(filter, why)) => {
                let why = match whole.lacks(&filter, false) {
                    Some(lacks) => format!("{lacks} ({why})"),
                    None => why,
                };
                SelectError::Failed(filter, why)
            }
            failed => {
                failed.unwrap_or_else(|| SelectError::Failed(filter.into(), "there is no value".into()))
            }
        })
    }

    /// Whether a jq filter holds for JSON text.
    pub async fn holds(&self, owner: &JobOwner, filter: &str, json: String) -> Result<bool, SelectError> {
        Ok(select::holds(&self.selector.outputs(owner.account.id, filter, json.into()).await?))
    }

    /// Runs a jq filter on JSON text when it is the owner's turn. Several outputs are an array.
    pub async fn compute(&self, owner: &JobOwner, filter: &str, json: String) -> Result<Value, SelectError> {
        self.selector.select(owner.account.id, filter, json.into()).await
    }

    /// Returns a result of `size` bytes unchanged if it fits into `budget` bytes; otherwise keeps the result
    /// and returns a preview with its reference.
    pub async fn fit(&self, owner: &JobOwner, result: CallResult, size: usize, budget: usize) -> CallResult {
        self.fit_by(owner, result, size, budget, results::shorten).await
    }

    /// Does the same for an answer of Nonet's own, which stays a JSON object. A result to which a budget has
    /// been applied stays as it is.
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
    async fn kept_of(&self, owner: &JobOwner, result: Arc<Value>) -> Result<KeptReference, String> {
        self.keep(owner, result).await.map_err(|error| {
            tracing::error!(%error, "a large result was not kept");
            error.to_string()
        })
    }

    /// Keeps a result for later calls.
    pub async fn keep(&self, owner: &JobOwner, result: Arc<Value>) -> Result<KeptReference, StoreError> {
        let reference = results::new_reference();
        let lasts = self.store.put_result(&reference, owner.key(), owner.share(), result).await?;
        Ok(KeptReference { reference, lasts })
    }

    /// Removes expired results.
    pub async fn sweep(&self) {
        if let Err(error) = self.store.sweep().await {
            tracing::debug!(%error, "expired entries were not removed");
        }
    }

    /// Returns the result of a finished task, just as the call itself would have. A result that does not fit
    /// into `budget` bytes becomes a preview, with the task's handle as its reference.
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

    /// Replaces the `{{ref:ID.path}}` templates in `params` with kept results; `None` if there are no such
    /// templates. Other templates stay unchanged.
    pub async fn fill(&self, owner: &JobOwner, params: &Value) -> Result<Option<FilledTemplate>, Fault> {
        let uses = template::references([params]).map_err(|error| unread_template(&error))?;
        if let Some(template) = &uses.almost {
            return Err(unread_template(&TemplateError::no_reference(template)));
        }
        if uses.kept.is_empty() && !uses.has_literals {
            return Ok(None);
        }
        let references = self.references(owner, uses.kept).await?;
        let filled = template::fill(params, &|name| references.named(name));
        filled.map(Some).map_err(|error| Fault::new(FaultCode::NotFound, error.to_string()))
    }

    /// Refuses references that cannot be read.
    pub async fn check(&self, owner: &JobOwner, ids: impl Iterator<Item = &String>) -> Result<(), Fault> {
        for id in ids {
            self.text(owner, id).await?;
        }
        Ok(())
    }

    /// Reads the kept results that templates use: for each ID whether its blocks are needed beside its value.
    pub async fn references(
        &self,
        owner: &JobOwner,
        kept: BTreeMap<String, bool>,
    ) -> Result<References, Fault> {
        let mut found = BTreeMap::new();
        for (id, has_blocks) in kept {
            let text = self.text(owner, &id).await?;
            let read = move || {
                let source = ResultValue::read(&text).into_source()?;
                let result = if has_blocks { Some(Arc::new(serde_json::from_str(&text)?)) } else { None };
                Ok(TemplateSource { result, ..source })
            };
            let source = blocking(read).await?;
            let source = source.map_err(|error: serde_json::Error| unreadable(&id, &error))?;
            found.insert(kept_name(&id), Arc::new(source));
        }
        Ok(References(found))
    }

    /// Returns how much is kept; `None` if nothing was kept or read in this run.
    pub async fn counts(&self) -> Option<KeptCounts> {
        self.store.counts().await.ok()?
    }

    /// Applies a jq filter to the value of a kept result.
    pub async fn selected(&self, owner: &JobOwner, reference: &str, filter: &str) -> Result<Value, Fault> {
        let whole = self.value(owner, reference).await?;
        let wrong = |error: SelectError| match error {
            SelectError::Busy(_) => busy(&error),
            error => Fault::new(FaultCode::InvalidParams, format!("{error}.")),
        };
        Ok(self.select(owner, filter, whole).await.map_err(wrong)?.value)
    }

    /// Returns the value of a kept result.
    pub async fn value(&self, owner: &JobOwner, reference: &str) -> Result<ResultValue, Fault> {
        let text = self.text(owner, reference).await?;
        blocking(move || ResultValue::read(&text)).await
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
                return Err(Fault::new(FaultCode::NotFound, message).then(wait_call(id)));
            }
            None if self.jobs.knows(id) => return Err(gone(id)),
            None => {}
        }
        let text = self.store.text(id, owner.key()).await.map_err(|error| unreadable(id, &error))?;
        settle_memory(text.as_ref().map_or(0, String::len));
        text.ok_or_else(|| gone(id))
    }
}

/// The output of a jq filter.
#[derive(Debug)]
pub struct FilterOutput {
    /// The only output, or the array of all outputs if there are several or none.
    pub value: Value,
    /// Why the filter probably does not find what it is for.
    pub note: Option<String>,
}

/// The kept results that templates name, by their names in templates.
#[derive(Debug, Default)]
pub struct References(pub BTreeMap<String, Arc<TemplateSource>>);

impl References {
    /// Returns the value behind a name in a template.
    pub fn named(&self, name: &str) -> NameLookup {
        match self.0.get(name) {
            Some(value) => NameLookup::Value(value.clone()),
            None => NameLookup::Foreign,
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
    let failed = |_| {
        Fault::new(FaultCode::Internal, "Nonet failed while it read a kept result; the log has the reason.")
    };
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

fn reference_of(kept: &Result<KeptReference, String>) -> Result<&str, &str> {
    kept.as_ref().map(|kept| kept.reference.as_str()).map_err(String::as_str)
}

/// Whether the output of a filter is what a missing member gives.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_blank),
        Value::Object(members) => members.values().all(is_blank),
        Value::Bool(true) => false,
    }
}

/// Returns JSON as the text of a result.
fn text_result(json: &Value) -> Value {
    json!({ "content": [{ "type": "text", "text": json.to_string() }] })
}

/// Returns the name of a kept result in templates.
pub fn kept_name(id: &str) -> String {
    format!("ref:{id}")
}

/// Builds the fault for a template that cannot be read.
pub fn unread_template(error: &TemplateError) -> Fault {
    Fault::new(FaultCode::InvalidParams, format!("{error}. Nothing was called."))
}

/// Builds the fault for a filter of `gateway.fetch_result`.
fn wrong_filter(query: &Map<String, Value>, error: &SelectError) -> Fault {
    match error {
        SelectError::Busy(_) => busy(error),
        error => results::bad_query(query, error.to_string()),
    }
}

/// Builds the fault for a filter that did not get its turn.
pub fn busy(error: &SelectError) -> Fault {
    Fault::new(FaultCode::RateLimited, format!("{error}.")).retry_after(BUSY_RETRY)
}

fn gone(id: &str) -> Fault {
    let message =
        format!("No result is kept as `{id}`: the reference is wrong or has expired. Make the call again.");
    Fault::new(FaultCode::NotFound, message)
}

fn unreadable(id: &str, error: &dyn std::error::Error) -> Fault {
    Fault::new(FaultCode::Internal, format!("The result `{id}` cannot be read: {error}"))
}
