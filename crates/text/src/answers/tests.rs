//! Tables: what people write, and what it says.

use serde_json::{Value, json};

use super::*;

fn says(answer: Value, expected: Decision) {
    assert_eq!(decision(&answer).decision, expected, "{answer}");
}

fn all_say(answers: &[&str], expected: Decision) {
    let wrong: Vec<(&str, Decision)> = answers
        .iter()
        .map(|answer| (*answer, decision(&json!(answer)).decision))
        .filter(|(_, decision)| *decision != expected)
        .collect();
    assert_eq!(wrong, [], "not {expected:?}");
}

#[test]
fn a_yes_is_a_yes_in_every_language() {
    all_say(
        &[
            "yes",
            "Yes",
            "YES!",
            "y",
            "yep",
            "Yeah.",
            "Yes, go ahead",
            "yes please",
            "Yes, please do.",
            "sure",
            "Sure!",
            "ok!",
            "OK",
            "okay",
            "o.k.",
            "Ok, do it",
            "Allow.",
            "allow",
            "allow once",
            "Allow once, please",
            "approve",
            "Approved!",
            "go ahead",
            "Go for it",
            "proceed",
            "sounds good",
            "looks good to me",
            "that's fine",
            "It's ok",
            "fine by me",
            "LGTM",
            "please do it",
            "yes yes yes",
            "yes, thank you",
            "Of course!",
            "I agree.",
            "Yes, once.",
            "yes, just this once",
            "ok then",
            "right",
            "right, go ahead",
            "**Yes**",
            "`allow`",
            "\"allow\"",
            "'yes'",
            "The user said yes",
            "user: yes",
            "The user approved it.",
            "User has approved this call",
            "+1",
            "👍",
            "👍🏽",
            "✅",
            "yes 👍",
            "Yes 🙂",
            "ＯＫ",
            "true",
            "allow_once",
            "Decision: allow",
        ],
        Decision::Yes,
    );
    all_say(
        &[
            // German
            "ja",
            "Ja!",
            "Ja, bitte",
            "ja klar",
            "ja, mach das",
            "Ja gerne, danke",
            "jawohl",
            "klar",
            "in Ordnung",
            "Einverstanden.",
            "natürlich",
            "natuerlich",
            "erlauben",
            "passt",
            "Ja, nur zu",
            "genehmigt",
            "na klar",
            "ja, einmal",
            // French
            "oui",
            "Oui, vas-y",
            "oui, s'il te plaît",
            "d'accord",
            "D’accord !",
            "bien sûr",
            "ok, allez-y",
            "j’autorise",
            "autoriser",
            // Spanish
            "sí",
            "si",
            "Sí, adelante",
            "sí, por favor",
            "claro que sí",
            "vale",
            "de acuerdo",
            "¡Sí!",
            "está bien",
            "apruebo",
            // Portuguese
            "sim",
            "Sim, pode fazer",
            "claro",
            "com certeza",
            "sim, por favor",
            "pode",
            // Italian
            "sì",
            "Sì, va bene",
            "certo",
            "va bene",
            "d'accordo",
            "sì grazie",
            "procedi",
            // Dutch
            "ja hoor",
            "ga je gang",
            "Ja, ga door",
            "is goed",
            "akkoord",
            "oké",
            // Russian and Ukrainian
            "да",
            "Да, конечно",
            "да, давай",
            "хорошо",
            "разрешаю",
            "Да, пожалуйста.",
            "можно",
            // Chinese
            "是",
            "是的",
            "好",
            "好的",
            "可以",
            "好的，请继续",
            "好的请继续",
            "同意",
            "允许",
            "當然可以",
            "行",
            "可以，谢谢",
            "确认！",
            // Japanese
            "はい",
            "はい、お願いします",
            "はいお願いします",
            "うん",
            "許可します",
            "OKです",
            "どうぞ",
            "了解です。",
            // Korean
            "네",
            "예",
            "네, 진행해 주세요",
            "좋아요",
            "허용",
            "그래",
            "네 부탁합니다",
            // Turkish
            "evet",
            "Evet, lütfen",
            "tamam",
            "EVET",
            "onaylıyorum",
            "tabii ki",
            "Olur!",
            // Polish and Czech
            "jasne",
            "oczywiście",
            "Tak, zgadzam się",
            "zgadzam się",
            "ano",
            // Swedish, Danish and Norwegian
            "ja tack",
            "självklart",
            "selvfølgelig",
        ],
        Decision::Yes,
    );
}

