//! Detects forms that ask for a secret, by their fields or by the message above them.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::is_secret_name;

/// Names for a secret in the major languages. Each also matches inside a word.
const NOUNS: &str = "password|passwd|passphrase|passcode|passwort|kennwort|zugangscode|contraseñ|contrasen|clave secreta\
    |clave de (?:acceso|api)|mot de passe|motdepasse|code secret|clé (?:d['’ ]?api|secrète|privée)|senha|palavra-passe\
    |chave (?:de api|secreta|privada)|parola d['’]ordine|chiave (?:api|segreta|privata)|wachtwoord|hasł|şifre|lösenord\
    |adgangskode|salasana|heslo|jelszó|парол|токен|секретн|密码|密碼|口令|密钥|令牌|验证码|パスワード|暗証番号|トークン|秘密鍵\
    |비밀번호|토큰|암호|인증번호|كلمة المرور|كلمة السر|पासवर्ड|api[ _-]?key|api[ _-]?schlüssel|access[ _-]?token\
    |auth(?:entication)?[ _-]?token|bearer[ _-]?token|refresh[ _-]?token|personal access token|private[ _-]?key|secret[ _-]?key\
    |client[ _-]?secret|credit[ _-]?card|debit[ _-]?card|card[ _-]?number|kreditkarte|kartennummer|carte (?:de crédit|bancaire)\
    |tarjeta de crédito|número de tarjeta|cartão de crédito|número do cartão|carta di credito|numero (?:di|della) carta\
    |номер карты|кредитн|信用卡|卡号|カード番号|카드번호|security code|one[ -]?time (?:code|password)|seed phrase\
    |recovery (?:phrase|code|key)|mnemonic phrase|social security number";

/// Names for a secret that match only as separate words.
const WORDS: [&str; 13] =
    ["pin", "cvv", "cvc", "cvv2", "otp", "totp", "2fa", "mfa", "tan", "ssn", "pwd", "passcode", "mnemonic"];

static NOUN: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("(?i){NOUNS}")));
/// A sentence that asks for a secret.
static ASKS: LazyLock<Regex> = LazyLock::new(|| {
    pattern(&format!(
        r"(?i)(?:\b(?:enter|type|provide|paste|give|input|submit|confirm|tell|share|supply|what is|your|gib|nenne|dein|ihr|eingeben|votre|ton|saisi|entrez|tu|su|ingres|introdu|sua|seu|digite|inser|il tuo|la tua|ваш|твой|введи)\p{{L}}*\b|你的|您的|输入|あなたの|入力|입력|당신의|أدخل)[^.!?。\n]{{0,40}}(?:{NOUNS})|(?:{NOUNS})[^.!?。\n]{{0,12}}(?:eingeben|を入力|を教え|입력|알려)"
    ))
});

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a test uses every pattern")
}

/// Returns the field of a form that asks for a secret, or `message` if the message asks for one.
pub fn asked_in(form: &Value, message: &str) -> Option<String> {
    let fields = form.get("properties").and_then(Value::as_object);
    let free: Vec<(&String, &Value)> =
        fields.into_iter().flatten().filter(|(_, field)| is_free(field)).collect();
    if let Some((name, _)) = free.iter().find(|(name, field)| field_asks(name, field)) {
        return Some((*name).clone());
    }
    (!free.is_empty() && ASKS.is_match(message)).then(|| "message".into())
}

/// Returns whether a field takes free text, rather than one of several choices.
fn is_free(field: &Value) -> bool {
    let has = |key: &str| field.get(key).is_some();
    let is_typed =
        matches!(field.get("type").and_then(Value::as_str), Some("string" | "number" | "integer") | None);
    let is_other =
        matches!(field.get("format").and_then(Value::as_str), Some("date" | "date-time" | "email" | "uri"));
    is_typed && !is_other && !["enum", "oneOf", "anyOf", "const"].into_iter().any(has)
}

