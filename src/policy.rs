//! The pure core: every decision of the contract as a function over values.
//!
//! Nothing here is async, reads a clock, takes a lock or writes a log line. The rooms, in the order in which a request
//! meets them:
//!
//! | Room | Decides |
//! |---|---|
//! | [`admission`] | the order of the steps, what they need, and how a request ends (steps 1 to 8) |
//! | [`http1`] | heads and bodies of HTTP/1, read in one way only (step 1) and written |
//! | [`http2`] | how much control traffic an HTTP/2 connection may send |
//! | [`http2_memory`] | the memory of an HTTP/2 connection's requests |
//! | [`target`] | whether the request target is unambiguous (step 1) |
//! | [`server_name`] | which certificate a client gets |
//! | [`proxy_header`] | the header that a proxy sends before a connection's first byte |
//! | [`forwarded`] | the client behind trusted proxies |
//! | [`redirect`] | where a request without TLS is redirected |
//! | [`address`] | the networks that contain a client's address, and the address by which it is counted |
//! | [`api_key`] | the shape, checksum and digest of an API key (steps 2 and 3) |
//! | [`key_record`] | whether a key may be used now (step 3), and its limit for a day |
//! | [`lifecycle`] | the result of a change of a key, and the access that it ends |
//! | [`audit`] | the audit trail's entry for a change |
//! | [`billing`] | which days of a key's month are billed, for which tier and how much |
//! | [`endpoint`] | which endpoint a path is, its methods and tiers (steps 4 to 6) |
//! | [`enforcement`] | whether the limits of a tier refuse or only count (steps 6 to 8) |
//! | [`explanation`] | why the steps would admit or refuse a request |
//! | [`octets`] | sets of octets for grammars |
//! | [`json`] | members of JSON objects, written without a map |
//! | [`header_pattern`] | which headers operators do not want forwarded |
//! | [`own_header`] | which request headers are not forwarded as sent |
//! | [`own_path`] | which paths the gateway answers itself |
//! | [`token_bucket`] | how often a key may send requests |
//! | [`calendar`] | which quota day an instant belongs to (step 8) |
//! | [`clock_trust`] | whether the wall clock can be relied on for irreversible actions |
//! | [`choice`] | which server of an upstream gets a request |
//! | [`server_health`] | whether a server of an upstream gets requests |
//! | [`caching`] | who may cache an answer |
//! | [`compression`] | the content coding of an answer |
//! | [`quota`] | how units are granted, acknowledged and refunded (step 8) |
//! | [`threshold_event`] | the shares of its limit that a key has reached, and the events that report them |
//! | [`nearest`] | which keys are nearest to their limits |
//! | [`store_settings`] | the settings of the stores, and when a day of the ledger is closed |
//! | [`rate_limit`] | the `X-RateLimit-*` and `RateLimit` header values |
//! | [`openapi`] | the description of the API, made from its configuration |
//! | [`retirement`] | how clients are informed of an endpoint's retirement |
//! | [`maintenance`] | the answer of an endpoint under maintenance |
//! | [`rejection`] | every error answer of the gateway |
//! | [`failure_log`] | when a failure that lasts is logged |
//! | [`limit_hit`] | the limits whose hits are counted |
//! | [`request_id`] | which request ids of clients are kept |
//! | [`trace_context`] | which trace a request belongs to, and whether it is recorded |
//! | [`secret`] | texts that are never shown |
//! | [`words`] | enums whose values are words, and numbers of things in sentences |

pub mod address;
pub mod admission;
pub mod api_key;
pub mod audit;
pub mod billing;
pub mod caching;
pub mod calendar;
pub mod choice;
pub mod clock_trust;
pub mod compression;
pub mod endpoint;
pub mod enforcement;
pub mod explanation;
pub mod failure_log;
pub mod forwarded;
pub mod header_pattern;
pub mod http1;
pub mod http2;
pub mod http2_memory;
pub mod json;
pub mod key_record;
pub mod lifecycle;
pub mod limit_hit;
pub mod maintenance;
pub mod nearest;
pub mod octets;
pub mod openapi;
pub mod own_header;
pub mod own_path;
pub mod proxy_header;
pub mod quota;
pub mod rate_limit;
pub mod redirect;
pub mod rejection;
pub mod request_id;
pub mod retirement;
pub mod secret;
pub mod server_health;
pub mod server_name;
pub mod store_settings;
pub mod target;
pub mod threshold_event;
pub mod token_bucket;
pub mod trace_context;
pub mod words;