#[test]
fn a_yes_from_now_on_is_one() {
    all_say(
        &[
            "Always allow",
            "allow_for_session",
            "allow for this session",
            "yes, always",
            "Yes, don't ask again",
            "Allow for the session.",
            "yes, for this session",
            "ja, immer",
            "immer erlauben",
            "oui, toujours",
            "sí, siempre",
            "sì, sempre",
            "ja, altijd",
            "да, всегда",
            "始终允许",
            "항상 허용",
            "her zaman izin ver",
            "zawsze zezwalaj",
        ],
        Decision::Always,
    );
}

#[test]
fn a_yes_to_everything_is_one() {
    all_say(
        &[
            "yes to all",
            "Yes, to all of them",
            "allow all",
            "approve all",
            "ja, alle",
            "Ja, zu allen",
            "alle erlauben",
            "oui, à tous",
            "sí a todo",
            "sì, tutti",
            "да, все",
            "全部允许",
        ],
        Decision::All,
    );
    says(json!("yes to all, always"), Decision::Always);
}

#[test]
fn a_no_is_a_no_in_every_language() {
    all_say(
        &[
            "no",
            "No.",
            "NO!",
            "n",
            "nope",
            "nah",
            "no thanks",
            "No, thank you",
            "No way",
            "never",
            "deny",
            "Denied.",
            "reject it",
            "don't",
            "Don't!",
            "please don't",
            "do not do it",
            "don't do it",
            "cancel",
            "cancel it",
            "stop",
            "not now",
            "not yet",
            "not allowed",
            "rather not",
            "I'd rather not",
            "of course not",
            "absolutely not",
            "no no no",
            "no, don't",
            "The user denied it",
            "the user said no",
            "👎",
            "❌",
            "-1",
            "false",
            "do not allow it",
            "nein",
            "Nein, danke",
            "ne",
            "nö",
            "auf keinen Fall",
            "lieber nicht",
            "ablehnen",
            "bitte nicht",
            "natürlich nicht",
            "non",
            "Non merci",
            "jamais",
            "refuser",
            "surtout pas",
            "bien sûr que non",
            "no gracias",
            "nunca",
            "claro que no",
            "rechazar",
            "não",
            "Não, obrigado",
            "nao",
            "de jeito nenhum",
            "no grazie",
            "assolutamente no",
            "rifiuta",
            "nee",
            "nee, bedankt",
            "liever niet",
            "doe maar niet",
            "нет",
            "Нет, спасибо",
            "не надо",
            "нельзя",
            "конечно нет",
            "ні",
            "不",
            "不行",
            "不要",
            "不可以",
            "否",
            "拒绝",
            "取消",
            "不用了，谢谢",
            "いいえ",
            "だめです",
            "やめてください",
            "拒否します",
            "아니요",
            "아니",
            "안 돼요",
            "거부",
            "하지 마세요",
            "hayır",
            "HAYIR",
            "Hayır, teşekkürler",
            "olmaz",
            "reddet",
            "nie",
            "Nie, dziękuję",
            "nigdy",
            "nej tack",
            "nej",
            "nei",
        ],
        Decision::No,
    );
}

