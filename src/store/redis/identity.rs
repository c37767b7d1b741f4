//! The identity of a store: the saved replica of the key table and the journal belong to one store.
//!
//! A store is identified by the configuration: the server and its database, the sentinels' name for the master, or a cluster,
//! together with the key prefix. What Redis reports of itself (run id, incarnation, current master) is not part of it: that
//! changes with a restart, a failover and `FLUSHALL`, whose losses these files repair. So a server that was replaced under the
//! same name is the same store, and everything is sent to it again.
//!
//! Invariant: the contents of one store's file are never sent to another store.

use std::collections::BTreeSet;
use std::fmt;

use rusqlite::Connection;

use crate::store::sqlite::{meta, write_meta};

/// The store that a file belongs to. Two values identify the same store if their names are equal and, if there are nodes, they
/// have one in common: the list of sentinels or of a cluster's nodes may be reordered, shortened or extended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Server and database, the sentinels' name for the master, or `the cluster`; with the key prefix.
    pub name: String,
    /// The sentinels or the cluster's nodes; empty for a single server.
    pub nodes: BTreeSet<String>,
}

impl StoreIdentity {
    /// The store in the file's table `meta`, or `None` if the file has not been claimed.
    pub fn of(connection: &Connection) -> rusqlite::Result<Option<StoreIdentity>> {
        let Some(name) = meta(connection, "home")? else {
            return Ok(None);
        };
        let nodes = split(&meta(connection, "home_nodes")?.unwrap_or_default());
        Ok(Some(StoreIdentity { name, nodes }))
    }

    /// Claims the file for this store in its table `meta`, with the nodes as they are configured now. If the file belongs to
    /// another store, nothing is written and that store is returned.
    pub fn claim(&self, connection: &Connection) -> rusqlite::Result<Option<StoreIdentity>> {
        match StoreIdentity::of(connection)? {
            Some(theirs) if !theirs.is_of(self) => return Ok(Some(theirs)),
            Some(theirs) if theirs == *self => {}
            Some(_) | None => {
                for (name, value) in [("home", &self.name), ("home_nodes", &joined(&self.nodes))] {
                    write_meta(connection, name, value)?;
                }
            }
        }
        Ok(None)
    }

    fn is_of(&self, other: &StoreIdentity) -> bool {
        self.name == other.name
            && (self.nodes == other.nodes || !self.nodes.is_disjoint(&other.nodes))
    }
}

impl fmt::Display for StoreIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.nodes.is_empty() {
            write!(f, " at {}", joined(&self.nodes))?;
        }
        Ok(())
    }
}

/// The names joined with spaces.
pub fn joined(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.join(" ")
}

/// The names in a text of [`joined`].
pub fn split(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_known_again_by_its_name_and_one_of_its_nodes() {
        let home = |name: &str, nodes: &str| StoreIdentity {
            name: name.into(),
            nodes: split(nodes),
        };
        for (one, other, same) in [
            (home("cache:6379/0", ""), home("cache:6379/0", ""), true),
            (home("cache:6379/0", ""), home("cache:6379/1", ""), false),
            (home("m", "a:1 b:1"), home("m", "b:1 a:1"), true),
            (home("m", "a:1 b:1"), home("m", "b:1 c:1"), true),
            (home("m", "a:1 b:1"), home("m", "c:1"), false),
            (home("m", "a:1"), home("n", "a:1"), false),
        ] {
            assert_eq!(one.is_of(&other), same, "{one} and {other}");
        }
    }
}
