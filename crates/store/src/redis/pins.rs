//! Trusted definitions of servers, and waiting ones, in Redis. The keys are described in `pins.lua`.
//!
//! The texts of definitions are stored first, in parts, and then the pins in one script, so that nobody sees a partly pinned
//! server.

use std::sync::Arc;

use redis::{ScriptInvocation, pipe};
use serde::Deserialize;
use serde_json::json;
use tokio::{runtime::Handle, task::block_in_place};

use super::{
    super::{Pin, PinKind, PinStep, PinStore, PinTexts, PinWrite, Removable, StoreError, pins_db::MOST_TEXT},
    link::{Methods, RedisLink, newer_is_there, script},
    presence::Lease,
};

static METHODS: Methods = Methods::new(|| script(include_str!("pins.lua")));

/// How many texts are stored or read at a time, and their approximate total size in bytes.
const AT_ONCE: usize = 200;
const BYTES_AT_ONCE: usize = 1 << 20;

/// The pins of the replicas. Every call blocks, and must run inside a tokio runtime.
#[derive(Debug)]
pub(super) struct PinKeys {
    link: Arc<RedisLink>,
    base: Arc<str>,
    lease: Arc<Lease>,
}

/// A pin without its name.
#[derive(Deserialize)]
struct PinValue {
    trusted: Option<String>,
    by_user: bool,
    waiting: Option<String>,
    /// A number as a string, because Lua would round it.
    since: String,
    told: bool,
}

const FORMAT: u64 = 1;

impl PinKeys {
    pub(super) fn new(link: Arc<RedisLink>, base: Arc<str>, lease: Arc<Lease>) -> Self {
        Self { link, base, lease }
    }

    fn key(&self, name: &str) -> String {
        format!("{}pins:{name}", self.base)
    }

    fn call(&self, method: &str) -> ScriptInvocation<'static> {
        let mut call = METHODS.call(&self.base, method);
        self.lease.sign(&mut call);
        call
    }

    /// Postpones the expiry of everything.
    pub(super) async fn renew(&self) -> Result<(), StoreError> {
        self.link.run(&self.call("renew")).await
    }

    async fn read_server(&self, server: &str) -> Result<Vec<Pin>, StoreError> {
        let key = self.key(&format!("of:{server}"));
        let (all,): (Vec<(String, String)>,) = self.link.send(pipe().hgetall(key)).await?;
        let mut pins = Vec::with_capacity(all.len());
        for (field, value) in all {
            let Some((kind, name)) = field.split_once(':') else { continue };
            pins.extend(pin_of(server, kind, name, &value)?);
        }
        pins.sort_by(|a: &Pin, b| (a.kind.as_str(), &a.name).cmp(&(b.kind.as_str(), &b.name)));
        Ok(pins)
    }

    async fn read_waiting(&self, most: usize) -> Result<Vec<(Pin, PinTexts)>, StoreError> {
        let last = isize::try_from(most).unwrap_or(isize::MAX) - 1;
        if most == 0 {
            return Ok(Vec::new());
        }
        let (members,): (Vec<String>,) = self.link.send(pipe().zrange(self.key("waiting"), 0, last)).await?;
        let mut found = Vec::with_capacity(members.len());
        for some in members.chunks(AT_ONCE) {
            let names: Vec<(&str, &str, &str)> = some.iter().filter_map(|member| name_of(member)).collect();
            let mut commands = pipe();
            for (server, kind, name) in &names {
                commands.hget(self.key(&format!("of:{server}")), format!("{kind}:{name}"));
            }
            let values: Vec<Option<String>> = self.link.send(&commands).await?;
            for ((server, kind, name), value) in names.into_iter().zip(values) {
                let Some(value) = value else { continue };
                if let Some(pin) = pin_of(server, kind, name, &value)?.filter(|pin| pin.waiting.is_some()) {
                    let texts = self.read_texts(&pin).await?;
                    found.push((pin, texts));
                }
            }
        }
        Ok(found)
    }

    async fn read_texts(&self, pin: &Pin) -> Result<PinTexts, StoreError> {
        let key = self.key(&format!("texts:{}", pin.server));
        let field = |hash: &Option<String>| {
            format!("{}:{}:{}", pin.kind.as_str(), pin.name, hash.as_deref().unwrap_or_default())
        };
        let fields = [field(&pin.trusted), field(&pin.waiting)];
        let ([trusted, waiting],): ([Option<String>; 2],) =
            self.link.send(pipe().hmget(key, &fields)).await?;
        Ok(PinTexts { trusted, waiting })
    }

    async fn put(&self, server: &str, writes: &[PinWrite], now_ms: u64) -> Result<(), StoreError> {
        let mut texts = Vec::new();
        let mut steps = Vec::with_capacity(writes.len());
        for PinWrite { kind, name, to } in writes {
            let (word, given) = match to {
                PinStep::First { hash, text } => ("first", Some((hash, text))),
                PinStep::Wait { hash, text } => ("wait", Some((hash, text))),
                PinStep::Vouch { hash, text } => ("vouch", Some((hash, text))),
                PinStep::Return => ("return", None),
            };
            texts.extend(given.map(|(hash, text)| (format!("{}:{name}", kind.as_str()), hash, text)));
            steps.push(match given {
                Some((hash, _)) => json!({ "kind": kind.as_str(), "name": name, "to": word, "hash": hash }),
                None => json!({ "kind": kind.as_str(), "name": name, "to": word }),
            });
        }
        let mut rest = &texts[..];
        while !rest.is_empty() {
            let mut call = self.call("put_texts");
            call.arg(server).arg(MOST_TEXT);
            let (mut count, mut bytes) = (0, 0);
            for (field, hash, text) in rest.iter().take(AT_ONCE) {
                if count > 0 && bytes + text.len() > BYTES_AT_ONCE {
                    break;
                }
                call.arg(field).arg(*hash).arg(*text);
                (count, bytes) = (count + 1, bytes + text.len());
            }
            self.link.run::<()>(&call).await?;
            rest = &rest[count..];
        }
        let mut call = self.call("write");
        call.arg(server).arg(now_ms).arg(json!(steps).to_string());
        self.link.run(&call).await
    }

    async fn change_seen(
        &self,
        method: &str,
        now_ms: Option<u64>,
        seen: &[Pin],
    ) -> Result<usize, StoreError> {
        let seen = seen.iter().filter(|pin| pin.waiting.is_some()).map(|pin| {
            json!({ "server": pin.server, "kind": pin.kind.as_str(), "name": pin.name, "waiting": pin.waiting })
        });
        let mut call = self.call(method);
        now_ms.into_iter().for_each(|now| {
            call.arg(now);
        });
        call.arg(json!(seen.collect::<Vec<_>>()).to_string());
        self.link.run(&call).await
    }
}

