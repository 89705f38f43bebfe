use serde_json::json;

use super::*;

#[test]
fn the_oldest_make_room_and_are_counted() {
    let mut queue = Queue::default();
    (0..MAX_WAITING + 2).for_each(|n| queue.push(n.to_string()));
    assert_eq!((queue.waiting.len(), queue.lost), (MAX_WAITING, 2));
    assert_eq!(queue.waiting.front().map(String::as_str), Some("2"));
}

#[test]
fn a_notice_that_is_too_long_loses_its_long_members() {
    let short = json!({ "kind": "task_ended", "n": 1 });
    assert_eq!(written(&short), short.to_string());
    let long = json!({ "kind": "watch_fired", "value": "x".repeat(MAX_NOTICE), "ref": "r-1" });
    assert_eq!(written(&long), json!({ "shortened": true, "kind": "watch_fired", "ref": "r-1" }).to_string());
}
