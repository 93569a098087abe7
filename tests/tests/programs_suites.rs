//! Programs' own network test-suites: the same results without the library and under `windlass run`, with both ends
//! of most connections accelerated.

mod running;

use std::collections::BTreeMap;

use running::{House, Pairing, Side, compare, find, must, soaks};
use windlass_tests::skip;

/// Of CPython's suite, what opens connections, waits for descriptors, starts processes or handles signals.
const PYTHON: &[&str] = &[
    "test_asyncore",
    "test_epoll",
    "test_fcntl",
    "test_ftplib",
    "test_httplib",
    "test_httpservers",
    "test_imaplib",
    "test_poll",
    "test_poplib",
    "test_select",
    "test_selectors",
    "test_signal",
    "test_smtplib",
    "test_socket",
    "test_ssl",
    "test_subprocess",
    "test_telnetlib",
    "test_urllib2_localnet",
    "test_xmlrpc",
    "test_asyncio.test_buffered_proto",
    "test_asyncio.test_sendfile",
    "test_asyncio.test_server",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_ssl",
    "test_asyncio.test_streams",
    "test_asyncio.test_subprocess",
    "test_asyncio.test_unix_events",
];
/// Runs one module, and prints each test and its result, sorted. Sockets of virtual machines wait for ever here.
const RUNNER: &str = r#"
import sys, unittest
name = "test." + sys.argv[1]
results = {}
class Result(unittest.TextTestResult):
    def note(self, test, what):
        if results.get(test.id()) in (None, "ok"):
            results[test.id()] = what
    def addSuccess(self, test): self.note(test, "ok")
    def addError(self, test, error): super().addError(test, error); self.note(test, "error")
    def addFailure(self, test, error): super().addFailure(test, error); self.note(test, "failure")
    def addSkip(self, test, why): self.note(test, "skipped")
    def addExpectedFailure(self, test, error): self.note(test, "expected failure")
    def addUnexpectedSuccess(self, test): self.note(test, "unexpected success")
    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error: self.note(test, "failure")
def keep(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite): yield from keep(test)
        elif "VSOCK" not in test.id(): yield test
suite = unittest.TestSuite(keep(unittest.defaultTestLoader.loadTestsFromName(name)))
runner = unittest.TextTestRunner(stream=open(sys.argv[2], "w"), resultclass=Result)
runner.run(suite)
with open(sys.argv[3], "w") as file:
    for test in sorted(results): print(test, results[test], sep="\t", file=file)
"#;

/// Of OpenSSH's suite, what carries bytes: sessions, copies, forwarded ports, connections shared by several sessions,
/// agents, keys exchanged anew, ends that leave early. Without the tests of keys, ciphers and configuration files alone.
const SSH: &[&str] = &[
    "connect",
    "proxy-connect",
    "proto-version",
    "proto-mismatch",
    "exit-status",
    "exit-status-signal",
    "transfer",
    "banner",
    "rekey",
    "stderr-data",
    "stderr-after-eof",
    "broken-pipe",
    "yes-head",
    "login-timeout",
    "agent",
    "keyscan",
    "scp",
    "scp3",
    "sftp",
    "sftp-batch",
    "sftp-cmds",
    "reconfigure",
    "dynamic-forward",
    "forwarding",
    "multiplex",
    "reexec",
    "forward-control",
    "integrity",
    "channel-timeout",
    "connection-timeout",
];
/// Where Debian's openssh-tests puts it.
const SSH_PLACE: &str = "/usr/lib/openssh/regress";
/// Runs one of its tests in the directory that is $1, and prints how `make` ended. PAM would look for the user in /etc/shadow.
const SSH_RUNNER: &str = r#"
cd "$1"; LOGNAME=tester; USER=tester; export LOGNAME USER
sed -i 's/UsePAM.*yes/UsePAM no/' test-exec.sh
timeout 300 make -s .OBJDIR="$1" .CURDIR="$1" BUILDDIR="$1" OBJ="$1" SUDO= TEST_SHELL=sh TEST_SSH_SSH=ssh \
    TEST_SSH_SFTPSERVER=/usr/lib/openssh/sftp-server TEST_SSH_PLINK=none TEST_SSH_PUTTYGEN=none TEST_SSH_CONCH=none \
    TEST_SSH_IPV6=yes TEST_SSH_ECC=yes TEST_SSH_UNSAFE_PERMISSIONS=1 INTEROP_TESTS= EXTRA_TESTS= \
    t-exec LTESTS="$2" </dev/zero >"$1/out.$2" 2>&1
