//! Vectors and who is near whom: exact by default, over a graph where there are very many.
//!
//! Knows numbers only.

use std::sync::Arc;

use hnsw_rs::prelude::{Distance, Hnsw};

/// Neighbours for each vector on each layer. Malkov & Yashunin 2018, "Efficient and robust approximate nearest
/// neighbor search using Hierarchical Navigable Small World graphs", give 5 to 48; 16 found 0.99 of the true ten.
const NEIGHBOURS: usize = 16;
/// Candidates looked at while a vector is inserted; same source.
const EF_CONSTRUCTION: usize = 200;
/// Layers at most; hnsw_rs knows sixteen.
const LAYERS: usize = 16;
/// Sums that do not wait for each other, so that the compiler can use the widest registers.
const LANES: usize = 16;

/// Unit vectors by number, `[count, width]`.
pub(super) struct Vectors {
    width: usize,
    /// All vectors one after the other.
    values: Vec<f32>,
    graph: Option<Hnsw<'static, f32, Cosine>>,
}

impl Vectors {
    /// Takes vectors of one length; none if their lengths differ or there are none. Beyond `graph_above` of them a graph
    /// is built, which takes about 3 ms a vector at 30,000.
    pub(super) fn new(vectors: &[Arc<[f32]>], graph_above: usize) -> Option<Vectors> {
        let width = vectors.first()?.len();
        if width == 0 || vectors.iter().any(|vector| vector.len() != width) {
            return None;
        }
        let graph = (vectors.len() > graph_above).then(|| graph(vectors));
        let values = vectors.iter().flat_map(|vector| vector.iter().copied()).collect();
        Some(Vectors { width, values, graph })
    }

    /// The cosine of a query with each vector; none where the query has another length.
    pub(super) fn scores(&self, query: &[f32]) -> Option<Vec<f32>> {
        (query.len() == self.width)
            .then(|| self.values.chunks_exact(self.width).map(|vector| dot(query, vector)).collect())
    }

    /// The cosine of a query with one vector, 0 for what is not there or has another length.
    pub(super) fn score(&self, query: &[f32], number: usize) -> f32 {
        let start = number * self.width;
        let vector = self.values.get(start..start + self.width).filter(|_| query.len() == self.width);
        vector.map_or(0.0, |vector| dot(query, vector))
    }

    /// Whether a graph was built.
    pub(super) fn has_graph(&self) -> bool {
        self.graph.is_some()
    }

    /// About the `count` nearest, in no order; nothing without a graph.
    pub(super) fn near(&self, query: &[f32], count: usize) -> Vec<usize> {
        let Some(graph) = self.graph.as_ref().filter(|_| query.len() == self.width) else {
            return Vec::new();
        };
        // As many candidates as wanted results at least, and enough for 0.99 of the true ones to be among them.
        let ef = (2 * count).max(128);
        graph.search(query, count, ef).iter().map(|neighbour| neighbour.d_id).collect()
    }
}

/// One after the other, which is deterministic; many at once was no faster and is not.
fn graph(vectors: &[Arc<[f32]>]) -> Hnsw<'static, f32, Cosine> {
    let mut graph = Hnsw::new(NEIGHBOURS, vectors.len(), LAYERS, EF_CONSTRUCTION, Cosine);
    for (number, vector) in vectors.iter().enumerate() {
        graph.insert((vector, number));
    }
    graph.set_searching_mode(true);
    graph
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
fn dot(a: &[f32], b: &[f32]) -> f32 {
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
    pub(in crate::search) fn clustered(count: usize, width: usize, clusters: usize) -> Vec<Arc<[f32]>> {
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

    #[test]
    fn the_graph_finds_what_exact_search_finds() {
        let all = clustered(2_020, 32, 40);
        let (queries, vectors) = all.split_at(20);
        let graph = Vectors::new(vectors, 100).expect("equal lengths");
        let exact = Vectors::new(vectors, 10_000).expect("equal lengths");
        assert!(graph.has_graph() && !exact.has_graph());
        let mut agreed = 0;
        for query in queries {
            let scores = exact.scores(query).expect("equal lengths");
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
        let vectors = Vectors::new(&vec![one.clone(); 50], 10).expect("equal lengths");
        assert_eq!(vectors.near(&one, 5).len(), 5);
    }

    #[test]
    fn lengths_must_agree() {
        let short: Arc<[f32]> = vec![1.0].into();
        let long: Arc<[f32]> = vec![1.0, 0.0].into();
        assert!(Vectors::new(&[short.clone(), long.clone()], 10).is_none());
        assert!(Vectors::new(&[], 10).is_none());
        let vectors = Vectors::new(&[long], 10).expect("equal lengths");
        assert!(vectors.scores(&short).is_none());
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
