//! The training of a build by profile (`make pgo`): the roles of the comparison, one after the other, on the gateway `BINARY`.
//! Nothing is measured; the gateways are asked to end, and write their profiles.

use std::path::PathBuf;
use std::time::Duration;

use super::contender::Cast;
use super::kind::Kind;
use super::stage::Stage;
use super::{over_tls, saturate};

/// The training time of admitted requests, the purpose of a gateway; refused ones need less.
const ADMITTED: Duration = Duration::from_secs(8);
const REFUSED: Duration = Duration::from_secs(1);

/// Keeps the gateway busy.
///
/// # Panics
/// If `BINARY` does not name a gateway, or an answer is not the expected one.
pub async fn train() {
    let binary = PathBuf::from(std::env::var("BINARY").unwrap_or_default());
    assert!(binary.exists(), "BINARY={}: no such file", binary.display());
    let stage = Stage::set().await;
    let cast = Cast::of_build(&stage, &binary).await;
    for one in cast.those(&Kind::CLEAR) {
        eprintln!("training: {}", one.kind.name());
        let time = if one.kind.status() == 200 {
            ADMITTED
        } else {
            REFUSED
        };
        saturate(one, &stage, time).await;
    }
    for one in cast.those(&Kind::TLS) {
        eprintln!("training: {}", one.kind.name());
        over_tls(one, &stage);
    }
    cast.end();
}