echo $?
"#;

/// Results of a module by test.
fn results(house: &House, module: &str) -> BTreeMap<String, String> {
    let runner = house.write("runner.py", RUNNER);
    let [told, listed] = ["told", "listed"].map(|what| house.file(what));
    let _ = std::fs::remove_file(&listed);
    let mut command = house.command(Side::Server, "timeout");
    command.args(["300", "python3"]).arg(runner).arg(module);
    command
        .args([&told, &listed])
        .env("WINDLASS_PROMOTE", "1,1");
    must(command, b"");
    let text = std::fs::read_to_string(&listed).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    let results: BTreeMap<_, _> = pairs
        .map(|(test, result)| (test.to_owned(), result.to_owned()))
        .collect();
    let told = std::fs::read_to_string(&told).unwrap_or_default();
    assert!(!results.is_empty(), "{module}: no results: {told}");
    results
}

/// Whether a result says that the test, as it is, fails.
fn is_failure(result: &str) -> bool {
    ["error", "failure", "unexpected success"].contains(&result)
}

/// CPython's own tests of sockets, TLS, asyncio, servers, processes and signals give the same results, and connections
/// were accelerated while they ran.
#[test]
fn pythons_own_tests_pass() {
    let name = "pythons_own_tests_pass";
    if !soaks(name) {
        return;
    }
    let python = find("python3").map(std::process::Command::new);
    let has_tests = python.is_some_and(|mut python| {
        let output = python.args(["-c", "import test.test_socket"]).output();
        output.is_ok_and(|output| output.status.success())
    });
    if !has_tests {
        return skip(name, "python3 has no test-suite (libpython3-testsuite)");
    }
    let [plain, ours] = [false, true].map(|server| Pairing {
        server,
        client: false,
        spin: 20,
    });
    let (Some(plain), Some(ours)) = (House::build(name, plain), House::build(name, ours)) else {
        return;
    };
    let (mut tests, mut worse) = (0, Vec::new());
    for module in PYTHON {
        let (wanted, found) = (results(&plain, module), results(&ours, module));
        tests += found.len();
        for (test, result) in &wanted {
            let ours = found.get(test).map_or("missing", String::as_str);
            if is_failure(result) {
                println!("{name}: {test}: {result} on the kernel, {ours} accelerated");
            } else if ours != result {
                worse.push(format!(
                    "{test}: {result} on the kernel, {ours} accelerated"
                ));
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
    let joined = ours.counted(Side::Server).get("joined").copied();
    println!("{name}: {tests} tests, joined: {joined:?}");
    assert!(joined.unwrap_or(0) > 100, "nothing was accelerated");
}

/// OpenSSH's own tests of sessions and forwarding end as they do without the library, and connections were accelerated
/// while they ran.
#[test]
fn opensshs_own_tests_pass() {
    let name = "opensshs_own_tests_pass";
    if !soaks(name) {
        return;
    }
    if !std::path::Path::new(SSH_PLACE).is_dir() || find("sshd").is_none() {
        return skip(
            name,
            "OpenSSH has no test-suite (openssh-tests, openssh-server)",
        );
    }
    let houses = [false, true].map(|server| {
        let pairing = Pairing {
            server,
            client: false,
            spin: 20,
        };
        House::build(name, pairing)
    });
    let [Some(plain), Some(ours)] = houses else {
        return;
    };
    let houses = [plain, ours];
    for house in &houses {
        let mut copy = house.plain("cp");
        copy.args(["-r", SSH_PLACE]).arg(house.file("regress"));
        must(copy, b"");
    }
    let parts: Vec<String> = SSH.iter().map(|part| (*part).to_owned()).collect();
    compare(name, &houses, &parts, 1, |house, part| {
        let runner = house.write("runner.sh", SSH_RUNNER);
        let mut command = house.named_for(Side::Server, "sh");
        command.arg(runner).arg(house.file("regress")).arg(part);
        let is_passed = must(command, b"").trim() == "0";
        let told = std::fs::read_to_string(house.file("regress").join(format!("out.{part}")));
        (is_passed, told.unwrap_or_default())
    });
}
