//! Vectors and who is near whom: exact by default, over a graph where there are very many.
//!
//! Knows numbers only.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use hnsw_rs::prelude::{Distance, Hnsw};

use super::cache::{self, Key};

/// Neighbours for each vector on each layer. Malkov & Yashunin 2018, "Efficient and robust approximate nearest
/// neighbor search using Hierarchical Navigable Small World graphs", give 5 to 48; 16 found 0.99 of the true ten.
const NEIGHBOURS: usize = 16;
/// Candidates looked at while a vector is inserted; same source.
const EF_CONSTRUCTION: usize = 200;
/// Layers at most; hnsw_rs knows sixteen.
const LAYERS: usize = 16;
/// Stands for a cosine that cannot be told.
pub(super) const UNKNOWN: f32 = f32::NAN;
/// Sums that do not wait for each other, so that the compiler can use the widest registers.
const LANES: usize = 16;

/// Unit vectors by number, `[count, width]`, some of which may not be known yet, and a graph over them if there is one.
#[derive(Clone)]
pub(super) struct Vectors {
    width: usize,
    rows: Arc<[Row]>,
    placed: Option<Arc<Placed>>,
}

/// A vector, if it is known.
type Row = Option<Arc<[f32]>>;

/// A graph of the nearest (HNSW) over vectors, which are known by what they are: it serves every set of vectors that has
/// most of them.
pub struct Graph {
    hnsw: Hnsw<'static, f32, Cosine>,
    /// The number of each vector in it.
    nodes: HashMap<Key, usize>,
}

/// A graph as it stands to a set of vectors.
struct Placed {
    graph: Arc<Graph>,
    /// Where in `numbers` those of a node begin; one more at the end.
    starts: Vec<usize>,
    /// Numbers of vectors, by node. Equal vectors share one.
    numbers: Vec<usize>,
    /// Vectors that the graph does not have; they are always compared.
    rest: Vec<usize>,
}

impl Vectors {
    /// Takes vectors of one length; none if their lengths differ or there are none.
    pub(super) fn new(rows: Vec<Row>) -> Option<Vectors> {
        let width = rows.iter().flatten().next()?.len();
        let fit = width > 0 && rows.iter().flatten().all(|vector| vector.len() == width);
        fit.then(|| Vectors { width, rows: rows.into(), placed: None })
    }

