//! Names with a number each, which takes less memory than the name.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

/// The names that were numbered, in the order of their numbers.
#[derive(Debug, Default)]
pub struct NumberedNames {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32, RandomState>,
}

impl NumberedNames {
    /// The number of a name, a new one if it has none.
    pub fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let name: Arc<str> = name.into();
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    /// The name with this number.
    #[expect(clippy::indexing_slicing, reason = "the number is that of a name")]
    pub fn name(&self, number: u32) -> &Arc<str> {
        &self.names[number as usize]
    }
}
