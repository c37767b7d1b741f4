//! Schedules of faults against three gateways on one store, and the judgement of their results.
//!
//! | Module | Content |
//! |---|---|
//! | [`stage`] | Redis of every topology, three gateways with a proxy before each, an upstream that records what it served |
//! | [`swarm`] | clients without pause, each call with an id of its own |
//! | [`schedule`] | faults, and their order by a seed |
//! | [`director`] | carries a schedule out on a stage and notes what it may cost |
//! | [`oracle`] | judges: a pure function, so that its own tests can show that it fails when it must |

pub mod director;
pub mod oracle;
pub mod schedule;
pub mod stage;
pub mod swarm;