#[test]
fn what_may_be_either_is_neither() {
    all_say(
        &[
            "",
            "  ",
            "?",
            "no problem",
            "No worries!",
            "no objections",
            "no idea",
            "no doubt",
            "no need",
            "no changes",
            "not sure",
            "I'm not sure",
            "don't know",
            "I don't mind",
            "don't wait",
            "never mind",
            "maybe",
            "later",
            "hmm",
            "whatever you like",
            "up to you",
            "nobody",
            "nothing",
            "okra",
            "yesterday",
            "okapi",
            "nonet",
            "northern",
            "notable",
            "surely not",
            "yes but only the first file",
            "Yes, but make it shorter",
            "yes, only the first one",
            "yes if it is safe",
            "yes except for b.txt",
            "ok cancel it",
            "OK, stop",
            "yes? no",
            "yes?",
            "ok?",
            "no?",
            "yes and no",
            "yes no",
            "no yes",
            "no, yes",
            "No, go ahead",
            "no, wait, yes",
            "no sorry, I meant yes",
            "sure, why not",
            "fine, whatever",
            "no complaints",
            "no further questions",
            "no reason to wait",
            "do not cancel",
            "don't cancel it",
            "please don't cancel",
            "no, don't stop",
            "no, don't cancel it",
            "never deny",
            "never send mails to Bob",
            "cancel is not necessary",
            "bitte nicht abbrechen",
            "не надо отменять",
            "нет возражений",
            "no veo problema",
            "non vedo problemi",
            "não vejo problema",
            "nie widzę problemu",
            "不要取消",
            "不要发送",
            "不介意",
            "キャンセルしないで",
            "취소 하지 마세요",
            "iptal etme",
            "go away",
            "this is not allowed",
            "is it ok",
            "can I say no",
            "allow it only for a.txt",
            "all",
            "allow all but the last",
            "yes to all except b.txt",
            "always ask",
            "always deny",
            "not always",
            "I would like to know more",
            "what does it do?",
            "yes 🤷",
            "👍👎",
            "🤷",
            "stop asking, just do it",
            "2",
            "1",
            "the user did not answer",
            "The user has not approved this",
            "ja aber nur die erste",
            "ja, aber",
            "ja nein",
            "jein",
            "kein Problem",
            "weiß nicht",
            "vielleicht",
            "Ja, wenn es sicher ist",
            "oui mais",
            "oui, sauf le premier",
            "pas de problème",
            "peut-être",
            "oui et non",
            "je ne sais pas",
            "sí, pero",
            "no hay problema",
            "no pasa nada",
            "no sé",
            "no importa",
            "si es barato",
            "sim, mas",
            "não há problema",
            "não sei",
            "sì, ma",
            "non c'è problema",
            "non so",
            "ja maar",
            "geen probleem",
            "да, но",
            "нет проблем",
            "да нет",
            "не знаю",
            "没问题",
            "不知道",
            "不好意思",
            "好的，但是只要第一个",
            "可能吧",
            "いいです",
            "結構です",
            "大丈夫です",
            "はい、でも",
            "わかりません",
            "괜찮아요",
            "네, 하지만",
            "글쎄요",
            "sorun değil",
            "evet ama",
            "bilmiyorum",
            "nie ma problemu",
            "tak, ale",
            "nie wiem",
        ],
        Decision::Unclear,
    );
    let long = format!("yes {}", "please ".repeat(10_000));
    all_say(&[&long, &"👍".repeat(10_000), &"好".repeat(10_000)], Decision::Unclear);
    for answer in [json!(null), json!(1), json!(0), json!([]), json!(["yes", "no"]), json!({})] {
        says(answer, Decision::Unclear);
    }
}

#[test]
fn what_depends_on_somebody_else_is_no_yes() {
    all_say(
        &[
            "Yes, once the client has approved",
            "ok, once the user confirms",
            "Sure, once they have confirmed",
            "yes once I have confirmed it",
            "accept it once they agree",
            "proceed once approved",
            "It is ok once the customer says yes",
            "sí, una vez aprobado",
            "Have the user approve it",
            "Please confirm",
            "please approve",
            "Please, confirm.",
            "bitte bestätigen",
            "请确认",
            "Do you approve this call",
            "Has the customer approved it",
            "Right, then call the client",
            "always",
            "immer",
            "toujours",
            "Don't ask me again!",
            "do not ask again",
            "Да ладно",
            "Так, сейчас...",
            "так",
            "行了",
            "可以了",
            "对了",
            "y ahora",
            "Tak",
            "yeah right",
            "Yeah, right.",
            "All good, thanks",
            "That's fine, thanks",
            "Alles gut, danke",
        ],
        Decision::Unclear,
    );
}

