//! Long work in a thread of its own, perhaps on a core where requests are answered: it gives the core away again and again, so
//! that a request waits for a part of a millisecond and not for the end of the kernel's time slice (some 4 ms).

/// Counts steps of long work.
#[derive(Debug)]
pub struct CooperativeYield {
    steps: u32,
    left: u32,
}

impl CooperativeYield {
    /// Gives the processor away after each so many steps; they should take 0.1 to 0.2 ms together.
    pub fn of(steps: u32) -> CooperativeYield {
        CooperativeYield { steps, left: steps }
    }

    /// A step is done.
    pub fn step(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.left = self.steps;
            std::thread::yield_now();
        }
    }
}
