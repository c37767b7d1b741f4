//! The `touchline` command.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator asks the kernel for huge pages of 2 MiB, which hold unused memory: a quarter of a gateway's. They save no time
    // here. A kernel that does not support the call has no such pages.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    touchline::cli::run()
}
