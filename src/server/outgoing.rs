//! Calls of the gateway's own, to a webhook and a collector: they follow no redirect and no proxy of the environment.

/// Makes its client when it is first needed: a machine that calls nobody needs no roots.
#[derive(Debug, Default)]
pub struct Caller(Option<reqwest::Client>);

impl Caller {
    /// The client; clones share its connections.
    ///
    /// # Errors
    /// Where it cannot be made, for want of roots; the next call tries again.
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