    /// The same vectors with a graph that was made for them or for others like them.
    pub(super) fn with_graph(&self, graph: Arc<Graph>) -> Vectors {
        let mut rest = Vec::new();
        let mut pairs = Vec::with_capacity(self.rows.len());
        for (number, vector) in self.rows.iter().enumerate() {
            let Some(vector) = vector else { continue };
            match graph.nodes.get(&key(vector)) {
                Some(&node) => pairs.push((node, number)),
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
        Vectors { placed: Some(Arc::new(Placed { graph, starts, numbers, rest })), ..self.clone() }
    }

    /// How many nodes of the graph stand for no vector any more.
    pub(super) fn dead(&self) -> usize {
        self.placed
            .as_ref()
            .map_or(0, |placed| placed.starts.windows(2).filter(|pair| pair[0] == pair[1]).count())
    }

    /// Whether every vector is known.
    pub(super) fn is_whole(&self) -> bool {
        self.rows.iter().all(Option::is_some)
    }

    /// The graph, if there is one.
    pub(super) fn graph(&self) -> Option<&Arc<Graph>> {
        Some(&self.placed.as_ref()?.graph)
    }

    /// How many known vectors the graph does not have; all, if there is none.
    pub(super) fn outside(&self) -> usize {
        let known = || self.rows.iter().flatten().count();
        self.placed.as_ref().map_or_else(known, |placed| placed.rest.len())
    }

    /// How many vectors there are.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The known vectors themselves, to make a graph of.
    pub(super) fn rows(&self) -> Vec<Arc<[f32]>> {
        self.rows.iter().flatten().cloned().collect()
    }

    /// The cosine of a query with each vector that `wanted` names, [`UNKNOWN`] for the others and for those that are not
    /// known; none where the query has another length.
    pub(super) fn scores(&self, query: &[f32], wanted: &[bool]) -> Option<Vec<f32>> {
        let score = |(row, &wanted): (&Row, &bool)| {
            row.as_ref().filter(|_| wanted).map_or(UNKNOWN, |vector| dot(query, vector))
        };
        (query.len() == self.width).then(|| self.rows.iter().zip(wanted).map(score).collect())
    }

    /// The cosine of a query with one vector, [`UNKNOWN`] for what is not there or has another length.
    pub(super) fn score(&self, query: &[f32], number: usize) -> f32 {
        let row = self.rows.get(number).filter(|_| query.len() == self.width);
        row.and_then(Option::as_ref).map_or(UNKNOWN, |vector| dot(query, vector))
    }

    /// The cosine of two of the vectors, if both are known.
    pub(super) fn between(&self, one: usize, other: usize) -> Option<f32> {
        let row = |number: usize| self.rows.get(number).and_then(Option::as_ref);
        Some(dot(row(one)?, row(other)?))
    }

    /// About the `count` nearest and all that the graph does not have, in no order; nothing without a graph.
    pub(super) fn near(&self, query: &[f32], count: usize) -> Vec<usize> {
        let Some(placed) = self.placed.as_ref().filter(|_| query.len() == self.width) else {
            return Vec::new();
        };
        // As many candidates as wanted results at least, and enough for 0.99 of the true ones to be among them.
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
    /// Builds the graph, which takes seconds for 10,000 vectors and minutes for 100,000: call it where blocking is
    /// allowed. One vector after the other, which is deterministic; many at once was no faster and is not.
    /// Stops early, with what it has, when `stop` says so.
    pub fn new(rows: &[Arc<[f32]>], stop: &dyn Fn() -> bool) -> Graph {
        let hnsw = Hnsw::new(NEIGHBOURS, rows.len(), LAYERS, EF_CONSTRUCTION, Cosine);
        let mut nodes = HashMap::with_capacity(rows.len());
        for vector in rows {
            let node = nodes.len();
            if stop() {
                break;
            }
            if let Entry::Vacant(place) = nodes.entry(key(vector)) {
                place.insert(node);
                hnsw.insert((vector, node));
            }
        }
        let mut graph = Graph { hnsw, nodes };
        graph.hnsw.set_searching_mode(true);
        graph
    }
}

/// What a vector is known by.
fn key(vector: &[f32]) -> Key {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    cache::key([&bytes[..]])
}

/// The sum of vectors of one length by their weights, made to have length 1.
pub(super) fn sum<'a>(vectors: impl IntoIterator<Item = (&'a [f32], f32)>) -> Vec<f32> {
    let mut sum = Vec::new();
    for (vector, weight) in vectors {
        sum.resize(vector.len(), 0.0);
        sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += weight * value);
    }
    normalized(sum)
}

/// The vector made to have length 1, so that a dot product is a cosine. What has no direction becomes zeros.
pub(super) fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let scale = if length.is_finite() && length > 0.0 { 1.0 / length } else { 0.0 };
    for value in &mut vector {
        *value = if scale > 0.0 { *value * scale } else { 0.0 };
    }
    vector
}

/// 1 - cosine of unit vectors. The library's own asserts that it is not negative, which two equal vectors may break by
/// rounding.
#[derive(Clone, Default)]
struct Cosine;

impl Distance<f32> for Cosine {
    fn eval(&self, a: &[f32], b: &[f32]) -> f32 {
        (1.0 - dot(a, b)).max(0.0)
    }
}

/// The dot product.
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

    /// Unit vectors in groups, as descriptions are: reproducible, by xorshift (Marsaglia 2003).
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
        // A hundred are gone, a hundred are new, and the order is another one.
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
