//! The gateway with functions of the system that a test has replaced.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::TOUCHLINE;

/// A library in C that replaces functions of the system, and a directory for its files.
pub struct Preload {
    directory: TempDir,
}

impl Preload {
    /// Compiles the library.
    pub fn new(library: &str) -> Preload {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("library.c");
        std::fs::write(&source, library).unwrap();
        // Every machine that links Rust programs has it.
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(directory.path().join("library.so"))
            .arg(&source)
            .arg("-ldl")
            .output()
            .expect("a C compiler, named cc");
        assert!(built.status.success(), "{built:?}");
        Preload { directory }
    }

    /// A file of this name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The gateway with this library, which finds a file by an environment variable.
    pub fn program(&self, variable: &str, file: &Path) -> PathBuf {
        let program = self.file("touchline");
        let text = format!(
            "#!/bin/sh\nLD_PRELOAD='{}' {variable}='{}' exec '{TOUCHLINE}' \"$@\"\n",
            self.file("library.so").display(),
            file.display(),
        );
        write_program(&program, &text);
        program
    }
}

/// Written by another process: a file that this one has open for writing cannot be run by one that it forks meanwhile.
fn write_program(program: &Path, text: &str) {
    let written = Command::new("sh")
        .args(["-c", "printf '%s' \"$1\" > \"$0\" && chmod 700 \"$0\""])
        .arg(program)
        .arg(text)
        .status()
        .unwrap();
    assert!(written.success());
}
