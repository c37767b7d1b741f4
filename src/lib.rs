//! Touchline: the gateway in front of a football prediction data API. It authenticates paying customers by API key, holds
//! each key to its tier's endpoints and daily quota, reports the key's quota status in every answer, and forwards allowed requests.
//!
//! This page is the map of the code; `docs/architecture.md` has it with pictures, and the place where each behaviour is decided.
//!
//! # The life of a request
//!
//! A connection is accepted and decrypted by [`server`]. [`proxy::connection`] reads its requests, each head in one way only
//! ([`policy::http1`], or the `h2` library), and has each served by [`proxy::serve`]. The steps of the contract are
//! [`policy::admission`], a state machine without I/O. [`proxy::admission::admit`] drives it with the store, `touchline explain`
//! ([`policy::explanation`]) with answers that cost nothing:
//!
//! 1. the head is well-formed ([`proxy::well_formed`]); `/openapi.json` ([`policy::openapi`]) is answered here;
//! 2. there is an API key, and 3. it is known and usable ([`store::KeyTable`], [`policy::key_record`]); `/api/v1/usage`
//!    ([`proxy::usage`]) is answered here;
//! 4. the path is an endpoint, 5. it accepts the method, 6. the key's tier includes it ([`policy::endpoint`]);
//! 7. the key is within its tier's burst and concurrency, if it has such limits ([`proxy::rates`]);
//! 8. the quota day ([`policy::calendar`]) has room: one atomic charge ([`store::Store::charge`]).
//!
//! The end is a refusal, which [`policy::rejection`] turns into an answer, or a [`proxy::admission::Permit`], the only way to
//! an upstream. 9. A permitted request is rebuilt ([`proxy::forward`]) and sent to a
//! server of its upstream ([`proxy::upstreams`]), whose answer is passed on part by part ([`proxy::relay`]). If the gateway or the
//! upstream fails, the client gets the contract's 500 and a refund ([`store::Store::refund`]). Every answer to an authenticated
//! request carries the key's quota status ([`policy::rate_limit`]); every request is counted in the metrics and, unless a sample leaves
//! it out, has one line in the access log ([`telemetry`]).
//!
//! # The life of a configuration
//!
//! [`config`] reads `gateway.yaml` completely or reports all its problems; [`server`] builds a [`proxy::Snapshot`] from it, which a
//! request loads once and keeps. When the file changes or SIGHUP arrives, `server::reload` prepares another snapshot, including
//! every step that can fail, and exchanges one pointer; otherwise it reports why the file is refused.
//!
//! # Floors
//!
//! A module imports only from lower floors, and modules of one floor do not know each other; `tests/house` enforces it.
//!
//! | Floor | Module | Job |
//! |---|---|---|
//! | 5 | `main`, [`cli`] | arguments, subcommands, exit codes |
//! | 4 | [`server`] | composition: configuration → store, services, listeners; reload, drain, upgrade |
//! | 3 | [`proxy`] | the edge: the request path, forwarding, answers; connections to upstreams are made by pingora |
//! | 3 | [`admin`] | the admin listener: `/livez`, `/readyz`, `/config`, `/metrics`, the dashboard |
//! | 2 | [`config`] | `gateway.yaml`: a row for each key → checked `Config`; problems with positions |
//! | 2 | [`store`] | keys, counts, ledger: one trait, `embedded` and `redis` |
//! | 1 | [`telemetry`] | metric families, the last hour of them, access log, diagnostic log, traces |
//! | 0 | [`policy`] | the decisions of the contract as pure functions |
//! | 0 | [`clock`] | the wall clock as a value; periods, and background work that a panic does not end |
//!
//! # Invariants
//!
//! - Nothing reaches an upstream without a permit, and every permit was charged exactly once.
//! - Units granted minus refunded for a key and day never exceed its limit, on any number of gateways.
//! - A request that ends in a 500 costs nothing; a unit is refunded at most once, on the day it was charged.
//! - Each unit that stays charged had a request sent to an upstream.
//! - A revoked key is refused from the next request on every gateway that can reach the store: the charge itself compares record
//!   versions.
//! - An API key is in memory only while its request is served; its digest is stored, its id is logged and forwarded.
//! - No request waits without a timeout; every queue, cache, header and body has a limit; nothing that a client sends becomes a
//!   metric label.
//!
//! # Vocabulary
//!
//! *Key id*: the public name of an API key. *Key digest*: its SHA-256, all that is stored of the secret. *Key record*:
//! customer, tier, state, expiry, grants, version. *Quota day*: a calendar day of the configured zone. *Unit*: the measure of
//! an endpoint's cost, 1 unless configured. *Charge*: taking units, all or nothing. *Receipt*: proof of a charge. *Refund*:
//! returning its units. *Quota status*: limit, used and day of a key. *Permit*: the right to forward one request.
//! *Rejection*: the client's answer to a refused request. *Node*: one gateway process. *Producer*: the name in the counters of one
//! account of a node, of one key and day.

pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod policy;
pub mod proxy;
pub mod server;
pub mod store;
pub mod telemetry;