fn field_asks(name: &str, field: &Value) -> bool {
    let text = |key: &str| field.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("format") == "password" || field.get("writeOnly") == Some(&Value::Bool(true)) {
        return true;
    }
    let is_called = |text: &str| {
        let spaced = spaced(text);
        let is_word = spaced.split_whitespace().any(|word| WORDS.contains(&word));
        // A bare `key` is a setting's.
        NOUN.is_match(&spaced) || NOUN.is_match(text) || is_word || is_secret_name(text) && spaced != "key"
    };
    is_called(name) || is_called(text("title")) || ASKS.is_match(text("description"))
}

/// Returns a name as lower-case words: `cardNumber`, `card_number` and `Card number` are the same.
fn spaced(name: &str) -> String {
    let mut out = String::new();
    let mut before = ' ';
    for c in name.chars() {
        if before.is_lowercase() && c.is_uppercase() {
            out.push(' ');
        }
        match c {
            '_' | '-' | '.' | ':' | '/' | '(' | ')' | ',' => out.push(' '),
            c => out.extend(c.to_lowercase()),
        }
        before = c;
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(field: &str, schema: &Value, message: &str) -> bool {
        asked_in(&json!({ "type": "object", "properties": { field: schema } }), message).is_some()
    }

    #[test]
    fn a_field_for_a_secret_is_seen_in_many_languages() {
        let text = json!({ "type": "string" });
        for name in [
            "password",
            "userPassword",
            "PASSWD",
            "api_key",
            "apiKey",
            "API-Key",
            "token",
            "github_token",
            "accessToken",
            "client_secret",
            "secret",
            "pin",
            "PIN",
            "cvv",
            "cardNumber",
            "card_number",
            "creditCard",
            "otp",
            "2fa",
            "passwort",
            "Kennwort",
            "kreditkarte",
            "mot_de_passe",
            "contraseña",
            "contrasena",
            "senha",
            "wachtwoord",
            "hasło",
            "şifre",
            "пароль",
            "密码",
            "验证码",
            "パスワード",
            "暗証番号",
            "비밀번호",
            "seed_phrase",
            "recovery code",
            "ssn",
        ] {
            assert!(asked(name, &text, "Please fill in"), "{name}");
        }
        assert!(asked("x", &json!({ "type": "string", "format": "password" }), ""));
        assert!(asked("x", &json!({ "type": "string", "writeOnly": true }), ""));
        assert!(asked("x", &json!({ "type": "string", "title": "Card number" }), ""));
        assert!(asked("x", &json!({ "type": "integer", "title": "PIN" }), ""));
        assert!(asked("x", &json!({ "type": "string", "description": "Enter your GitHub password" }), ""));
        for message in [
            "Please enter your password.",
            "What is your API key?",
            "Bitte gib dein Passwort ein",
            "Bitte das Passwort eingeben",
            "Entrez votre mot de passe",
            "Ingrese su contraseña",
            "Digite a sua senha",
            "Введите ваш пароль",
            "请输入您的密码",
            "パスワードを入力してください",
            "비밀번호를 입력하세요",
        ] {
            assert!(asked("answer", &text, message), "{message}");
        }
    }

    #[test]
    fn other_forms_pass() {
        let text = json!({ "type": "string" });
        for name in [
            "name",
            "city",
            "reason",
            "key",
            "max_tokens",
            "page_token_count",
            "email",
            "card_title",
            "business_card",
            "pinned",
            "spinner",
            "company",
            "expand",
            "tokenizer",
            "primary_key",
            "secretary",
            "shipping_address",
            "cvvs_seen",
        ] {
            assert!(!asked(name, &text, "Please fill in the form."), "{name}");
        }
        assert!(!asked("reset_password", &json!({ "type": "boolean" }), "Reset your password?"));
        assert!(!asked("token_kind", &json!({ "type": "string", "enum": ["a", "b"] }), "Which token?"));
        assert!(!asked("branch", &text, "Which branch? The password stays the same."));
        assert_eq!(asked_in(&json!({}), "Enter your password"), None);
    }
}
