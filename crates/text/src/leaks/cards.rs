//! Card numbers: digits with an issuer's length and prefix, and a valid check digit (ISO/IEC 7812).

use std::ops::Range;

use nonet_base::blocks::{BLOCK, SHORTEST_NUMBER, long_number};

/// The minimum and maximum number of digits.
const FEWEST: usize = 13;
const MOST: usize = 16;

/// Returns the card numbers in a text, in order.
pub(super) fn find(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    const _: () = assert!(FEWEST == SHORTEST_NUMBER);
    let bytes = text.as_bytes();
    // Everything before `at` is read; the blocks before `until` may have a number.
    let (mut at, mut until) = (0, 0);
    std::iter::from_fn(move || {
        loop {
            if at >= until {
                let block = long_number(bytes, at / BLOCK)? * BLOCK;
                (at, until) = (at.max(block.saturating_sub(FEWEST / 2)), block + BLOCK);
            }
            let rest = &bytes[at..until.min(bytes.len())];
            let Some(start) = rest.iter().position(u8::is_ascii_digit).map(|first| at + first) else {
                at = until;
                continue;
            };
            let end = run(bytes, start);
            at = end.max(start + 1);
            let is_apart = start.checked_sub(1).is_none_or(|before| !joins(bytes[before]))
                && bytes
                    .get(end)
                    .is_none_or(|after| !joins(*after) || *after == b'.' && !is_digit_at(bytes, end + 1));
            if is_apart && let Some(range) = card_in(bytes, start..end) {
                return Some(range);
            }
        }
    })
}

fn is_digit_at(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(u8::is_ascii_digit)
}

/// Returns whether this byte beside a number makes it part of something longer: a name, a fraction, an
/// address.
fn joins(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'_' | b'.' | b'-' | b'/' | b'=' | b'#' | b'+' | b'%')
        || byte >= 0x80
}

/// Returns the end of a run of digits grouped by single spaces or hyphens.
fn run(bytes: &[u8], start: usize) -> usize {
    let mut end = start;
    while let Some(byte) = bytes.get(end) {
        let goes_on = byte.is_ascii_digit() || matches!(byte, b' ' | b'-') && is_digit_at(bytes, end + 1);
        // A run longer than any grouped card number is not one.
        if !goes_on || end - start > 64 {
            break;
        }
        end += 1;
    }
    end
}

/// Returns the card number in a run of groups: the whole run, or groups next to others of another length, as
/// after an amount.
fn card_in(bytes: &[u8], run: Range<usize>) -> Option<Range<usize>> {
    let mut groups = Vec::new();
    let mut begins = run.start;
    for at in run.clone() {
        if !bytes[at].is_ascii_digit() {
            groups.push(begins..at);
            begins = at + 1;
        }
    }
    groups.push(begins..run.end);
    let lengths: Vec<usize> = groups.iter().map(Range::len).collect();
    // Either undivided, or in a card's groups.
    let forms: [&[usize]; 4] = [&[4, 4, 4, 4], &[4, 6, 5], &[4, 6, 4], &[4, 4, 4, 1]];
    (0..groups.len()).find_map(|first| {
        let form = forms.iter().find(|form| lengths[first..].starts_with(form));
        let count = form.map_or(1, |form| form.len());
        let last = first + count;
        let beside = [first.checked_sub(1), Some(last)];
        let is_apart = beside.iter().flatten().all(|at| lengths.get(*at) != Some(&4));
        let range = groups[first].start..groups[last - 1].end;
        let mut marks = bytes[range.clone()].iter().filter(|byte| !byte.is_ascii_digit());
        let is_alike = marks.next().is_none_or(|mark| marks.all(|other| other == mark));
        (is_apart && is_alike && is_card(&bytes[range.clone()])).then_some(range)
    })
}

fn is_card(written: &[u8]) -> bool {
    let digits: Vec<u8> =
        written.iter().filter(|byte| byte.is_ascii_digit()).map(|byte| byte - b'0').collect();
    if !(FEWEST..=MOST).contains(&digits.len()) {
        return false;
    }
    // A repeated digit may pass the check as well.
    let is_varied = digits.iter().any(|digit| *digit != digits[0]);
    let beginning = digits[..4].iter().fold(0u32, |number, digit| number * 10 + u32::from(*digit));
    let is_issued = match (digits.len(), beginning) {
        // Visa.
        (13 | 16, 4000..=4999) => true,
        // Mastercard.
        (16, 5100..=5599 | 2221..=2720) => true,
        // American Express.
        (15, 3400..=3499 | 3700..=3799) => true,
        // Discover.
        (16, 6011 | 6440..=6599) => true,
        // JCB.
        (16, 3528..=3589) => true,
        // Diners Club.
        (14, 3000..=3059 | 3600..=3699 | 3800..=3999) => true,
        // UnionPay.
        (16, 6200..=6299) => true,
        _ => false,
    };
    is_varied && is_issued && luhn(&digits)
}

fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| match u32::from(*digit) << (at % 2) {
            double @ 10.. => double - 9,
            single => single,
        })
        .sum();
    sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn card_numbers_are_found_and_other_numbers_are_not() {
        let check = |text: &str, expected: &[&str]| {
            assert_eq!(find(text).map(|range| &text[range]).collect::<Vec<_>>(), expected, "{text}");
        };
        // The payment services' test numbers.
        check("4111111111111111", &["4111111111111111"]);
        check("card: 4242 4242 4242 4242, exp 12/29", &["4242 4242 4242 4242"]);
        check("5555-5555-5555-4444.", &["5555-5555-5555-4444"]);
        check("{\"pan\":\"378282246310005\"}", &["378282246310005"]);
        check("3782 822463 10005 and 6011111111111117", &["3782 822463 10005", "6011111111111117"]);
        check("3530111333300000\t30569309025904", &["3530111333300000", "30569309025904"]);
        check("2223003122003222;", &["2223003122003222"]);
        check("paid 12 5555 5555 5555 4444 on 2026", &["5555 5555 5555 4444"]);
        for text in [
            "4111111111111112",
            "4111 11111111 1111",
            "1732300000000000 microseconds",
            "id_4111111111111111",
            "0.4111111111111111",
            "4111111111111111.5",
            "41111111111111110000",
            "https://x.org/4111111111111111",
            "?id=4111111111111111",
            "0000000000000000",
            "978-3-16-148410-0",
            "+49 4111 1111 1111 1111",
            "2026-11-22 19:07:33",
            "550e8400-e29b-41d4-a716-446655440000",
            "4242 4242 4242 4242 4242",
            "",
        ] {
            check(text, &[]);
        }
    }

    proptest! {
        #[test]
        fn a_number_is_found_at_any_place(
            before in "[a-z1-9., -]{0,140}",
            number in prop::sample::select(vec!["4111111111111111", "4242 4242 4242 4242", "3782-822463-10005"]),
            behind in "[a-z1-9., -]{0,140}",
        ) {
            let text = format!("{before}, {number}, {behind}");
            let begin = before.len() + 2;
            prop_assert!(find(&text).any(|range| range == (begin..begin + number.len())), "{}", text);
        }
    }
}
