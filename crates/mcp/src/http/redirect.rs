//! Decides whether to follow a redirect of a request with credentials. Such a request is redirected only within the origin that the
//! credentials are for. This is decided here and not on the executor, which cannot know which headers are credentials.

use http::{StatusCode, Uri, uri::Scheme};

/// How many redirects of one request are followed.
pub(super) const MOST: usize = 5;

/// The decision about a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RedirectDecision {
    /// The response is not a redirect, or does not say where to.
    Stay,
    /// Repeat the request at this URL.
    Go(String),
    /// A redirect that must not be followed. Holds the location without its query, for the error text.
    Refuse(String),
}

/// Decides about the response to a request from its status and `location`.
pub(super) fn decide(method: &str, from: &str, status: StatusCode, location: Option<&str>) -> RedirectDecision {
    let keeps_method = match status {
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => method != "POST",
        // Not followed for any method: 303 turns a POST into a GET without the message, and other statuses do not ask for a repetition.
        _ => false,
    };
    let Some(location) = location.filter(|_| status.is_redirection()) else { return RedirectDecision::Stay };
    let refuse = || {
        let shown = location.split(['?', '#']).next().unwrap_or_default().chars();
        RedirectDecision::Refuse(shown.filter(|letter| !letter.is_control()).take(super::SHOWN_BYTES).collect())
    };
    let Some(next) = from.parse().ok().and_then(|from| join(&from, location)) else { return refuse() };
    if keeps_method { RedirectDecision::Go(next) } else { refuse() }
}

/// The URL that a location refers to, if it has the same origin as `from`.
fn join(from: &Uri, location: &str) -> Option<String> {
    let location = location.split('#').next().unwrap_or_default();
    let scheme = from.scheme()?;
    let authority = from.authority()?;
    let path = if location.starts_with('/') && !location.starts_with("//") {
        location.to_owned()
    } else if location.contains(':') || location.starts_with("//") {
        let absolute = if location.starts_with("//") { format!("{scheme}:{location}") } else { location.to_owned() };
        let there: Uri = absolute.parse().ok()?;
        if origin(&there)? != origin(from)? {
            return None;
        }
        there.path_and_query()?.as_str().to_owned()
    } else {
        let directory = from.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        format!("{directory}/{location}")
    };
    // Keep the original authority, even if the location spells it differently.
    Some(format!("{scheme}://{authority}{path}"))
}

/// Scheme, host and port.
fn origin(uri: &Uri) -> Option<(&Scheme, String, u16)> {
    let scheme = uri.scheme()?;
    let default_port = if *scheme == Scheme::HTTPS { 443 } else { 80 };
    Some((scheme, uri.host()?.to_ascii_lowercase(), uri.port_u16().unwrap_or(default_port)))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::{RedirectDecision, decide};

    fn post(location: &str) -> RedirectDecision {
        decide("POST", "https://a.example/v1/mcp?k=1", StatusCode::TEMPORARY_REDIRECT, Some(location))
    }

    #[test]
    fn only_redirects_within_the_origin_are_followed() {
        for (location, to) in [
            ("/v1/mcp/", "/v1/mcp/"),
            ("mcp/?x=1#there", "/v1/mcp/?x=1"),
            ("https://A.example:443/new", "/new"),
            ("//a.example/new?x", "/new?x"),
            ("/\\b.example/", "/\\b.example/"),
        ] {
            assert_eq!(post(location), RedirectDecision::Go(format!("https://a.example{to}")), "{location}");
        }
        for location in [
            "http://a.example/v1/mcp",
            "https://b.example/v1/mcp",
            "https://a.example:444/",
            "https://a.example@b.example/",
            "https://a.example\\@b.example/",
            "//b.example/",
            "ftp://a.example/",
            "https:b.example/",
        ] {
            assert_eq!(post(location), RedirectDecision::Refuse(location.to_owned()), "{location}");
        }
        assert_eq!(post("https://b.example/p?secret=1"), RedirectDecision::Refuse("https://b.example/p".to_owned()));
    }

    #[test]
    fn a_redirect_that_would_turn_a_post_into_a_get_is_refused() {
        let from = "http://a.example/mcp";
        let found = |method| decide(method, from, StatusCode::FOUND, Some("/there"));
        assert_eq!(found("POST"), RedirectDecision::Refuse("/there".to_owned()));
        assert_eq!(found("GET"), RedirectDecision::Go("http://a.example/there".to_owned()));
        assert_eq!(decide("POST", from, StatusCode::TEMPORARY_REDIRECT, None), RedirectDecision::Stay);
        assert_eq!(decide("POST", from, StatusCode::OK, Some("/there")), RedirectDecision::Stay);
    }
}
