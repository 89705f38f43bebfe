//! Which texts run through the model together.
//!
//! Each run reads all weights, so short texts cost less together than one by one; but they are padded to the
//! longest of them, and padding is computed like text. Knows lengths only.

/// The most tokens of a run, padding included. A request waits for a run of documents, and longer runs are
/// hardly faster.
const MOST_TOKENS: usize = 128;

/// Groups texts of these lengths into runs, as indexes: of similar length, so that padding adds at most a
/// quarter of their tokens.
pub(super) fn batches(lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut places: Vec<usize> = (0..lengths.len()).collect();
    places.sort_by_key(|&place| std::cmp::Reverse(lengths[place]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let (mut longest, mut tokens) = (0, 0);
    for place in places {
        let length = lengths[place];
        match batches.last_mut() {
            Some(batch) if longest * (batch.len() + 1) <= MOST_TOKENS.min((tokens + length) * 5 / 4) => {
                batch.push(place);
                tokens += length;
            }
            _ => {
                batches.push(vec![place]);
                (longest, tokens) = (length, length);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_like_length_go_together() {
        let check = |lengths: &[usize], expected: &[&[usize]]| {
            assert_eq!(batches(lengths), expected, "{lengths:?}");
        };
        check(&[], &[]);
        check(&[7], &[&[0]]);
        check(&[7; 8], &[&[0, 1, 2, 3, 4, 5, 6, 7]]);
        // The long text would pad all others to its length.
        check(&[6, 7, 7, 8, 9, 30], &[&[5], &[4, 3, 1, 2, 0]]);
        check(&[4, 15, 5], &[&[1], &[2, 0]]);
        // A run has 128 tokens at most, unless a single text is longer.
        check(&[40; 4], &[&[0, 1, 2], &[3]]);
        check(&[200, 199], &[&[0], &[1]]);
    }

    #[test]
    fn padding_adds_a_quarter_at_most() {
        let lengths: Vec<usize> = (0..500).map(|at| 3 + at * 37 % 40).collect();
        let batches = batches(&lengths);
        let mut seen: Vec<usize> = batches.concat();
        seen.sort_unstable();
        assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
        for batch in &batches {
            let own: usize = batch.iter().map(|&place| lengths[place]).sum();
            let longest = batch.iter().map(|&place| lengths[place]).max().unwrap_or_default();
            assert!(longest * batch.len() * 4 <= own * 5, "{batch:?}");
        }
        assert!(batches.len() < lengths.len() / 2, "{} runs", batches.len());
    }
}