#[test]
fn what_may_agree_is_no_refusal() {
    all_say(
        &[
            "No, that's not a problem",
            "No, none",
            "No, nothing",
            "Nein, keine Einwände",
            "nein nein, mach ruhig",
            "nein das ist zu lang",
            "Non, aucun problème",
            "No, no pasa nada, hazlo ya",
            "No, está bien así",
            "不，没有意见",
            "いいえ、問題ありませんので進めてください",
            "いいえ問題ありませんので進めてください",
            "нет, всё хорошо, делай уже",
            "Nope, I see no issue. Do it.",
            "nah it's cool, go for it buddy",
            "Don't change it, send it.",
            "Don't change anything, just do it",
            "no - send it to Bob instead",
            "no, why?",
            "no, why not?",
            "no, not sure about that",
            "Keep it",
            "Keep it as it is",
            "Use it",
            "Add it",
            "Remove it",
            "make it happen",
            "Move ahead",
            "Put it live",
            "сделай",
            "Mach schon",
            "Don't change a thing. Perfect.",
            "Use the formal form",
            "too long, but ok",
        ],
        Decision::Unclear,
    );
}

#[test]
fn a_no_with_more_to_it_is_asked_again() {
    all_say(
        &[
            "no, make it shorter",
            "No, too long.",
            "No, use the blue one instead",
            "no - to Bob instead",
            "Nein, kürzer bitte",
            "non, trop long",
            "no, es demasiado largo",
            "нет, слишком длинно",
            "不，太长了",
            "不行，太长了",
            "いいえ長すぎます",
            "deny: the amount is wrong",
            "hayır, çok uzun",
            "nie, za długie",
        ],
        Decision::Unclear,
    );
    for answer in ["no", "No thanks!", "nein danke", "deny it"] {
        assert_eq!(decision(&json!(answer)), UserAnswer::from(Decision::No), "{answer}");
    }
    for (answer, expected) in [("no, Anna", true), ("nein, danke", true), ("Noah", false), ("yes", false)] {
        assert_eq!(begins_with_no(&json!(answer)), expected, "{answer}");
    }
}

#[test]
fn what_is_to_be_different_is_no_decision() {
    all_say(
        &[
            "make it shorter",
            "Use the longer one instead",
            "Please shorten the second part",
            "kürzer bitte",
            "too long",
            "trop long",
            "сделай короче",
        ],
        Decision::Unclear,
    );
}

#[test]
fn no_phrase_means_two_things() {
    use super::decision::{is_aside, listed, spoken};

    for (table, expected) in [
        (phrases::YES, Decision::Yes),
        (phrases::YES_ALONE, Decision::Yes),
        (phrases::ALWAYS, Decision::Always),
        (phrases::ALL, Decision::All),
        (phrases::NO, Decision::No),
    ] {
        for phrase in listed(table) {
            assert_eq!((spoken(&phrase), is_aside(&phrase)), (expected, false), "{phrase}");
        }
    }
}

