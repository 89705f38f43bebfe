//! Where Redis is, and how to connect to it: one node, the nodes of a Redis Cluster, or the node that
//! Sentinels name.

use std::{fmt, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisConnectionInfo,
    RedisError, RedisResult, Value,
    aio::MultiplexedConnection,
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
    cmd, from_redis_value,
};

/// How long a connection, and an answer, may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a Sentinel may take, because there are others.
const SENTINEL_PATIENCE: Duration = Duration::from_millis(400);
/// How many times a command may be redirected to another node of a cluster, such as after a slot has moved.
const REDIRECTS: u32 = 2;

/// Where Redis is.
#[derive(Clone)]
pub enum RedisTopology {
    /// One node.
    Node(ConnectionInfo),
    /// A Redis Cluster, by some of its nodes.
    Cluster(Vec<ConnectionInfo>),
    /// The node that Sentinels name.
    Sentinel {
        /// The Sentinels, with the user, password and database of the node.
        sentinels: Vec<ConnectionInfo>,
        /// The Sentinels' name for the node.
        master: String,
        /// The password of the Sentinels.
        password: Option<String>,
    },
}

impl From<ConnectionInfo> for RedisTopology {
    fn from(node: ConnectionInfo) -> Self {
        Self::Node(node)
    }
}

/// Shows only the places, without secrets.
impl fmt::Display for RedisTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = |nodes: &[ConnectionInfo]| {
            nodes.iter().map(|node| node.addr().to_string()).collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Node(node) => write!(f, "{}", node.addr()),
            Self::Cluster(nodes) => f.write_str(&places(nodes)),
            Self::Sentinel { sentinels, master, .. } => {
                write!(f, "{} (Sentinel, {master})", places(sentinels))
            }
        }
    }
}

/// A live connection, shared by its clones.
#[derive(Clone)]
pub(super) enum RedisConnection {
    Node(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl RedisTopology {
    /// Returns the host and port of one node.
    pub(super) fn first(&self) -> String {
        let first = match self {
            Self::Node(node) => Some(node),
            Self::Cluster(nodes) | Self::Sentinel { sentinels: nodes, .. } => nodes.first(),
        };
        first.map(|node| node.addr().to_string()).unwrap_or_default()
    }

    /// Connects. `turn` counts the earlier attempts: each one starts with a different Sentinel.
    pub(super) async fn dial(self, turn: usize) -> RedisResult<RedisConnection> {
        match self {
            Self::Node(node) => dial_node(node, PATIENCE).await.map(RedisConnection::Node),
            Self::Cluster(nodes) => {
                let client = ClusterClient::builder(nodes)
                    .connection_timeout(PATIENCE)
                    .response_timeout(PATIENCE)
                    .retries(REDIRECTS)
                    .max_retry_wait(100)
                    .build()?;
                client.get_async_connection().await.map(RedisConnection::Cluster)
            }
            Self::Sentinel { mut sentinels, master, password } => {
                let first = turn.checked_rem(sentinels.len()).unwrap_or(0);
                sentinels.rotate_left(first);
                let mut last = RedisError::from((ErrorKind::Client, "no Sentinel is named"));
                for sentinel in sentinels {
                    match master_of(&sentinel, &master, password.as_deref()).await {
                        Ok(node) => return dial_node(node, PATIENCE).await.map(RedisConnection::Node),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

async fn dial_node(node: ConnectionInfo, patience: Duration) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(patience))
        .set_response_timeout(Some(patience));
    Client::open(node)?.get_multiplexed_async_connection_with_config(&config).await
}

/// Asks a Sentinel for the address of a master. The master is reached like the Sentinel, with TLS or without.
async fn master_of(
    sentinel: &ConnectionInfo,
    master: &str,
    password: Option<&str>,
) -> RedisResult<ConnectionInfo> {
    let mut own = RedisConnectionInfo::default();
    if let Some(password) = password {
        own = own.set_password(password);
    }
    let mut asked = dial_node(sentinel.clone().set_redis_settings(own), SENTINEL_PATIENCE).await?;
    let mut question = cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(master);
    let Some((host, port)): Option<(String, u16)> = question.query_async(&mut asked).await? else {
        let detail = format!("{} knows no master `{master}`", sentinel.addr());
        return Err((ErrorKind::Client, "wrong Sentinel", detail).into());
    };
    let addr = match sentinel.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Ok(sentinel.clone().set_addr(addr))
}

/// A node that holds keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RedisNode {
    /// The only node.
    Only,
    /// A node of a cluster.
    At(String, u16),
}

impl RedisNode {
    /// Returns the route to the node in a cluster.
    pub(super) fn route(&self) -> RoutingInfo {
        RoutingInfo::SingleNode(match self {
            Self::Only => SingleNodeRoutingInfo::Random,
            Self::At(host, port) => SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port },
        })
    }
}

/// Returns the masters of a cluster.
pub(super) async fn nodes(mut cluster: ClusterConnection) -> RedisResult<Vec<RedisNode>> {
    let mut question = cmd("CLUSTER");
    question.arg("SLOTS");
    // Each range of slots: its first and last, then its master and its replicas as host, port and more.
    let ranges: Vec<Vec<Value>> = question.query_async(&mut cluster).await?;
    let mut masters = Vec::new();
    for range in ranges {
        let master: Vec<Value> = from_redis_value(range.into_iter().nth(2).unwrap_or(Value::Nil))?;
        let mut master = master.into_iter();
        let host: String = from_redis_value(master.next().unwrap_or(Value::Nil))?;
        let port: u16 = from_redis_value(master.next().unwrap_or(Value::Nil))?;
        let node = RedisNode::At(host, port);
        if !masters.contains(&node) {
            masters.push(node);
        }
    }
    Ok(masters)
}

#[cfg(test)]
mod tests;
