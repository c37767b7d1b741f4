//! Whose a file on this machine is: the saved replica of the key table and the journal belong to one store.
//!
//! A store is what the configuration names: the server and its database, or the sentinels' name for the master, or a
//! cluster, together with the key prefix. Nothing that Redis says of itself counts (run id, incarnation, which server is
//! the master): those change with a restart, a failover and `FLUSHALL`, which are what the files are there to mend. So a
//! server that was replaced under the same name is the same store, and is told everything again.
//!
//! Invariant: what one store's file holds is never told to another store.

use std::collections::BTreeSet;
use std::fmt;

use rusqlite::{Connection, OptionalExtension};

const SAY: &str = "INSERT INTO meta (name, value) VALUES (?1, ?2)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value";

/// The store that a file is of. It is the same store where the name is and, if there are nodes, one of them is: the
/// list of sentinels or of a cluster's nodes may be written in another order, shortened or extended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Server and database, or the sentinels' name for the master, or that it is a cluster; with the prefix.
    pub name: String,
    /// The sentinels or the cluster's nodes; none of a single server.
    pub nodes: BTreeSet<String>,
}

impl StoreIdentity {
    /// Whose the file is, by its table `meta`; `None` where nobody said so yet.
    pub fn of(connection: &Connection) -> rusqlite::Result<Option<StoreIdentity>> {
        let Some(name) = meta(connection, "home")? else {
            return Ok(None);
        };
        let nodes = split(&meta(connection, "home_nodes")?.unwrap_or_default());
        Ok(Some(StoreIdentity { name, nodes }))
    }

    /// Writes down in the file's table `meta` that it is this store's, with the nodes as they are configured now. Answers
    /// the store that it is of, and writes nothing, where that is another.
    pub fn claim(&self, connection: &Connection) -> rusqlite::Result<Option<StoreIdentity>> {
        match StoreIdentity::of(connection)? {
            Some(theirs) if !theirs.is_of(self) => return Ok(Some(theirs)),
            Some(theirs) if theirs == *self => {}
            Some(_) | None => {
                for (name, value) in [("home", &self.name), ("home_nodes", &joined(&self.nodes))] {
                    connection.execute(SAY, [name, value])?;
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

/// A value of a file's table `meta`.
pub fn meta(connection: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    connection
        .query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| {
            row.get(0)
        })
        .optional()
}

/// Names in one text.
pub fn joined(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.join(" ")
}

/// The names of such a text.
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