#[test]
fn an_object_says_it_with_keys() {
    for (answer, expected) in [
        (json!({ "decision": "allow" }), Decision::Yes),
        (json!({ "Decision": "Allow." }), Decision::Yes),
        (json!({ "answer": "yes" }), Decision::Yes),
        (json!({ "answer": { "decision": "ja" } }), Decision::Yes),
        (json!({ "approved": true }), Decision::Yes),
        (json!({ "approved": false }), Decision::No),
        (json!({ "denied": true }), Decision::No),
        (json!({ "decision": "allow_for_session" }), Decision::Always),
        (json!({ "decision": "deny", "feedback": "too much" }), Decision::No),
        (json!({ "action": "accept", "content": { "decision": "allow" } }), Decision::Yes),
        (json!({ "action": "accept", "content": { "decision": "deny" } }), Decision::No),
        (json!("{\"decision\": \"allow\"}"), Decision::Yes),
        (json!(["allow"]), Decision::Yes),
        (json!(true), Decision::Yes),
        (json!({ "decision": "allow", "feedback": "thanks, well done" }), Decision::Yes),
        (json!({ "decision": "allow", "feedback": null, "token": "ask-1" }), Decision::Yes),
        (json!({ "decision": "allow", "answer": "deny" }), Decision::Unclear),
        (json!({ "decision": "allow", "only": "a.txt" }), Decision::Unclear),
        (json!({ "decision": "allow", "feedback": "but only the first" }), Decision::Unclear),
        (json!({ "decision": "allow", "feedback": "not for b.txt, only a.txt" }), Decision::Unclear),
        (json!({ "decision": "allow", "comment": "after 5pm" }), Decision::Unclear),
        (json!({ "decision": "yes", "feedback": "the target must be b.txt" }), Decision::Unclear),
        (json!({ "decision": "approve", "feedback": "but not yet" }), Decision::Unclear),
        (json!({ "decision": "approve", "feedback": "go ahead" }), Decision::Yes),
        (json!({ "decision": "maybe" }), Decision::Unclear),
        (json!({ "decision": 1 }), Decision::Unclear),
        (json!({ "denied": false }), Decision::Unclear),
        (json!({ "feedback": "nice" }), Decision::Unclear),
        (json!({ "content": "Dear all" }), Decision::Unclear),
    ] {
        says(answer, expected);
    }
    let said = decision(&json!({ "decision": "approve", "content": "Dear friends", "feedback": "Thanks!" }));
    let (content, feedback) = (Some("Dear friends".into()), Some("Thanks!".into()));
    assert_eq!(said, UserAnswer { decision: Decision::Yes, content, feedback });
    says(
        json!({ "decision": "approve", "content": "Dear friends", "feedback": "warmer" }),
        Decision::Unclear,
    );
    says(json!({ "decision": "no, too long" }), Decision::Unclear);
}

/// `None`: not understood.
fn chosen(choices: &[&str], answer: Value, expected: Option<&[&str]>) {
    let owned: Vec<String> = choices.iter().map(ToString::to_string).collect();
    for many in [false, true] {
        let taken = choose(&answer, &owned, many);
        let taken = taken.map(|taken| taken.iter().map(|at| choices[*at]).collect::<Vec<_>>());
        // Text that takes one choice takes the same choice where several are allowed.
        let expected = expected.filter(|expected| many || expected.len() == 1);
        assert_eq!(taken.as_deref(), expected, "{choices:?} {answer} {many}");
    }
}

#[test]
fn a_choice_is_its_text_its_number_or_its_beginning() {
    let colours = &["Red", "Green", "Dark blue", "Dark red"];
    for (answer, expected) in [
        (json!("Red"), Some("Red")),
        (json!("red"), Some("Red")),
        (json!(" RED. "), Some("Red")),
        (json!("**green**"), Some("Green")),
        (json!("2"), Some("Green")),
        (json!(2), Some("Green")),
        (json!("2."), Some("Green")),
        (json!("#3"), Some("Dark blue")),
        (json!("option 3"), Some("Dark blue")),
        (json!("number 2, please"), Some("Green")),
        (json!("g"), Some("Green")),
        (json!("gr"), Some("Green")),
        (json!("dark b"), Some("Dark blue")),
        (json!("dark blue please"), Some("Dark blue")),
        (json!("Yes, green"), None),
        (json!("the red one"), None),
        (json!("I'd like the green one, thanks"), None),
        (json!({ "answer": "green" }), Some("Green")),
        (json!({ "choice": 2 }), Some("Green")),
        (json!(["green"]), Some("Green")),
        (json!("dark"), None),
        (json!("0"), None),
        (json!("5"), None),
        (json!("-1"), None),
        (json!("1.5"), None),
        (json!("yellow"), None),
        (json!("blue"), None),
        (json!("yes"), None),
        (json!("not red"), None),
        (json!("red or green"), None),
        (json!(""), None),
        (json!(null), None),
        (json!({ "red": true }), None),
        (json!(["yellow"]), None),
    ] {
        let expected = expected.map(|one| vec![one]);
        chosen(colours, answer, expected.as_deref());
    }
    // Text goes before numbers.
    chosen(&["3", "2", "1"], json!("3"), Some(&["3"]));
    chosen(&["3", "2", "1"], json!(1), Some(&["1"]));
    chosen(&["5 files", "10 files"], json!("1"), Some(&["5 files"]));
    chosen(&["2 files", "10 files"], json!("2"), None);
    chosen(&["C", "C++", "C#"], json!("C++"), Some(&["C++"]));
    chosen(&["north", "south"], json!("no"), None);
    chosen(&["Next", "Previous"], json!("n"), Some(&["Next"]));
    chosen(&["Yesterday", "Today"], json!("yes"), None);
    let cities = &["Paris", "London", "New York"];
    for (answer, expected) in [
        (json!("No. 2"), Some("London")),
        (json!("no 2"), Some("London")),
        (json!("Nr. 2"), Some("London")),
        (json!("2. London"), Some("London")),
        (json!("3) New York"), Some("New York")),
        (json!("option 2: London"), Some("London")),
        (json!("2nd"), Some("London")),
        (json!("the second"), None),
        (json!("the third one, please"), None),
        (json!(2.0), Some("London")),
        (json!("2. Paris"), None),
        (json!("no, London"), None),
        (json!("no, 2"), None),
        (json!("2 of them"), None),
    ] {
        let expected = expected.map(|one| vec![one]);
        chosen(cities, answer, expected.as_deref());
    }
    chosen(&["Version 2", "Version 1"], json!("1"), None);
    chosen(&["north", "south"], json!("nor"), Some(&["north"]));
    chosen(&["北京", "上海"], json!("上海"), Some(&["上海"]));
    chosen(&["Zürich", "Genf"], json!("zurich"), Some(&["Zürich"]));
    chosen(&["same", "same."], json!("SAME"), None);
}

