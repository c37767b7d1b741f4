//! What pingora would frame wrongly, mended in the last header of an answer before it is written.
//!
//! Where an upstream speaks HTTP/2, pingora says `Transfer-Encoding: chunked` after the hooks have run, and only the filters of its
//! modules are told that an answer ends with its header. A module is put into a request's session only where there is something to
//! mend: for others it costs nothing.

use std::any::Any;

use async_trait::async_trait;
use http::Version;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING};
use pingora::http::ResponseHeader;
use pingora::modules::http::{HttpModule, HttpModuleBuilder, HttpModules, Module};
use pingora::proxy::Session;

use super::encoder::Encoder;

/// Something to mend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mend {
    /// A client of HTTP/1.0 does not know chunks: the answer ends with the connection (RFC 9112 section 6.3).
    Chunks,
    /// A body that was to be compressed, and is not there.
    CodedNothing,
}

/// Mends what there is to mend in an answer that is about to be written, and compressed by `encoder` if there is one.
pub fn mend(session: &mut Session, answer: &ResponseHeader, encoder: Option<&Encoder>) {
    let mut mends = Vec::new();
    let old = session.req_header().version == Version::HTTP_10;
    if old && !answer.headers.contains_key(CONTENT_LENGTH) {
        mends.push(Mend::Chunks);
    }
    if encoder.is_some() && answer.version == Version::HTTP_2 {
        mends.push(Mend::CodedNothing);
    }
    if !mends.is_empty() {
        let mut modules = HttpModules::new();
        modules.add_module(Box::new(Mending(mends)));
        session.downstream_modules_ctx = modules.build_ctx();
    }
}

/// The module, and what makes it.
#[derive(Debug, Clone)]
struct Mending(Vec<Mend>);

impl HttpModuleBuilder for Mending {
    fn init(&self) -> Module {
        Box::new(self.clone())
    }
}

#[async_trait]
impl HttpModule for Mending {
    async fn response_header_filter(
        &mut self,
        header: &mut ResponseHeader,
        ends_here: bool,
    ) -> pingora::Result<()> {
        for mend in &self.0 {
            match mend {
                Mend::Chunks => header.remove_header(&TRANSFER_ENCODING),
                Mend::CodedNothing if ends_here => header.remove_header(&CONTENT_ENCODING),
                Mend::CodedNothing => None,
            };
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
