//! What the README tells people to type works as it is written.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use windlass_tests::{program, run, skip};

/// The lines of shell examples, those that go on behind a backslash joined.
fn typed(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for fence in page.split("```sh\n").skip(1) {
        let fence = fence.split("```").next().unwrap_or_default();
        let joined = fence.replace("\\\n", " ");
        lines.extend(joined.lines().map(str::to_owned));
    }
    lines
}

/// Commands of windlass in the tables of the user guide are understood: what they are refused is a daemon.
#[test]
fn the_cheat_sheets_are_understood() {
    const NO_DAEMON: i32 = 3;
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/user-guide.md");
    let page = std::fs::read_to_string(page).expect("the user guide");
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let cells = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let commands: Vec<_> = cells.filter(|text| text.starts_with("windlass ")).collect();
    assert!(commands.len() > 25, "{commands:?}");
    for command in commands {
        let words = command.split_whitespace().skip(1);
        let mut program = Command::new(program("windlass"));
        program
            .args(["--socket", "/nonexistent/socket"])
            .args(words);
        let done = run(&mut program);
        assert_eq!(done.code, NO_DAEMON, "{command}: {}", done.err);
    }
}

/// All commands of windlass and ip in the README succeed, one after the other, in namespaces of the test's own. `make` and
/// `windlass run` have tests of their own (CI itself, `demo.rs`, `programs.rs`), and so has testpmd (`memif.rs`).
#[test]
fn the_readme_can_be_typed() {
    const NAME: &str = "the_readme_can_be_typed";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "only root can make namespaces with names");
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let page = std::fs::read_to_string(page).expect("the README");
    let mut script = String::from(
        "set -eu\n\
         mount -t tmpfs tmpfs /run\n\
         mount -t tmpfs tmpfs /var/lib\n\
         ip link set lo up\n",
    );
    let mut commands = 0;
    for line in typed(&page) {
        let is_elsewhere = ["windlass run", "windlass sockets"];
        if is_elsewhere.iter().any(|words| line.starts_with(words)) {
            continue;
        }
        if line.starts_with("windlassd &") {
            script.push_str("windlassd & daemon=$!\n");
            script.push_str(
                "until windlass status > /dev/null 2>&1; do kill -0 $daemon; sleep 0.05; done\n",
            );
        } else if line.starts_with("windlass ") || line.starts_with("ip ") {
            commands += 1;
            let _ = writeln!(script, "{line}");
        }
    }
    script.push_str("kill $daemon; wait $daemon\n");
    assert!(commands >= 10, "{commands} commands in the README");
    let programs = program("windlassd");
    let programs = programs.parent().expect("a directory").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--mount", "bash", "-xc", &script])
        .env("PATH", format!("{programs}:{path}"))
        .env_remove("WINDLASS_SOCKET");
    let done = run(&mut command);
    assert_eq!(done.code, 0, "{}\n{}", done.out, done.err);
    assert!(done.out.contains(" 0% packet loss"), "{}", done.out);
    assert!(
        done.out.contains("<interface type='vhostuser'>"),
        "{}",
        done.out
    );
}
