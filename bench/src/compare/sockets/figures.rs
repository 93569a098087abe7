//! The table of figures: what is measured beside what, and where the bars are.

use clap::ValueEnum;
use serde::Serialize;

use super::measure::{Pair, Via, What};
use super::place::Runner;
use super::programs::Web;

/// Rows that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// Half a round trip of 64 bytes, blocking calls
    Ping,
    /// The same through `epoll_wait`
    Epoll,
    /// The same through `poll` and `select`
    Poll,
    /// Processor time of a send and a receive of 64 bytes
    Pair,
    /// One way, 64 bytes to 64 KiB
    Stream,
    /// redis-benchmark
    Redis,
    /// wrk and nginx
    Nginx,
    /// memcached with two threads
    Memcached,
    /// PostgreSQL, selects only
    Pgbench,
    /// Half a round trip without spinning
    Asleep,
    /// One end accelerated only
    Plain,
    /// A large file to curl
    Files,
    /// Programs of everyone's, as `windlass run` starts them by itself
    Programs,
    /// Starting a program
    Start,
}

impl Row {
    /// Whether most bytes of its accelerated cases should go by a ring; else the library takes the faster way.
    #[must_use]
    pub fn goes_by_ring(self) -> bool {
        !matches!(self, Row::Files | Row::Programs)
    }
}

/// Where a figure must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// None: it is shown.
    Shown,
    /// At most so many times the one-way time of a cache line; the figure is in microseconds.
    Lines(f64),
    /// At most this, or so many times as much as this other case, whichever is more.
    AtMostOrTimes(f64, f64, &'static str),
    /// At least so many times better than the best of these other cases.
    Times(f64, &'static [&'static str]),
    /// At most so much more than this other case.
    More(f64, &'static str),
}

/// One figure of a group.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Its name in what a measurement gives.
    pub figure: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whether more is better.
    pub is_rate: bool,
    /// The case that the bar is for.
    pub of: &'static str,
    /// The bar.
    pub bar: Bar,
}

