//! The page that shows the cluster: one document, nothing from elsewhere.

use axum::{
    http::{HeaderName, HeaderValue, header::CONTENT_SECURITY_POLICY, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// `GET /`. The document holds no data: the script asks for it, with the token if there is one, and puts every word
/// of it into the page as text. Should that ever fail, the policy still lets no other script run.
pub(super) async fn page() -> Response {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let document = HTML.replace("{nonce}", &nonce).replace("{style}", STYLE).replace("{script}", SCRIPT);
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = ([(CONTENT_TYPE, "text/html; charset=utf-8")], document).into_response();
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}