#[test]
fn a_yes_chooses_the_only_choice_that_says_so() {
    chosen(&["Yes", "No"], json!("ja, gerne"), Some(&["Yes"]));
    chosen(&["Yes", "No"], json!("ok!"), Some(&["Yes"]));
    chosen(&["Yes", "No"], json!("no thanks"), Some(&["No"]));
    chosen(&["Approve", "Reject"], json!("👎"), Some(&["Reject"]));
    chosen(&["Approve", "Reject"], json!("no problem"), None);
    chosen(&["Approve", "Reject"], json!("yes, but"), None);
    chosen(&["Allow once", "Always allow", "Deny"], json!("yes"), None);
    chosen(&["Allow once", "Always allow", "Deny"], json!("always"), Some(&["Always allow"]));
    chosen(&["Allow once", "Always allow", "Deny"], json!("nein"), Some(&["Deny"]));
}

#[test]
fn several_choices_come_as_a_list_or_in_words() {
    let fruit = &["apple", "pear", "plum", "salt, pepper", "black and white"];
    for (answer, expected) in [
        (json!(["apple", "plum"]), vec!["apple", "plum"]),
        (json!("[\"apple\", \"plum\"]"), vec!["apple", "plum"]),
        (json!([3, 1]), vec!["plum", "apple"]),
        (json!("apple, plum"), vec!["apple", "plum"]),
        (json!("Apple and plum"), vec!["apple", "plum"]),
        (json!("apple, pear and plum"), vec!["apple", "pear", "plum"]),
        (json!("apple, pear, and plum"), vec!["apple", "pear", "plum"]),
        (json!("apple und plum"), vec!["apple", "plum"]),
        (json!("1 and 3"), vec!["apple", "plum"]),
        (json!("1,3"), vec!["apple", "plum"]),
        (json!("1 3"), vec!["apple", "plum"]),
        (json!("1, 3 and 2, please"), vec!["apple", "plum", "pear"]),
        (json!("apple; apple; plum"), vec!["apple", "plum"]),
        (json!({ "choices": ["pear", "plum"] }), vec!["pear", "plum"]),
        (json!("black and white, apple"), vec!["black and white", "apple"]),
        (json!("all"), fruit.to_vec()),
        (json!("Alle"), fruit.to_vec()),
        (json!("none"), vec![]),
        (json!([]), vec![]),
    ] {
        chosen(fruit, answer, Some(&expected));
    }
    chosen(fruit, json!("salt, pepper"), Some(&["salt, pepper"]));
    chosen(fruit, json!("black and white"), Some(&["black and white"]));
    for answer in [
        json!("apple, mango"),
        json!("p"),
        json!("1, 9"),
        json!("1 9"),
        json!(["apple", "mango"]),
        json!(","),
        json!("and"),
    ] {
        chosen(fruit, answer, None);
    }
}

