//! What pingora would frame wrongly, mended in the last header of an answer before it is written.
//!
//! Where an upstream speaks HTTP/2, pingora says `Transfer-Encoding: chunked` after the hooks have run, and only the filters of its
//! modules are told that an answer ends with its header. A module is put into a request's session only where there is something to
//! mend: for others it costs nothing.

use std::any::Any;

use async_trait::async_trait;
use http::header::{CONTENT_ENCODING, TRANSFER_ENCODING};
use pingora::http::ResponseHeader;
use pingora::modules::http::{HttpModule, HttpModuleBuilder, HttpModules, Module};
use pingora::proxy::Session;

/// Something to mend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mend {
    /// A client of HTTP/1.0 does not know chunks: the answer ends with the connection (RFC 9112 section 6.3).
    Chunks,
    /// A body that was to be compressed, and is not there.
    CodedNothing,
}

/// Mends these in the answer of this session.
pub fn mend(session: &mut Session, mends: Vec<Mend>) {
    let mut modules = HttpModules::new();
    modules.add_module(Box::new(Mending(mends)));
    session.downstream_modules_ctx = modules.build_ctx();
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
