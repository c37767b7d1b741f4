//! Cooperative yielding for long work on a thread of its own. Its core may also serve requests: yielding often makes a request
//! wait for a fraction of a millisecond, not for the end of the kernel's time slice (about 4 ms).

/// Counts steps of long work.
#[derive(Debug)]
pub struct CooperativeYield {
    steps: u32,
    left: u32,
}

impl CooperativeYield {
    /// Yields the processor after every `steps` steps, which should take 0.1 to 0.2 ms together.
    pub fn of(steps: u32) -> CooperativeYield {
        CooperativeYield { steps, left: steps }
    }

    /// Counts a step, and yields if it is due.
    pub fn step(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.left = self.steps;
            std::thread::yield_now();
        }
    }
}
