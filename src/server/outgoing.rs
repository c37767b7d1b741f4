//! The gateway's own calls to a webhook and a collector, which follow no redirect and use no proxy of the environment.

/// An HTTP client that is made at its first use, so that a gateway without such calls needs no root certificates.
#[derive(Debug, Default)]
pub struct OutgoingClient(Option<reqwest::Client>);

impl OutgoingClient {
    /// The client; clones share its connections.
    ///
    /// # Errors
    /// If the client cannot be made because root certificates are missing; the next call tries again.
    pub fn client(&mut self) -> Result<reqwest::Client, reqwest::Error> {
        let client = match self.0.take() {
            Some(client) => client,
            None => reqwest::Client::builder()
                .user_agent(concat!("touchline/", env!("CARGO_PKG_VERSION")))
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .build()?,
        };
        Ok(self.0.insert(client).clone())
    }
}

/// A failed call with its causes, without the URL, which may contain a secret.
pub fn shown(error: reqwest::Error) -> String {
    let error = error.without_url();
    let first: &dyn std::error::Error = &error;
    let causes = std::iter::successors(Some(first), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
