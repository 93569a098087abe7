//! Programs that keep data: redis, memcached and PostgreSQL with their clients, each end plain or accelerated.

mod running;

use running::{Expected, House, Side, in_all_pairings, must};
use windlass_tests::until;

const PORT: u16 = 6400;
const REPLICA: u16 = 6401;

fn redis_server(house: &House, side: Side, port: u16, more: &[&str]) -> running::Running {
    let name = format!("redis{port}");
    let mut command = house.command(side, "redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--save", "", "--enable-debug-command", "yes"]);
    command.args(["--repl-diskless-sync-delay", "0"]);
    command.args(["--dbfilename", &format!("{name}.rdb"), "--dir"]);
    command.arg(house.file(".")).args(more);
    house.serve(command, &name, port)
}

fn redis_says(house: &House, port: u16, commands: &str) -> String {
    // The replica is a client itself: who asks it must not be a second accelerated end.
    let mut client = if port == REPLICA {
        house.plain("redis-cli")
    } else {
        house.command(Side::Client, "redis-cli")
    };
    client.args(["-p", &port.to_string()]);
    must(client, commands.as_bytes())
}

fn benchmark(house: &House, words: &str) -> std::process::Command {
    let mut client = house.command(Side::Client, "redis-benchmark");
    client.args(["-p", &PORT.to_string(), "--csv"]);
    client.args(words.split(' '));
    client
}

/// Every answer of redis is right: one by one, pipelined, and in bulk; values of one byte to 100 kB.
#[test]
fn redis_answers_rightly() {
    in_all_pairings(
        "redis_answers_rightly",
        &["redis-server", "redis-cli"],
        |house| {
            let server = redis_server(house, Side::Server, PORT, &[]);
            let value = |n: usize| format!("{n}.").repeat(1 + n * n % 20_000);
            let (mut commands, mut wanted) = (String::new(), String::new());
            for n in 0..150 {
                commands += &format!("SET k{n} {}\nGET k{n}\nINCR count\nSTRLEN k{n}\n", value(n));
                wanted += &format!("OK\n{}\n{}\n{}\n", value(n), n + 1, value(n).len());
            }
            assert!(
                redis_says(house, PORT, &commands) == wanted,
                "an answer is wrong"
            );
            let mut bulk = house.command(Side::Client, "redis-cli");
            bulk.args(["-p", &PORT.to_string(), "--pipe"]);
            let requests: String = (0..20_000).map(|n| format!("SET b{n} {n}\r\n")).collect();
            let said = must(bulk, requests.as_bytes());
            assert!(said.contains("errors: 0, replies: 20000"), "{said}");
            must(
                benchmark(house, "-t set,get,lpush,lrange_100 -n 20000 -c 20"),
                b"",
            );
            must(benchmark(house, "-t set,get -n 60000 -c 20 -P 16"), b"");
            let said = redis_says(house, PORT, "GET b19999\nLLEN mylist\n");
            // The test of ranges fills the list once more.
            assert_eq!(said, "19999\n40000\n");
            server.end();
            house.assert_accelerated(Expected::Ring);
        },
    );
}

/// A snapshot taken by a forked child under load is whole, and a replica ends with the same data as its master.
#[test]
fn redis_saves_and_replicates_under_load() {
    let name = "redis_saves_and_replicates_under_load";
    in_all_pairings(name, &["redis-server", "redis-cli"], |house| {
        let server = redis_server(house, Side::Server, PORT, &[]);
        let of = PORT.to_string();
        let more = ["--replicaof", "127.0.0.1", of.as_str()];
        must(benchmark(house, "-t set -r 20000 -n 40000 -P 16"), b"");
        // The replica is a client of its master.
        let replica = redis_server(house, Side::Client, REPLICA, &more);
        let load = benchmark(house, "-t set,incr,lpush -r 20000 -n 60000 -c 10 -P 4");
        let load = house.start(load, "load");
        // The child that feeds the replica may still be at it.
        until("the snapshot is begun", || {
            redis_says(house, PORT, "BGSAVE\n").contains("started")
        });
        until("the snapshot is taken", || {
            redis_says(house, PORT, "INFO persistence\n").contains("rdb_bgsave_in_progress:0")
        });
        let said = redis_says(house, PORT, "INFO persistence\n");
        assert!(said.contains("rdb_last_bgsave_status:ok"), "{said}");
        let mut check = house.plain("redis-check-rdb");
        check.arg(house.file(&format!("redis{PORT}.rdb")));
        let said = must(check, b"");
        assert!(said.contains("RDB looks OK"), "{said}");
        let (code, said) = load.wait();
        assert_eq!(code, 0, "{said}");
        let digest = |port| redis_says(house, port, "DEBUG DIGEST\n");
        until("the replica has the same data", || {
            let info = redis_says(house, REPLICA, "INFO replication\n");
            info.contains("master_link_status:up") && digest(REPLICA) == digest(PORT)
        });
        replica.end();
        server.end();
        house.assert_accelerated(Expected::Ring);
    });
}

