//! The paths that the gateway answers itself: the description of the API and a key's own usage.
//!
//! Both accept `GET` and `HEAD` and are never charged. No configured endpoint may have one of these paths.

use http::Method;

use super::rejection::Rejection;
use super::words::words;

words! {
    /// A path that the gateway answers itself; also its name in logs and metrics.
    pub enum OwnPath {
        /// `/openapi.json`: public, answered after step 1.
        Document = "/openapi.json",
        /// `/api/v1/usage`: answered after step 3.
        Usage = "/api/v1/usage",
    }
}

/// Accepts the method for an own path, or rejects it with the 405 that lists the accepted ones.
pub fn takes(method: &Method) -> Result<(), Rejection> {
    if method == Method::GET || method == Method::HEAD {
        Ok(())
    } else {
        let allow = "GET, HEAD".to_owned();
        Err(Rejection::MethodNotAllowed { allow })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_path_is_found_byte_for_byte() {
        for own in OwnPath::ALL {
            assert_eq!(OwnPath::of_str(own.as_str()), Some(own));
        }
        for other in [
            "/openapi.json/",
            "/OpenAPI.json",
            "/api/v1/usage/x",
            "/",
            "",
        ] {
            assert_eq!(OwnPath::of_str(other), None, "{other}");
        }
    }

    #[test]
    fn an_own_path_takes_get_and_head_only() {
        assert_eq!(takes(&Method::GET), Ok(()));
        assert_eq!(takes(&Method::HEAD), Ok(()));
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let refused = takes(&method).map_err(|rejection| rejection.code());
            assert_eq!(refused, Err("METHOD_NOT_ALLOWED"));
        }
    }
}
