//! Completions and man pages, as a shell and a reader use them. They need no configuration.

use std::process::Command;

use super::TOUCHLINE;

/// What the script for bash offers for the last of these words.
fn offered(words: &[&str]) -> Vec<String> {
    let script = r#"
        touchline=$1; shift
        source <("$touchline" completions bash) || exit 1
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _touchline touchline "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let output = Command::new("bash")
        .args(["-c", script, "bash", TOUCHLINE])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_their_values() {
    assert_eq!(offered(&["touchline", "expl"]), ["explain"]);
    assert_eq!(offered(&["touchline", "keys", "iss"]), ["issue"]);
    assert_eq!(offered(&["touchline", "keys", "issue", "--ti"]), ["--tier"]);
    let by = offered(&["touchline", "usage", "--by", ""]);
    assert!(by.contains(&"endpoint".to_owned()), "{by:?}");
}

#[test]
fn every_shell_gets_a_script_and_an_unknown_one_is_wrong_usage() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let made = Command::new(TOUCHLINE)
            .args(["completions", shell])
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{shell}");
        let script = String::from_utf8(made.stdout).unwrap();
        assert!(script.contains("touchline") && script.contains("set-expiry"));
    }
    let unknown = Command::new(TOUCHLINE)
        .args(["completions", "dos"])
        .output();
    assert_eq!(unknown.unwrap().status.code(), Some(2));
}

#[test]
fn man_writes_a_page_with_the_examples_of_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("share/man1");
    let made = Command::new(TOUCHLINE)
        .arg("man")
        .arg(&pages)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    let issue = page("touchline-keys-issue.1");
    assert!(
        issue.contains(".TH touchline-keys-issue 1")
            && issue.contains("touchline keys issue \\-\\-tier pro"),
        "{issue}"
    );
    let first = page("touchline.1");
    let printed = Command::new(TOUCHLINE).arg("man").output().unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), first);

    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let failed = Command::new(TOUCHLINE)
        .arg("man")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("is not a directory"));
}