fn form() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": { "type": "string", "minLength": 2 },
            "days": { "type": "integer", "minimum": 1 },
            "rain": { "type": "boolean" },
            "class": { "type": "string", "enum": ["first", "second"] },
            "meals": { "type": "array", "items": { "type": "string", "enum": ["veg", "fish", "meat"] } },
            "seat": { "type": "string", "oneOf": [{ "const": "w", "title": "Window" }, { "const": "a", "title": "Aisle" }] },
        },
        "required": ["city"],
    })
}

#[test]
fn a_form_is_read_against_its_schema() {
    let check = |answer: Value, expected: Value| {
        let read = fields(&answer, &form());
        assert_eq!(read.clone().map(Value::Object), Ok(expected), "{answer}: {read:?}");
    };
    check(json!({ "city": "Bern" }), json!({ "city": "Bern" }));
    check(json!({ "City": "Bern", "days": "3" }), json!({ "city": "Bern", "days": 3 }));
    check(json!("{\"city\": \"Bern\"}"), json!({ "city": "Bern" }));
    check(json!({ "answer": { "city": "Bern" } }), json!({ "city": "Bern" }));
    check(json!({ "action": "accept", "content": { "city": "Bern" } }), json!({ "city": "Bern" }));
    check(json!("Bern"), json!({ "city": "Bern" }));
    check(
        json!("City: Bern\ndays: 3\n\nmeals: veg, fish\nrain: no"),
        json!({ "city": "Bern", "days": 3, "meals": ["veg", "fish"], "rain": false }),
    );
    check(json!("Bern: the old town"), json!({ "city": "Bern: the old town" }));
    check(json!({ "city": "Bern", "rain": "ja" }), json!({ "city": "Bern", "rain": true }));
    check(json!({ "city": "Bern", "rain": "No, thanks" }), json!({ "city": "Bern", "rain": false }));
    check(json!({ "city": "Bern", "class": "FIRST" }), json!({ "city": "Bern", "class": "first" }));
    check(json!({ "city": "Bern", "class": 2 }), json!({ "city": "Bern", "class": "second" }));
    check(
        json!({ "city": "Bern", "meals": "veg and fish" }),
        json!({ "city": "Bern", "meals": ["veg", "fish"] }),
    );
    check(json!({ "city": "Bern", "seat": "window" }), json!({ "city": "Bern", "seat": "w" }));
    let only = json!({ "type": "object", "properties": { "sure": { "type": "boolean" } } });
    assert_eq!(fields(&json!("yes please"), &only).map(Value::Object), Ok(json!({ "sure": true })));
    let own = json!({ "type": "object", "properties": { "answer": { "type": "string" } } });
    assert_eq!(fields(&json!({ "answer": "a" }), &own).map(Value::Object), Ok(json!({ "answer": "a" })));
}

#[test]
fn a_form_that_does_not_fit_is_told_why() {
    let check = |answer: Value, part: &str| {
        let fault = fields(&answer, &form()).expect_err("it does not fit");
        assert!(fault.contains(part), "{answer}: {fault}");
    };
    check(json!({ "days": 3 }), "\"city\" is a required property");
    check(json!({ "city": "Bern", "days": 0 }), "less than the minimum");
    check(json!({ "city": "Bern", "days": "three" }), "days: \"three\"");
    check(json!({ "city": "Bern", "class": "third" }), "class: \"third\"");
    check(json!({ "city": "Bern", "rain": "maybe" }), "rain: \"maybe\"");
    check(json!("B"), "city");
    let two =
        json!({ "type": "object", "properties": { "a": { "type": "string" }, "b": { "type": "string" } } });
    assert!(fields(&json!("x"), &two).is_err_and(|fault| fault.contains("a, b")));
}
