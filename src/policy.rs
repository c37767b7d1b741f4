//! The pure core: every decision of the contract as a function over values.
//!
//! Nothing here is async, reads a clock, takes a lock or writes a log line. The rooms, in the order in which a request
//! meets them:
//!
//! | Room | Decides |
//! |---|---|
//! | [`admission`] | in which order the steps come, what they need, and how a request ends (steps 1 to 8) |
//! | [`http1`] | heads and bodies of HTTP/1, read in one way only (step 1) and written |
//! | [`http2`] | how much control traffic an HTTP/2 connection may send |
//! | [`http2_memory`] | what the requests of an HTTP/2 connection cost in memory |
//! | [`target`] | is the request target unambiguous (step 1) |
//! | [`server_name`] | which certificate a client is shown |
//! | [`proxy_header`] | what a proxy says of a connection before its first byte |
//! | [`forwarded`] | who the client behind trusted proxies is |
//! | [`redirect`] | where a request without TLS is sent instead |
//! | [`address`] | which networks a client's address lies in, and what it is counted by |
//! | [`api_key`] | the shape, checksum and digest of an API key (steps 2 and 3) |
//! | [`key_record`] | may this key be used now (step 3), and its limit for a day |
//! | [`lifecycle`] | what a change makes of a key after its issue, and whom it cuts off |
//! | [`audit`] | what the audit trail says of a change |
//! | [`billing`] | which days of a key's month are billed, for which tier and how much |
//! | [`endpoint`] | which endpoint a path is, its methods and tiers (steps 4 to 6) |
//! | [`enforcement`] | whether the limits of a tier refuse or only count (steps 6 to 8) |
//! | [`explanation`] | why the steps would let a request in or refuse it |
//! | [`octets`] | sets of octets, as grammars name them |
//! | [`header_pattern`] | which headers operators keep from being passed on |
//! | [`own_header`] | which request headers are the gateway's own |
//! | [`own_path`] | which paths the gateway answers itself |
//! | [`token_bucket`] | how often a key may do what is never charged |
//! | [`calendar`] | which quota day an instant belongs to (step 8) |
//! | [`clock_trust`] | whether the wall clock can be relied on for what cannot be undone |
//! | [`choice`] | which server of an upstream a request goes to |
//! | [`server_health`] | whether a server of an upstream is asked |
//! | [`caching`] | who may keep an answer |
//! | [`compression`] | in which content coding an answer goes out |
//! | [`quota`] | how units are granted, acknowledged and refunded (step 8) |
//! | [`crossing`] | which shares of its limit a key has come to, and the events that tell so |
//! | [`nearest`] | which keys are nearest to their limits |
//! | [`rate_limit`] | the `X-RateLimit-*` and `RateLimit` header values |
//! | [`openapi`] | the description of the API, made from its configuration |
//! | [`retirement`] | how clients are told that an endpoint is going away |
//! | [`maintenance`] | what clients are told of an endpoint that is being worked on |
//! | [`rejection`] | everything a client can be told instead of an answer |
//! | [`request_id`] | which request ids are kept |
//! | [`trace_context`] | which trace a request belongs to, and whether it is recorded |

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
pub mod crossing;
pub mod endpoint;
pub mod enforcement;
pub mod explanation;
pub mod forwarded;
pub mod header_pattern;
pub mod http1;
pub mod http2;
pub mod http2_memory;
pub mod key_record;
pub mod lifecycle;
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
pub mod server_health;
pub mod server_name;
pub mod target;
pub mod token_bucket;
pub mod trace_context;
