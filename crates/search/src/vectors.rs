//! Vectors and their nearest neighbours: exact by default, over a graph for very many.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use hnsw_rs::prelude::{Distance, Hnsw};

use super::cache::{self, ContentKey};

/// Neighbours of a vector per layer. Malkov & Yashunin 2018, "Efficient and robust approximate nearest
/// neighbor search using Hierarchical Navigable Small World graphs", suggest 5 to 48; 16 found 0.99 of the
/// true ten.
const NEIGHBOURS: usize = 16;
/// Candidates visited while inserting a vector; same source.
const EF_CONSTRUCTION: usize = 200;
/// The most layers; hnsw_rs supports sixteen.
const LAYERS: usize = 16;
/// An unknown cosine.
pub(super) const UNKNOWN: f32 = f32::NAN;
/// Independent sums, so that the compiler can use the widest registers.
const LANES: usize = 16;

/// Unit vectors by number, `[count, width]`, some possibly unknown, with an optional graph.
#[derive(Clone)]
pub(super) struct Vectors {
    width: usize,
    rows: Arc<[Row]>,
    placed: Option<Arc<MappedGraph>>,
}

/// A vector, if known.
type Row = Option<Arc<[f32]>>;

/// A nearest-neighbour graph (HNSW). Vectors are identified by content, so the graph serves any set that has
/// most of them.
pub struct Graph {
    hnsw: Hnsw<'static, f32, Cosine>,
    /// The node of each vector.
    nodes: HashMap<ContentKey, usize>,
    /// The same by address, which costs less to look up.
    by_address: HashMap<usize, usize>,
    /// Keeps the addresses.
    _rows: Vec<Arc<[f32]>>,
}

/// A graph mapped to a set of vectors.
struct MappedGraph {
    graph: Arc<Graph>,
    /// The start of each node's range in `numbers`; one more at the end.
    starts: Vec<usize>,
    /// Vector numbers, by node. Equal vectors share a node.
    numbers: Vec<usize>,
    /// Vectors missing in the graph; always compared.
    rest: Vec<usize>,
}

impl Vectors {
    /// Takes vectors of equal length; `None` if lengths differ or there are none.
    pub(super) fn new(rows: Vec<Row>) -> Option<Vectors> {
        let width = rows.iter().flatten().next()?.len();
        let fit = width > 0 && rows.iter().flatten().all(|vector| vector.len() == width);
        fit.then(|| Vectors { width, rows: rows.into(), placed: None })
    }

    /// Returns the same vectors with a graph built for these or similar ones.
    pub(super) fn with_graph(&self, graph: Arc<Graph>) -> Vectors {
        let mut rest = Vec::new();
        let mut pairs = Vec::with_capacity(self.rows.len());
        for (number, vector) in self.rows.iter().enumerate() {
            let Some(vector) = vector else { continue };
            match graph.node(vector) {
                Some(node) => pairs.push((node, number)),
                None => rest.push(number),
            }
        }
        pairs.sort_unstable();
        let mut starts = vec![0; graph.nodes.len() + 1];
        pairs.iter().for_each(|(node, _)| starts[node + 1] += 1);
        for node in 1..starts.len() {
            starts[node] += starts[node - 1];
        }
        let numbers = pairs.into_iter().map(|(_, number)| number).collect();
        Vectors { placed: Some(Arc::new(MappedGraph { graph, starts, numbers, rest })), ..self.clone() }
    }

    /// Counts the graph's nodes without a vector.
    pub(super) fn dead(&self) -> usize {
        self.placed
            .as_ref()
            .map_or(0, |placed| placed.starts.windows(2).filter(|pair| pair[0] == pair[1]).count())
    }

    /// Whether all vectors are known.
    pub(super) fn is_whole(&self) -> bool {
        self.rows.iter().all(Option::is_some)
    }

    pub(super) fn graph(&self) -> Option<&Arc<Graph>> {
        Some(&self.placed.as_ref()?.graph)
    }

