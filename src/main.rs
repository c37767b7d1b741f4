//! The `touchline` command.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The kernel's huge pages of 2 MiB, which the allocator asks for, hold memory that nobody uses: a quarter of a gateway's. They
    // save no time here. A kernel that knows nothing of them has none.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    touchline::cli::run()
}
