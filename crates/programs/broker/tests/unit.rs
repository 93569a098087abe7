//! The units and the options of the program.

use std::path::Path;
use std::process::Command;

/// The units are ones that systemd accepts.
#[test]
fn the_units_are_good() {
    let directory = tempfile::tempdir().expect("a directory");
    let units = ["windlass-broker.service", "windlass-broker.socket"];
    for unit in units {
        let unit_path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("dist")
            .join(unit);
        let text = std::fs::read_to_string(unit_path).expect("a unit");
        let text = text.replace(
            "/usr/bin/windlass-broker",
            env!("CARGO_BIN_EXE_windlass-broker"),
        );
        let lines = text
            .lines()
            .filter(|line| !line.starts_with("Documentation="));
        let text = lines.collect::<Vec<_>>().join("\n");
        std::fs::write(directory.path().join(unit), text).expect("a copy");
    }
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify");
    verify.args(units.map(|unit| directory.path().join(unit)));
    let Ok(output) = verify.output() else {
        println!("skipped: the_units_are_good: there is no systemd-analyze here");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<_> = said
        .lines()
        .filter(|line| line.contains("windlass-broker"))
        .collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

/// The file of rules is checked without a broker being started.
#[test]
fn the_rules_are_checked() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass-broker"));
    let output = command.arg("--check-config").output().expect("output");
    if Path::new(windlass_broker::policy::CONFIG_PATH).exists() {
        println!("skipped: the_rules_are_checked: this host has rules of its own");
        return;
    }
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("good"));
}

/// A private broker stays for a minute, if nothing else is said.
#[test]
fn a_private_broker_stays_a_minute() {
    let mut help = Command::new(env!("CARGO_BIN_EXE_windlass-broker"));
    let help = help.arg("--help").env_remove("WINDLASS_LINGER_MS").output();
    let help = String::from_utf8(help.expect("help").stdout).expect("text");
    let (_, linger) = help.split_once("--linger-ms <MS>").expect("the option");
    assert!(linger.contains("[default: 60000]"), "{help}");
}
