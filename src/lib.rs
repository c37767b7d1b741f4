//! Touchline: the gateway in front of a football prediction data API. It lets paying customers in with an API key, holds
//! each key to its tier's endpoints and daily quota, tells every caller where they stand, and forwards what is allowed.
//!
//! This page is the map of the house; `docs/architecture.md` has it with pictures, and the place where each behaviour is decided.
//!
//! # The life of a request
//!
//! A connection is accepted and decrypted by [`server`]. [`proxy::connection`] reads its requests, each head in one way only
//! ([`policy::http1`], or the `h2` library), and has each served by [`proxy::serve`]. The steps of the contract are
//! [`policy::admission`], which asks [`proxy::admission::admit`] for what only the edge knows, as it asks `touchline explain`
//! ([`policy::explanation`]):
//!
//! 1. the head is well-formed ([`proxy::well_formed`]); `/openapi.json` ([`policy::openapi`]) leaves the path here;
//! 2. there is an API key, and 3. it is known and usable ([`store::KeyTable`], [`policy::key_record`]); `/api/v1/usage`
//!    ([`proxy::usage`]) leaves here;
//! 4. the path is an endpoint, 5. it takes the method, 6. the key's tier includes it ([`policy::endpoint`]);
//! 7. the key is within its tier's burst and concurrency, where it has such limits ([`proxy::rates`]);
//! 8. the quota day ([`policy::calendar`]) has room: one atomic charge ([`store::Store::charge`]).
//!
//! The end is a refusal, which [`policy::rejection`] turns into an answer, or a [`proxy::admission::Permit`], the only way to
//! an upstream. 9. A permitted request is rebuilt ([`proxy::forward`]) and sent to a
//! server of its upstream ([`proxy::upstreams`]), whose answer is passed on part by part ([`proxy::relay`]). If we or the upstream fail, the client gets the contract's 500 and
//! its units back ([`store::Store::refund`]). Every answer to an authenticated request carries its standing
//! ([`policy::rate_limit`]); every request leaves one line in the access log and its traces in the metrics
//! ([`telemetry`]).
//!
//! # The life of a configuration
//!
//! [`config`] reads `gateway.yaml` whole or tells all its problems; [`server`] makes of it a [`proxy::Snapshot`], which a
//! request loads once and keeps. When the file changes or SIGHUP comes, `server::reload` prepares another snapshot, with
//! everything that can fail, and exchanges one pointer; or says why not.
//!
//! # Floors
//!
//! A module imports only from lower floors, and siblings do not know each other; `tests/house` keeps it so.
//!
//! | Floor | Room | Job |
//! |---|---|---|
//! | 5 | `main`, [`cli`] | arguments, subcommands, exit codes |
//! | 4 | [`server`] | composition: configuration → store, services, listeners; reload, drain |
//! | 3 | [`proxy`] | the edge: the request path, forwarding, answers; connections to upstreams are pingora's |
//! | 3 | [`admin`] | the admin listener: `/livez`, `/readyz`, `/config`, `/metrics`, the dashboard |
//! | 2 | [`config`] | `gateway.yaml`: a row for each key → checked `Config`; problems with positions |
//! | 2 | [`store`] | keys, counts, ledger: one trait, `embedded` and `redis` |
//! | 1 | [`telemetry`] | metric families, the last hour of them, access log, diagnostic log |
//! | 0 | [`policy`] | every decision of the contract as a pure function |
//! | 0 | [`clock`] | the wall clock as a value |
//!
//! # Invariants
//!
//! - Nothing reaches an upstream without a permit, and every permit was charged exactly once.
//! - Units granted minus refunded for a key and day never exceed its limit, on any number of gateways.
//! - A request that ends in a 500 costs nothing; a unit is given back at most once, on the day it was charged.
//! - Each unit that stays charged had a request sent to an upstream.
//! - A key that was revoked is refused from the next request on, on every gateway that can reach the store: the charge itself
//!   compares record versions.
//! - An API key exists in memory only while its request is checked; stored, logged and forwarded is its digest or its id.
//! - No request waits without a timeout, and nothing that a client sends becomes a metric label.
//!
//! # Vocabulary
//!
//! *Key id*: the public name of an API key. *Key digest*: its SHA-256, all that is stored of the secret. *Key record*:
//! customer, tier, state, expiry, grants, version. *Quota day*: a calendar day of the configured zone. *Unit*: what an
//! endpoint costs, 1 unless configured. *Charge*: taking units, all or nothing. *Receipt*: proof of a charge. *Refund*:
//! giving its units back. *Standing*: limit, used and day of a key. *Permit*: the right to forward one request.
//! *Rejection*: what a client is told instead. *Node*: one gateway process. *Producer*: a node's name in the counters.

pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod policy;
pub mod proxy;
pub mod server;
pub mod store;
pub mod telemetry;