    /// Counts the known vectors missing in the graph; all, without a graph.
    pub(super) fn outside(&self) -> usize {
        let known = || self.rows.iter().flatten().count();
        self.placed.as_ref().map_or_else(known, |placed| placed.rest.len())
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the known vectors, to build a graph.
    pub(super) fn rows(&self) -> Vec<Arc<[f32]>> {
        self.rows.iter().flatten().cloned().collect()
    }

    /// Returns the cosine of a query with each `wanted` vector, [`UNKNOWN`] for unwanted and unknown ones;
    /// `None` if the query's length differs.
    pub(super) fn scores(&self, query: &[f32], wanted: &[bool]) -> Option<Vec<f32>> {
        let score = |(row, &wanted): (&Row, &bool)| {
            row.as_ref().filter(|_| wanted).map_or(UNKNOWN, |vector| dot(query, vector))
        };
        (query.len() == self.width).then(|| self.rows.iter().zip(wanted).map(score).collect())
    }

    /// Returns the cosine of a query with one vector; [`UNKNOWN`] if the vector is missing or its length
    /// differs.
    pub(super) fn score(&self, query: &[f32], number: usize) -> f32 {
        let row = self.rows.get(number).filter(|_| query.len() == self.width);
        row.and_then(Option::as_ref).map_or(UNKNOWN, |vector| dot(query, vector))
    }

    /// Returns the cosine of two vectors, if both are known.
    pub(super) fn between(&self, one: usize, other: usize) -> Option<f32> {
        let row = |number: usize| self.rows.get(number).and_then(Option::as_ref);
        Some(dot(row(one)?, row(other)?))
    }

    /// Returns about `count` nearest vectors and all that are missing in the graph, unordered; none without a
    /// graph.
    pub(super) fn near(&self, query: &[f32], count: usize) -> Vec<usize> {
        let Some(placed) = self.placed.as_ref().filter(|_| query.len() == self.width) else {
            return Vec::new();
        };
        // At least twice as many candidates as results, and enough to find 0.99 of the true ones.
        let ef = (2 * count).max(128);
        let mut found = placed.rest.clone();
        for neighbour in placed.graph.hnsw.search(query, count, ef) {
            let node = neighbour.d_id;
            found.extend(&placed.numbers[placed.starts[node]..placed.starts[node + 1]]);
        }
        found
    }
}

impl Graph {
    /// Builds the graph. Blocks for seconds with 10,000 vectors and minutes with 100,000. Inserts one vector
    /// at a time, which is deterministic; parallel insertion is not, and was no faster. Stops early with a
    /// partial graph when `stop` returns true.
    pub fn new(rows: &[Arc<[f32]>], stop: &dyn Fn() -> bool) -> Graph {
        let hnsw = Hnsw::new(NEIGHBOURS, rows.len(), LAYERS, EF_CONSTRUCTION, Cosine);
        let mut nodes = HashMap::with_capacity(rows.len());
        let mut by_address = HashMap::with_capacity(rows.len());
        for vector in rows {
            let next = nodes.len();
            if stop() {
                break;
            }
            let node = match nodes.entry(key(vector)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(place) => {
                    hnsw.insert((vector, next));
                    *place.insert(next)
                }
            };
            by_address.insert(address(vector), node);
        }
        let mut graph = Graph { hnsw, nodes, by_address, _rows: rows.to_vec() };
        graph.hnsw.set_searching_mode(true);
        graph
    }

    /// Returns the node of a vector.
    fn node(&self, vector: &Arc<[f32]>) -> Option<usize> {
        self.by_address.get(&address(vector)).or_else(|| self.nodes.get(&key(vector))).copied()
    }
}

fn address(vector: &Arc<[f32]>) -> usize {
    vector.as_ptr().addr()
}

/// Returns the identity of a vector.
fn key(vector: &[f32]) -> ContentKey {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    cache::key([&bytes[..]])
}

/// Returns the normalised weighted sum of vectors of equal length.
pub(super) fn sum<'a>(vectors: impl IntoIterator<Item = (&'a [f32], f32)>) -> Vec<f32> {
    let mut sum = Vec::new();
    for (vector, weight) in vectors {
        sum.resize(vector.len(), 0.0);
        sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += weight * value);
    }
    normalized(sum)
}

/// Normalises a vector, so that a dot product is a cosine. A vector without a direction becomes zeros.
pub(super) fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let scale = if length.is_finite() && length > 0.0 { 1.0 / length } else { 0.0 };
    for value in &mut vector {
        *value = if scale > 0.0 { *value * scale } else { 0.0 };
    }
    vector
}

