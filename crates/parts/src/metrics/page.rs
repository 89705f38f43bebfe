//! Builds the page for Prometheus: plain figures in, text out. prometheus-client does the format and the
//! escaping. Its registry lives for one page only, since the counters belong to [`super::Metrics`].

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use super::{ServerCounts, histogram::HistogramReading};

/// The media type of the page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The approximate number of JSON bytes per token.
const BYTES_PER_TOKEN: i64 = 4;

/// Figures read from the gateway when the page is built.
#[derive(Clone, Debug, Default)]
pub struct MetricsNow {
    /// The servers of the configuration, by name.
    pub servers: BTreeMap<Arc<str>, ServerNow>,
    /// Calls that run in the background.
    pub tasks_running: usize,
    /// Notices waiting for the next answer, over all sessions.
    pub notices_waiting: usize,
    /// Results and tasks in the store.
    pub kept_entries: u64,
    /// Their size, in bytes.
    pub kept_bytes: u64,
    /// Sessions of clients.
    pub sessions: usize,
    /// Tools that clients can find.
    pub tools: usize,
    /// The size of those tools' definitions as JSON, in bytes: the size of `tools/list` without Nonet.
    pub bytes_of_all_tools: usize,
    /// The size of the meta-tools' definitions as JSON, in bytes: the size of `tools/list` with Nonet.
    pub bytes_of_the_nine: usize,
    /// Time since the start, in seconds.
    pub uptime_s: u64,
    /// The cluster, if this is one of its replicas.
    pub cluster: Option<ClusterNow>,
}

/// The cluster as seen by one of its replicas, when the page is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterNow {
    /// Replicas that were alive a moment ago.
    pub replicas: usize,
    /// Replicas that are about to stop.
    pub leaving: usize,
    /// Replicas with a different configuration.
    pub other_config: usize,
    /// Whether Redis answers.
    pub is_whole: bool,
}

/// One server, when the page is built.
#[derive(Clone, Copy, Debug)]
pub struct ServerNow {
    /// The name of its state; `ready` means up.
    pub state: &'static str,
    /// Calls in progress at the server.
    pub calls_running: u64,
}

/// All figures of one page.
#[derive(Debug)]
pub(super) struct MetricsPage {
    /// By server, tool and outcome.
    pub(super) calls: BTreeMap<(Arc<str>, Arc<str>, &'static str), u64>,
    /// By outcome.
    pub(super) refused: BTreeMap<&'static str, u64>,
    /// By server, kind and action taken.
    pub(super) found: BTreeMap<(Arc<str>, &'static str, &'static str), u64>,
    pub(super) servers: BTreeMap<Arc<str>, Arc<ServerCounts>>,
    pub(super) gateway: HistogramReading,
    pub(super) search: HistogramReading,
    pub(super) now: MetricsNow,
}

impl MetricsPage {
    pub(super) fn render(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        text::encode(&mut page, &registry).expect("a string takes all that is written to it");
        page
    }
}

impl Collector for MetricsPage {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = FamilyWriter(encoder);
        self.counters(&mut out)?;
        self.histograms(&mut out)?;
        self.gauges(&mut out)
    }
}

impl MetricsPage {
    fn counters(&self, out: &mut FamilyWriter<'_>) -> fmt::Result {
        let calls = self.calls.iter().map(|((server, tool, outcome), count)| {
            ([("server", &**server), ("tool", &**tool), ("outcome", *outcome)], *count)
        });
        out.counters("nonet_calls", None, "Finished calls of tools", calls)?;
        let refused = self.refused.iter().map(|(outcome, count)| ([("outcome", *outcome)], *count));
        out.counters("nonet_refused", None, "Calls that reached no tool", refused)?;
        let found = self.found.iter().map(|((server, kind, done), count)| {
            ([("server", &**server), ("kind", *kind), ("done", *done)], *count)
        });
        out.counters("nonet_found", None, "Secrets and instructions found in calls and results", found)?;
        let bytes_in = self.servers().map(|(label, server)| (label, server.bytes_in.load(Relaxed)));
        out.counters("nonet_in", Some(&Unit::Bytes), "Size of calls' params as JSON", bytes_in)?;
        let bytes_out = self.servers().map(|(label, server)| (label, server.bytes_out.load(Relaxed)));
        out.counters(
            "nonet_out",
            Some(&Unit::Bytes),
            "Size of calls' results as JSON, before they are shortened",
            bytes_out,
        )?;
        let restarts = self.servers().map(|(label, server)| (label, server.restarts.load(Relaxed)));
        out.counters("nonet_server_restarts", None, "Times that a server was reconnected", restarts)
    }