/// Cases by name.
pub type Cases = Vec<(&'static str, Pair)>;

/// Cases that take turns, and the figures that are read from them.
pub struct Group {
    /// Of which row.
    pub row: Row,
    /// What is measured.
    pub title: String,
    /// The cases.
    pub cases: Cases,
    /// The figures.
    pub lines: Vec<Line>,
    /// Turns are shorter, and so many times as many: for bars of a few percent.
    pub more_turns: usize,
}

/// What the kernel repeats against itself within 3 % takes so many turns more.
const FOR_PERCENTS: usize = 5;

/// What counts as equal: medians of two series of the same measurement with the kernel on both sides (`--bare`) differ by 2 to 3 %,
/// and single turns of one series by up to 10 %.
const EQUAL: f64 = 0.97;
/// Of large files by sendfile.
const SENDFILE: f64 = 1.0;

const KERNEL: &str = "kernel";
const SPINNING: &str = "kernel, spinning";
const NODELAY: &str = "kernel, TCP_NODELAY";
const NODELAY_SPINNING: &str = "kernel, TCP_NODELAY, spinning";
const UNIX: &str = "Unix socket";
const UNIX_SPINNING: &str = "Unix socket, spinning";
const SOCKMAP: &str = "sockmap redirect";
const MEMORY: &str = "bare shared memory";
const WINDLASS: &str = "windlass";
const AT_SPIN_0: &str = "windlass at spin 0";
const SERVER_ONLY: &str = "server only";
const CLIENT_ONLY: &str = "client only";

/// Sizes of a write in bytes, and how many times faster than the kernel each must be at least.
const STREAMS: [(usize, f64); 6] = [
    (64, 1.0),
    (256, 1.0),
    (1024, 1.0),
    (4096, 1.0),
    (16 << 10, 3.0),
    (64 << 10, 3.0),
];

/// How the accelerated side is started.
#[derive(Clone, Copy, Debug)]
pub struct Ours {
    /// Where a spin is wanted.
    pub spin: Runner,
    /// Without one.
    pub spin_0: Runner,
    /// Where the program's own setting is wanted.
    pub default: Runner,
}

impl Ours {
    /// By `windlass run`, with this spin in microseconds.
    #[must_use]
    pub fn windlass(spin: u32) -> Ours {
        Ours {
            spin: Runner::Spin(spin),
            spin_0: Runner::Spin(0),
            default: Runner::Run,
        }
    }

    /// The kernel in its place: shows what a ratio means here.
    #[must_use]
    pub fn bare() -> Ours {
        Ours {
            spin: Runner::Bare,
            spin_0: Runner::Bare,
            default: Runner::Bare,
        }
    }

    /// The groups of a row.
    #[must_use]
    pub fn groups(self, row: Row) -> Vec<Group> {
        match row {
            Row::Ping => vec![self.ping()],
            Row::Epoll => [1, 1000].map(|members| self.epoll(members)).into(),
            Row::Poll => ["poll", "select"].map(|wait| self.poll(wait)).into(),
            Row::Pair => vec![self.pair()],
            Row::Stream => STREAMS.map(|(size, times)| self.stream(size, times)).into(),
            Row::Redis => self.redis(),
            Row::Nginx => self.nginx(),
            Row::Memcached => vec![self.memcached()],
            Row::Pgbench => [(1, 2.0), (8, 1.0)]
                .map(|(clients, times)| self.pgbench(clients, times))
                .into(),
            Row::Asleep => vec![self.asleep()],
            Row::Plain => self.plain(),
            Row::Files => self.files(),
            Row::Programs => self.programs(),
            Row::Start => vec![self.start()],
        }
    }

    fn ping(self) -> Group {
        let what = |wait, unix| What::Ping(wait, 1, unix);
        Group {
            row: Row::Ping,
            title: "half round trip, 64 B, blocking".into(),
            more_turns: 1,
            cases: vec![
                (WINDLASS, both(self.spin, what("block", false))),
                (KERNEL, both(Runner::Bare, what("block", false))),
                (SPINNING, both(Runner::Bare, what("spin", false))),
                (UNIX_SPINNING, both(Runner::Bare, what("spin", true))),
            ],
            lines: vec![
                time("p50", "us", Bar::Lines(2.0)),
                time("p99", "us", Bar::Lines(3.0)),
                time("p50", "us", Bar::Times(9.0, &[SPINNING])),
                time("p99.9", "us", Bar::Shown),
            ],
        }
    }

    fn epoll(self, members: usize) -> Group {
        let what = What::Ping("epoll", members, false);
        Group {
            row: Row::Epoll,
            title: format!("half round trip through epoll_wait, of {members}"),
            more_turns: 1,
            cases: ours_and_kernel(self.spin, what),
            lines: vec![
                time("p50", "us", Bar::Lines(3.0)),
                time("p99", "us", Bar::Shown),
            ],
        }
    }

    fn poll(self, wait: &'static str) -> Group {
        Group {
            row: Row::Poll,
            title: format!("half round trip through {wait}"),
            more_turns: 1,
            cases: ours_and_kernel(self.spin, What::Ping(wait, 1, false)),
            lines: vec![time("p50", "us", Bar::Shown), time("p99", "us", Bar::Shown)],
        }
    }

    fn pair(self) -> Group {
        let via = |spin, gather| What::Stream(64, Via::Tcp { spin, gather });
        Group {
            row: Row::Pair,
            title: "send + recv of 64 B in a stream".into(),
            more_turns: 1,
            cases: vec![
                (WINDLASS, both(self.spin, via(false, true))),
                (KERNEL, both(Runner::Bare, via(false, true))),
                (SPINNING, both(Runner::Bare, via(true, true))),
                (NODELAY, both(Runner::Bare, via(false, false))),
                (NODELAY_SPINNING, both(Runner::Bare, via(true, false))),
                (MEMORY, both(Runner::Bare, What::Stream(64, Via::Memory))),
            ],
            lines: vec![time(
                "CPU ns",
                "ns of CPU",
                Bar::AtMostOrTimes(70.0, 1.5, MEMORY),
            )],
        }
    }

    fn stream(self, size: usize, times: f64) -> Group {
        let tcp = |gather| {
            What::Stream(
                size,
                Via::Tcp {
                    spin: false,
                    gather,
                },
            )
        };
        let of = |via| both(Runner::Bare, What::Stream(size, via));
        Group {
            row: Row::Stream,
            title: format!("stream, writes of {size} B"),
            more_turns: 1,
            cases: vec![
                (WINDLASS, both(self.spin, tcp(true))),
                (AT_SPIN_0, both(self.spin_0, tcp(true))),
                (KERNEL, both(Runner::Bare, tcp(true))),
                (NODELAY, both(Runner::Bare, tcp(false))),
                (UNIX, of(Via::Unix)),
                (SOCKMAP, of(Via::Sockmap)),
                (MEMORY, of(Via::Memory)),
            ],
            lines: vec![
                rate("Gbit/s", Bar::Times(1.0, &[KERNEL, NODELAY, UNIX, SOCKMAP])),
                rate("Gbit/s", Bar::Times(times, &[KERNEL, NODELAY])),
                Line {
                    of: AT_SPIN_0,
                    ..rate("Gbit/s", Bar::Times(EQUAL, &[KERNEL]))
                },
            ],
        }
    }

    fn redis(self) -> Vec<Group> {
        let group = |runner, clients, pipeline, times, title: &str| Group {
            row: Row::Redis,
            title: title.into(),
            more_turns: 1,
            cases: vec![
                (
                    WINDLASS,
                    both(runner, What::Redis(clients, pipeline, false)),
                ),
                (
                    KERNEL,
                    both(Runner::Bare, What::Redis(clients, pipeline, false)),
                ),
                (
                    UNIX,
                    both(Runner::Bare, What::Redis(clients, pipeline, true)),
                ),
            ],
            lines: vec![
                rate("GET", Bar::Times(times, &[KERNEL])),
                rate("SET", Bar::Times(times, &[KERNEL])),
            ],
        };
        vec![
            group(self.spin, 1, 1, 20.0, "redis, 1 client"),
            group(self.spin, 50, 1, 5.0, "redis, 50 clients"),
            group(self.spin, 50, 16, 1.6, "redis, 50 clients x 16"),
            group(self.spin_0, 50, 1, 1.2, "redis, 50 clients, spin 0"),
        ]
    }

    fn nginx(self) -> Vec<Group> {
        let group = |connections, keep, times, title: &str| Group {
            row: Row::Nginx,
            title: title.into(),
            more_turns: if keep { 1 } else { FOR_PERCENTS },
            cases: ours_and_kernel(self.spin, What::Pages(Web::Nginx, connections, keep)),
            lines: vec![rate("requests/s", Bar::Times(times, &[KERNEL]))],
        };
        vec![
            group(1, true, 6.0, "nginx 1 KiB, 1 connection"),
            group(50, true, 1.6, "nginx 1 KiB, 50 connections"),
            group(50, false, EQUAL, "nginx 1 KiB, connection per request"),
        ]
    }

    fn memcached(self) -> Group {
        Group {
            row: Row::Memcached,
            title: "memcached -t 2, 16 clients".into(),
            more_turns: 1,
            cases: ours_and_kernel(self.spin, What::Memcached(16)),
            lines: vec![rate("requests/s", Bar::Times(8.0, &[KERNEL]))],
        }
    }

    fn pgbench(self, clients: u32, times: f64) -> Group {
        Group {
            row: Row::Pgbench,
            title: format!("pgbench -S prepared, clients: {clients}"),
            more_turns: 1,
            cases: ours_and_kernel(self.spin, What::Pgbench(clients, false)),
            lines: vec![rate("transactions/s", Bar::Times(times, &[KERNEL]))],
        }
    }

    fn asleep(self) -> Group {
        Group {
            row: Row::Asleep,
            title: "half round trip, asleep, spin 0".into(),
            more_turns: FOR_PERCENTS,
            cases: ours_and_kernel(self.spin_0, What::Ping("block", 1, false)),
            lines: vec![time("p50", "us", Bar::Times(EQUAL, &[KERNEL]))],
        }
    }

    fn plain(self) -> Vec<Group> {
        let cases = |what| {
            let pair = |server, client| Pair {
                server,
                client,
                ..both(self.spin, what)
            };
            vec![
                (SERVER_ONLY, pair(self.spin, Runner::Bare)),
                (CLIENT_ONLY, pair(Runner::Bare, self.spin)),
                (KERNEL, pair(Runner::Bare, Runner::Bare)),
            ]
        };
        let lines = |line: Line| {
            let line = Line {
                bar: Bar::Times(EQUAL, &[KERNEL]),
                ..line
            };
            [SERVER_ONLY, CLIENT_ONLY]
                .map(|of| Line { of, ..line })
                .into()
        };
        let group = |title: &str, what, line| Group {
            row: Row::Plain,
            title: title.into(),
            more_turns: match what {
                // It cannot be told to be short.
                What::Redis(..) => 1,
                _ => FOR_PERCENTS,
            },
            cases: cases(what),
            lines: lines(line),
        };
        let tcp = Via::Tcp {
            spin: false,
            gather: true,
        };
        let shown = Bar::Shown;
        vec![
            group(
                "one end accelerated: half round trip, blocking",
                What::Ping("block", 1, false),
                time("p50", "us", shown),
            ),
            group(
                "one end accelerated: half round trip, spinning",
                What::Ping("spin", 1, false),
                time("p50", "us", shown),
            ),
            group(
                "one end accelerated: writes of 16384 B",
                What::Stream(16384, tcp),
                rate("Gbit/s", shown),
            ),
            group(
                "one end accelerated: redis, 50 clients",
                What::Redis(50, 1, false),
                rate("GET", shown),
            ),
        ]
    }

    fn files(self) -> Vec<Group> {
        let group = |title: &str, least, what| Group {
            row: Row::Files,
            title: title.into(),
            more_turns: 1,
            cases: anywhere(ours_and_kernel(self.default, what)),
            lines: vec![rate("MB/s", Bar::Times(least, &[KERNEL]))],
        };
        vec![
            group(
                "40 MB, nginx to curl",
                SENDFILE,
                What::File(Web::NginxSendfile, false),
            ),
            group(
                "40 MB, nginx to curl, kept connection",
                SENDFILE,
                What::File(Web::NginxSendfile, true),
            ),
            group(
                "40 MB, python3 -m http.server to curl",
                EQUAL,
                What::File(Web::Python, false),
            ),
            group("40 MB, a loop of sendfile", SENDFILE, What::SendFile),
        ]
    }

    fn programs(self) -> Vec<Group> {
        let pages = |web| What::Pages(web, 50, true);
        let wrk = "requests/s";
        let all: [(&str, What, &[&'static str]); 12] = [
            (
                "redis, 50 clients",
                What::Redis(50, 1, false),
                &["GET", "SET"],
            ),
            (
                "nginx 1 KiB, 50 connections",
                pages(Web::NginxSendfile),
                &[wrk],
            ),
            ("node 1 KiB, 50 connections", pages(Web::Node), &[wrk]),
            (
                "Java HttpServer 1 KiB, 50 connections",
                pages(Web::Java),
                &[wrk],
            ),
            (
                "python3 -m http.server 1 KiB, 8 clients",
                What::Pages(Web::Python, 8, false),
                &[wrk],
            ),
            ("memcached -t 2, 16 clients", What::Memcached(16), &[wrk]),
            (
                "pgbench -S, 1 client",
                What::Pgbench(1, false),
                &["transactions/s"],
            ),
            (
                "pgbench -S, 8 clients",
                What::Pgbench(8, false),
                &["transactions/s"],
            ),
            (
                "pgbench -S, 8 clients, Unix socket",
                What::Pgbench(8, true),
                &["transactions/s"],
            ),
            ("ssh, 300 MB", What::Ssh, &["MB/s"]),
            ("rsync, 300 MB", What::Rsync, &["MB/s"]),
            ("iperf3", What::Iperf3, &["Gbit/s"]),
        ];
        let group = |(title, what, figures): (&str, What, &[&'static str])| Group {
            row: Row::Programs,
            title: format!("default spin: {title}"),
            more_turns: match what {
                What::Ssh | What::Rsync => FOR_PERCENTS,
                _ => 1,
            },
            cases: anywhere(ours_and_kernel(self.default, what)),
            lines: figures
                .iter()
                .map(|figure| rate(figure, Bar::Times(EQUAL, &[KERNEL])))
                .collect(),
        };
        all.map(group).into()
    }

    fn start(self) -> Group {
        let what = What::Start;
        Group {
            row: Row::Start,
            title: "start and end of true".into(),
            more_turns: 1,
            cases: ours_and_kernel(self.spin, what),
            lines: vec![time("ms", "ms", Bar::More(5.0, KERNEL))],
        }
    }
}

fn both(runner: Runner, what: What) -> Pair {
    Pair {
        server: runner,
        client: runner,
        what,
        // The others do it themselves, or have several processes or threads at work.
        pinned: matches!(what, What::Redis(..) | What::Pages(..)),
    }
}

fn ours_and_kernel(ours: Runner, what: What) -> Cases {
    vec![
        (WINDLASS, both(ours, what)),
        (KERNEL, both(Runner::Bare, what)),
    ]
}

/// The same cases where the kernel puts the programs.
fn anywhere(mut cases: Cases) -> Cases {
    for (_, pair) in &mut cases {
        pair.pinned = false;
    }
    cases
}

fn time(figure: &'static str, unit: &'static str, bar: Bar) -> Line {
    Line {
        figure,
        unit,
        is_rate: false,
        of: WINDLASS,
        bar,
    }
}

fn rate(figure: &'static str, bar: Bar) -> Line {
    Line {
        figure,
        unit: figure,
        is_rate: true,
        of: WINDLASS,
        bar,
    }
}