/// 1 - cosine of unit vectors. The library's own distance asserts a non-negative result, which rounding may
/// break for equal vectors.
#[derive(Clone, Default)]
struct Cosine;

impl Distance<f32> for Cosine {
    fn eval(&self, a: &[f32], b: &[f32]) -> f32 {
        (1.0 - dot(a, b)).max(0.0)
    }
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Clustered unit vectors, similar to descriptions; reproducible, by xorshift (Marsaglia 2003).
    pub(crate) fn clustered(count: usize, width: usize, clusters: usize) -> Vec<Arc<[f32]>> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let centres: Vec<Vec<f32>> = (0..clusters).map(|_| (0..width).map(|_| random()).collect()).collect();
        (0..count)
            .map(|number| {
                let point: Vec<f32> =
                    centres[number % clusters].iter().map(|value| value + random()).collect();
                let length = dot(&point, &point).sqrt();
                point.into_iter().map(|value| value / length).collect()
            })
            .collect()
    }

    fn known(rows: &[Arc<[f32]>]) -> Option<Vectors> {
        Vectors::new(rows.iter().cloned().map(Some).collect())
    }

    #[test]
    fn the_graph_finds_what_exact_search_finds() {
        let all = clustered(2_020, 32, 40);
        let (queries, vectors) = all.split_at(20);
        let exact = known(vectors).expect("equal lengths");
        let graph = exact.with_graph(Arc::new(Graph::new(vectors, &|| false)));
        assert!(graph.graph().is_some() && exact.graph().is_none());
        assert_eq!((graph.outside(), exact.outside()), (0, vectors.len()));
        let mut agreed = 0;
        for query in queries {
            let scores = exact.scores(query, &vec![true; vectors.len()]).expect("equal lengths");
            let mut best: Vec<usize> = (0..scores.len()).collect();
            best.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let near = graph.near(query, 10);
            agreed += best[..10].iter().filter(|number| near.contains(number)).count();
        }
        assert!(agreed >= 190, "{agreed} of 200");
    }

    #[test]
    fn equal_vectors_do_not_break_the_graph() {
        let one = clustered(1, 48, 1).remove(0);
        let rows = vec![one.clone(); 50];
        let vectors = known(&rows).expect("equal lengths").with_graph(Arc::new(Graph::new(&rows, &|| false)));
        assert_eq!(vectors.near(&one, 5).len(), 50, "one node, and all that share it");
    }

    #[test]
    fn a_graph_serves_later_vectors_too() {
        let all = clustered(300, 32, 10);
        let graph = Arc::new(Graph::new(&all[..200], &|| false));
        // A hundred removed, a hundred added, and another order.
        let rows: Vec<Arc<[f32]>> = all[100..].iter().rev().cloned().collect();
        let vectors = known(&rows).expect("equal lengths").with_graph(graph);
        assert_eq!((vectors.outside(), vectors.dead()), (100, 100));
        for (number, vector) in rows.iter().enumerate() {
            let near = vectors.near(vector, 5);
            assert!(near.contains(&number), "{number}");
            assert!(near.iter().all(|&at| at < rows.len()));
        }
    }

    #[test]
    fn lengths_must_agree() {
        let short: Arc<[f32]> = vec![1.0].into();
        let long: Arc<[f32]> = vec![1.0, 0.0].into();
        assert!(known(&[short.clone(), long.clone()]).is_none());
        assert!(known(&[]).is_none());
        let vectors = known(&[long]).expect("equal lengths");
        assert!(vectors.scores(&short, &[true]).is_none());
    }

    #[test]
    fn sums_have_length_one() {
        assert_eq!(sum([(&[3.0, 0.0][..], 1.0), (&[0.0, 2.0][..], 2.0)]), [0.6, 0.8]);
        assert_eq!(normalized(vec![0.0, 0.0]), [0.0, 0.0]);
        assert_eq!(normalized(vec![f32::NAN, 0.0]), [0.0, 0.0]);
        assert!(sum([]).is_empty());
    }

    #[test]
    fn dot_products_are_right_at_every_length() {
        for length in [0, 1, 15, 16, 17, 40] {
            let values: Vec<f32> = (0..length).map(|value| value as f32).collect();
            let expected: f32 = values.iter().map(|value| value * value).sum();
            assert_eq!(dot(&values, &values), expected);
        }
    }
}
