//! The failures of a store.

use crate::policy::api_key::KeyId;
use crate::policy::key_record::KeyRecord;

/// A failure of the store. Never sent to clients: `Display` names hosts and files, for logs and operators.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store is unreachable, or did not answer in time. The outcome of a charge is then unknown; the store's own later calls
    /// settle it. A retry may succeed.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store returned an error that a retry does not cure: wrong type, corrupted, read-only, disk full, no permission.
    #[error("the store failed: {0}")]
    Failed(String),
    /// The store was used with another time zone, or has other boundaries for a day.
    #[error("{0}")]
    OtherCalendar(String),
}

impl StoreError {
    /// The reason alone.
    pub fn reason(&self) -> &str {
        match self {
            StoreError::Unavailable(why)
            | StoreError::Failed(why)
            | StoreError::OtherCalendar(why) => why,
        }
    }

    /// Whether the same call may succeed later without an operator's help.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Unavailable(_) => true,
            StoreError::Failed(_) | StoreError::OtherCalendar(_) => false,
        }
    }
}

/// Why a change of the key table was not made, or is not known to every gateway.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// No key has this id.
    #[error("there is no key {0}")]
    UnknownKey(KeyId),
    /// The record was changed since it was read: read it again and decide anew.
    #[error("the key {0} was changed at the same time by another request")]
    Conflict(KeyId),
    /// The id or a digest is in use already.
    #[error("the key {0} exists already")]
    Exists(KeyId),
    /// The store failed before anything was written.
    #[error("nothing was written: {0}")]
    Unwritten(StoreError),
    /// The change is stored as this record, but gateways may not have been notified of it: each learns of it with its next charge of
    /// the key, or with a walk over all keys.
    #[error("the change is stored, but may not have been published: {1}")]
    Unpublished(Box<KeyRecord>, StoreError),
    /// The store failed; whether the change was made is unknown if it is [`StoreError::Unavailable`].
    #[error(transparent)]
    Store(#[from] StoreError),
}