impl Removable for PinKeys {
    fn is_gone(&self) -> bool {
        false
    }
}

impl PinStore for PinKeys {
    fn version(&self) -> Result<i64, StoreError> {
        wait(async {
            let (version,): (Option<i64>,) = self.link.send(pipe().get(self.key("version"))).await?;
            Ok(version.unwrap_or_default())
        })
    }

    fn of_server(&self, server: &str) -> Result<Vec<Pin>, StoreError> {
        wait(self.read_server(server))
    }

    fn waiting(&self, most: usize) -> Result<Vec<(Pin, PinTexts)>, StoreError> {
        wait(self.read_waiting(most))
    }

    fn count_waiting(&self) -> Result<usize, StoreError> {
        wait(async {
            let (count,): (usize,) = self.link.send(pipe().zcard(self.key("waiting"))).await?;
            Ok(count)
        })
    }

    fn texts(&self, pin: &Pin) -> Result<PinTexts, StoreError> {
        wait(self.read_texts(pin))
    }

    fn write(&self, server: &str, writes: &[PinWrite], now_ms: u64) -> Result<(), StoreError> {
        wait(self.put(server, writes, now_ms))
    }

    fn trust(&self, seen: &[Pin], now_ms: u64) -> Result<usize, StoreError> {
        wait(self.change_seen("trust", Some(now_ms), seen))
    }

    fn told(&self, seen: &[Pin]) -> Result<usize, StoreError> {
        wait(self.change_seen("told", None, seen))
    }
}

/// Waits for Redis on a thread that may block.
fn wait<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let runtime = Handle::try_current().map_err(|_| StoreError::Unusable)?;
    block_in_place(|| runtime.block_on(work))
}

/// Returns the server, kind and name of a waiting pin.
fn name_of(member: &str) -> Option<(&str, &str, &str)> {
    let (server, rest) = member.split_once('\0')?;
    let (kind, name) = rest.split_once('\0')?;
    Some((server, kind, name))
}

/// Returns a pin as read; `None` if it is invalid. A newer Nonet's pin is an error: without it, a definition that the user
/// refused would be trusted on first sight.
fn pin_of(server: &str, kind: &str, name: &str, value: &str) -> Result<Option<Pin>, StoreError> {
    #[derive(Deserialize)]
    struct Versioned {
        v: u64,
    }
    if serde_json::from_str::<Versioned>(value).is_ok_and(|value| value.v != FORMAT) {
        newer_is_there();
        return Err(StoreError::NewerValue { what: format!("the pin of `{name}` of `{server}`") });
    }
    let (Ok(value), Some(kind)) = (serde_json::from_str::<PinValue>(value), PinKind::of(kind)) else {
        return Ok(None);
    };
    let PinValue { trusted, by_user, waiting, since, told } = value;
    let since_ms = since.parse().unwrap_or_default();
    let (server, name) = (server.into(), name.into());
    Ok(Some(Pin { server, kind, name, trusted, by_user, waiting, since_ms, told }))
}

#[cfg(test)]
mod tests;
