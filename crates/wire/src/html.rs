//! The small pages of sign-ins: no script, one style, nothing from elsewhere.

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderValue, Response, StatusCode, header};
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("html.css");

/// Forms go to this gateway, which may lead on to a sign-in server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let digest = STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; frame-ancestors 'none'; \
         form-action 'self' https: http://localhost:* http://127.0.0.1:* http://[::1]:*"
    )
});

/// Returns a text as HTML shows it.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Returns a page. `head` and `body` are HTML.
pub fn page<B: From<String>>(status: StatusCode, title: &str, head: &str, body: &str) -> Response<B> {
    let title = escaped(title);
    let text = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} - Nonet</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">\
         {head}<style>{STYLE}</style></head><body><main><h1>{title}</h1>{body}</main></body></html>"
    );
    let mut response = Response::new(B::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    // With `no-referrer`, browsers would send the forms with `Origin: null`.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// Returns a page with one sentence, and a link.
pub fn message<B: From<String>>(title: &str, sentence: &str, link: Option<(&str, &str)>) -> Response<B> {
    page(StatusCode::OK, title, "", &sentence_and_link(sentence, link))
}

/// Returns a page that says why something was not done.
pub fn failure<B: From<String>>(
    status: StatusCode,
    title: &str,
    sentence: &str,
    again: Option<&str>,
) -> Response<B> {
    let link = again.map(|to| (to, "Try again"));
    page(status, title, "", &sentence_and_link(sentence, link))
}

/// Returns a page that leads on at once.
pub fn onward<B: From<String>>(to: &str, sentence: &str) -> Response<B> {
    let head = format!("<meta http-equiv=\"refresh\" content=\"0;url={}\">", escaped(to));
    page(StatusCode::OK, "Signed in", &head, &sentence_and_link(sentence, Some((to, "Go on"))))
}

fn sentence_and_link(sentence: &str, link: Option<(&str, &str)>) -> String {
    let link = link.map(|(to, label)| format!("<p><a href=\"{}\">{}</a></p>", escaped(to), escaped(label)));
    format!("<p>{}</p>{}", escaped(sentence), link.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_markup() {
        let page: Response<String> =
            failure(StatusCode::BAD_REQUEST, "<b>", "a & \"b\" <script>\u{7}", Some("/x?\"y"));
        let body = page.body();
        assert!(body.contains("<h1>&lt;b&gt;</h1><p>a &amp; &quot;b&quot; &lt;script&gt; </p>"), "{body}");
        assert!(body.contains("href=\"/x?&quot;y\"") && !body.contains("<script"), "{body}");
        let policy = page.headers()[header::CONTENT_SECURITY_POLICY].to_str().expect("text");
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    }
}