    fn histograms(&self, out: &mut FamilyWriter<'_>) -> fmt::Result {
        out.histogram("nonet_gateway", "Time of a call in Nonet", &self.gateway)?;
        out.histogram("nonet_search", "Time of a search", &self.search)?;
        let times = self.servers().map(|(label, server)| (label, server.time.read()));
        let times = times.filter(|(_, times)| times.count() > 0);
        out.histograms("nonet_server", "Time of a call in its server", times)
    }

    fn gauges(&self, out: &mut FamilyWriter<'_>) -> fmt::Result {
        let now = &self.now;
        let up = now.servers.iter().map(|(name, server)| (label(name), u64::from(server.state == "ready")));
        out.gauges("nonet_server_up", "Whether a server is connected and listed", up)?;
        let states =
            now.servers.iter().map(|(name, server)| ([("server", &**name), ("state", server.state)], 1));
        out.gauges("nonet_server_state", "The state of a server", states)?;
        let running = now.servers.iter().map(|(name, server)| (label(name), server.calls_running));
        out.gauges("nonet_server_calls_running", "Calls in flight at a server", running)?;
        out.gauge("nonet_tasks_running", None, "Calls that run in the background", whole(now.tasks_running))?;
        out.gauge(
            "nonet_notices_waiting",
            None,
            "Notices that wait for an answer to carry them",
            whole(now.notices_waiting),
        )?;
        out.gauge("nonet_kept_entries", None, "Results and tasks in the store", whole(now.kept_entries))?;
        out.gauge(
            "nonet_kept",
            Some(&Unit::Bytes),
            "Size of the results and tasks in the store",
            whole(now.kept_bytes),
        )?;
        out.gauge("nonet_sessions", None, "Sessions of clients", whole(now.sessions))?;
        out.gauge("nonet_tools", None, "Tools that clients can find", whole(now.tools))?;
        let saved = whole(now.bytes_of_all_tools).saturating_sub(whole(now.bytes_of_the_nine));
        out.gauge(
            "nonet_tools_list_saved_tokens",
            None,
            "Approximate tokens that one tools/list saves over a list of all tools",
            saved / BYTES_PER_TOKEN,
        )?;
        if let Some(cluster) = now.cluster {
            let states = [
                ([("state", "running")], cluster.replicas.saturating_sub(cluster.leaving) as u64),
                ([("state", "leaving")], cluster.leaving as u64),
            ];
            out.gauges("nonet_cluster_replicas", "Replicas of the cluster", states.into_iter())?;
            let other = whole(cluster.other_config);
            out.gauge("nonet_cluster_other_config", None, "Replicas with a different configuration", other)?;
            let up = i64::from(cluster.is_whole);
            out.gauge("nonet_cluster_redis_up", None, "Whether the replicas' shared data can be used", up)?;
        }
        out.gauge("nonet_uptime", Some(&Unit::Seconds), "Time since the start", whole(now.uptime_s))
    }

    fn servers(&self) -> impl Iterator<Item = ([(&'static str, &str); 1], &ServerCounts)> {
        self.servers.iter().map(|(name, server)| (label(name), &**server))
    }
}

fn label(server: &str) -> [(&'static str, &str); 1] {
    [("server", server)]
}

/// Converts a count to a gauge's type.
fn whole(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// Writes metric families, each with its header. Units become the suffix of the name, and a counter's name
/// ends in `_total`.
struct FamilyWriter<'a>(DescriptorEncoder<'a>);

impl FamilyWriter<'_> {
    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        values: impl Iterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit, MetricType::Counter)?;
        for (labels, value) in values {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            family.encode_family(&labels)?.encode_gauge(&whole(value))?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, unit: Option<&Unit>, help: &str, value: i64) -> fmt::Result {
        self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (L, HistogramReading)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, times) in values {
            let (sum, count, buckets) = (times.sum_s(), times.count(), times.buckets_s());
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, times: &HistogramReading) -> fmt::Result {
        let (sum, count, buckets) = (times.sum_s(), times.count(), times.buckets_s());
        self.0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}