/// Threads of memcached answer threads of a client rightly, and count as many requests as were made.
#[test]
fn memcached_answers_rightly() {
    let name = "memcached_answers_rightly";
    in_all_pairings(name, &["memcached", "python3"], |house| {
        let mut command = house.command(Side::Server, "memcached");
        command.args([
            "-t",
            "4",
            "-l",
            "127.0.0.1",
            "-U",
            "0",
            "-p",
            &PORT.to_string(),
        ]);
        let server = house.serve(command, "memcached", PORT);
        let script = house.write("client.py", include_str!("running/memcached_client.py"));
        let mut client = house.command(Side::Client, "python3");
        client
            .arg(script)
            .args([PORT.to_string().as_str(), "8", "300"]);
        assert_eq!(must(client, b""), "right 2400\n");
        server.end();
        house.assert_accelerated(Expected::Ring);
    });
}

/// Transactions of pgbench through several clients leave sums that agree, and selects are answered.
#[test]
fn postgres_keeps_its_sums() {
    let needs = ["initdb", "postgres", "pgbench", "psql"];
    in_all_pairings("postgres_keeps_its_sums", &needs, |house| {
        let mut make = house.named("initdb");
        make.args(["-U", "tester", "-A", "trust", "--no-sync", "-D"])
            .arg(house.file("data"));
        must(make, b"");
        let mut command = house.command(Side::Server, "postgres");
        command
            .arg("-D")
            .arg(house.file("data"))
            .arg("-k")
            .arg(house.file("."));
        command.args(["-p", &PORT.to_string(), "-c", "fsync=off"]);
        command.args(["-c", "listen_addresses=127.0.0.1"]);
        let server = house.serve(command, "postgres", PORT);
        until("PostgreSQL is ready", || {
            server.log().contains("ready to accept connections")
        });
        let client = |program: &str, words: &str| {
            let mut client = house.command(Side::Client, program);
            client.args(["-h", "127.0.0.1", "-p", &PORT.to_string(), "-U", "tester"]);
            client.args(words.split(' ')).arg("postgres");
            client
        };
        must(client("pgbench", "-q -i -s 1"), b"");
        let said = must(client("pgbench", "-n -c 4 -j 2 -t 100"), b"");
        assert!(
            said.contains("transactions actually processed: 400/400"),
            "{said}"
        );
        let said = must(client("pgbench", "-n -S -M prepared -c 4 -t 1000"), b"");
        assert!(
            said.contains("transactions actually processed: 4000/4000"),
            "{said}"
        );
        let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history),
            (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches),
            (SELECT count(*) FROM pgbench_history);";
        assert_eq!(
            must(client("psql", "-At -f -"), sums.as_bytes()),
            "t|t|400\n"
        );
        // A result larger than any buffer on the way.
        let rows = "SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) AS i;";
        let said = must(client("psql", "-At -f -"), rows.as_bytes());
        assert_eq!(said.lines().count(), 20_000);
        assert!(said.ends_with(&format!("20000|{}\n", "x".repeat(1000))));
        server.end();
        house.assert_accelerated(Expected::Ring);
    });
}
