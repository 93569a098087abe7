//! The examples of the manual, by command.

/// What is typed, with a sentence before it.
pub(crate) type Example = (&'static str, &'static str);

/// The examples of a command.
pub(crate) fn of(command: &str) -> &'static [Example] {
    EXAMPLES
        .iter()
        .find(|(name, _)| *name == command)
        .map_or(&[], |(_, examples)| examples)
}

static EXAMPLES: &[(&str, &[Example])] = &[
    (
        "windlass",
        &[
            (
                "A bridge, a VNIC for a container and a VNIC for a DPDK program:",
                "windlass bridge create br0\n\
              windlass vnic create v0 --bridge br0 --attach tap,netns=a,address=10.0.0.1/24\n\
              windlass vnic create v1 --bridge br0 --attach memif,socket=/run/m.sock,id=0,role=server",
            ),
            (
                "The same in a script that may run twice:",
                "windlass bridge create br0 --may-exist\n\
              windlass vnic delete v9 --if-exists",
            ),
            (
                "Names and states for the shell:",
                "windlass vnic show -p -o name,state | while IFS=: read name state; do ...; done",
            ),
        ],
    ),
    (
        "zone",
        &[
            (
                "A tenant who may make VNICs on one bridge, in one network namespace:",
                "windlass zone create a --owner ann --netns a --bridge br0",
            ),
            (
                "No mail from any of its VNICs, and what that has stopped at one of them:",
                "windlass zone set a firewall-base='drop count out tcp to port 25'\n\
              windlass vnic rules v0",
            ),
        ],
    ),
    (
        "bridge",
        &[
            (
                "A bridge that forgets addresses after a minute:",
                "windlass bridge create br0 --set ageing=60",
            ),
            (
                "Its forwarding table, and an entry that stays:",
                "windlass bridge fdb show br0\n\
              windlass bridge fdb add br0 02:00:00:00:00:09 up0 --vlan 10",
            ),
        ],
    ),
    (
        "uplink",
        &[
            (
                "Join the interface eth0 to a bridge; the host keeps off it until the uplink is deleted:",
                "windlass uplink create up0 --device eth0 --bridge br0 --attach packet",
            ),
            (
                "The same by AF_XDP, on an interface that leaves VLAN tags in frames:",
                "ethtool -K eth0 rxvlan off\n\
              windlass uplink create up0 --device eth0 --bridge br0 --attach xdp",
            ),
        ],
    ),
    (
        "vnic",
        &[
            (
                "A TAP in the network namespace a, with an address:",
                "windlass vnic create v0 --bridge br0 --attach tap,netns=a,address=10.0.0.1/24",
            ),
            (
                "A memif socket to which a program connects:",
                "windlass vnic create v1 --bridge br0 --attach memif,socket=/run/m.sock,id=0,role=server",
            ),
            (
                "In VLAN 10, with tagged frames of 20 to 30, and addresses of its own behind it:",
                "windlass vnic create v2 --bridge br0 --vlan 10 --tagged 20-30 --set mac-nospoof=off",
            ),
            (
                "An interface on which tcpdump sees everything that the bridge carries:",
                "windlass vnic create watch --bridge br0 --attach tap --set span=on\n\
              tcpdump -i watch",
            ),
            (
                "Totals, and then rates every second; and why frames were dropped:",
                "windlass vnic show -s -i 1\n\
              windlass vnic show -s -s",
            ),
            (
                "The address alone, for a script:",
                "windlass vnic get v0 mac -p -o value",
            ),
        ],
    ),
    (
        "flow",
        &[
            (
                "A VNIC has 20 Mbit/s, and what it exchanges with port 443 goes first:",
                "windlass vnic set v0 maxbw=20\n\
              windlass flow add web --vnic v0 --attr transport=tcp,remote_port=443 --prop priority=high",
            ),
            (
                "What the VNIC exchanges with one network has 5 Mbit/s in each direction:",
                "windlass flow add backup --vnic v1 --attr remote_ip=10.9.0.0/16 --prop maxbw=5,priority=low",
            ),
            (
                "What a flow has counted, also by reason of its drops:",
                "windlass flow show backup -o all",
            ),
        ],
    ),
    (
        "vnd",
        &[
            (
                "A device for a program, over a VNIC of its own:",
                "windlass vnic create p0 --bridge br0\n\
              windlass vnd create p0",
            ),
            (
                "More room for frames that wait, from the next time that it is opened:",
                "windlass vnd set p0 rxbuf=2M txbuf=2M",
            ),
            (
                "The socket of a device in a zone, for a program that speaks memif:",
                "windlass vnd list dev0 -z red -p -o socket",
            ),
            (
                "Totals, and then four times the rates of a second:",
                "windlass vnd stat 1 5",
            ),
        ],
    ),
    (
        "fdb",
        &[(
            "The entries behind one member, and their removal:",
            "windlass fdb show br0 --member up0\n\
              windlass fdb flush br0 --member up0",
        )],
    ),
    (
        "worker",
        &[
            (
                "How busy each worker is, every second:",
                "windlass worker show -i 1",
            ),
            (
                "Have worker 1 serve the first ring of a VNIC, and see who serves what:",
                "windlass worker move v0/0 1\n\
              windlass vnic show -o name,workers",
            ),
        ],
    ),
    (
        "stat",
        &[(
            "Rates of all uplinks and VNICs, five times:",
            "windlass stat -i 1 -c 6",
        )],
    ),
    (
        "apply",
        &[
            (
                "See what a document would change, then change it:",
                "windlass apply net.json --dry-run\n\
              windlass apply net.json",
            ),
            (
                "Copy the configuration of one daemon to another:",
                "windlass export --socket /run/a.sock | windlass apply - --socket /run/b.sock",
            ),
        ],
    ),
    ("export", &[("Keep a copy:", "windlass export > net.json")]),
    (
        "run",
        &[
            (
                "A server and its client, each on a core of its own:",
                "windlass run --spin 50 -- redis-server\n\
              windlass run --spin 50 -- redis-benchmark",
            ),
            (
                "Whether a program can be accelerated:",
                "windlass run --check redis-server",
            ),
            (
                "With windlass's allocator, too:",
                "windlass run --alloc -- redis-server",
            ),
            (
                "What its connections did, on stderr at its end:",
                "windlass run -v -- redis-benchmark",
            ),
        ],
    ),
    (
        "sockets",
        &[
            (
                "Rates of each connection, every second:",
                "windlass sockets -i 1",
            ),
            (
                "Why connections are on the kernel, for a script:",
                "windlass sockets -p -o pid,comm,state,reason",
            ),
        ],
    ),
    (
        "memory",
        &[
            (
                "What a program's memory consists of:",
                "windlass memory 4711",
            ),
            (
                "What was allocated in the last hour and stays:",
                "windlass memory growth 4711 --since 1h",
            ),
            (
                "What nothing points to:",
                "windlass memory leaks 4711 --scan",
            ),
        ],
    ),
    ("status", &[("How is it:", "windlass status")]),
    (
        "metrics",
        &[
            ("Once:", "windlass metrics"),
            (
                "For a scraper on this host:",
                "windlass metrics --listen 127.0.0.1:9178",
            ),
            (
                "For a scraper on another one, which sends the token:",
                "windlass metrics --listen 192.0.2.1:9178 --token-file /etc/windlass/scraper.token",
            ),
        ],
    ),
    (
        "stackdump",
        &[("All channels of all processes:", "windlass stackdump all")],
    ),
    (
        "snoop",
        &[
            (
                "The first ten frames of a web server's VNIC, with link headers:",
                "windlass snoop -d web0 -v -c 10 tcp port 80",
            ),
            (
                "What enters a bridge, and why what of it died, in files that take turns:",
                "windlass snoop -d br0 --drops -C 100 -W 5 -w /var/tmp/br0",
            ),
        ],
    ),
    (
        "gen",
        &[
            (
                "10,000 frames a second in 100 flows, of an Internet mix of sizes, for a minute:",
                "windlass gen p0 --dst-mac p1 --rate 10k --flows 100 --size imix --time 60",
            ),
            (
                "A gigabit a second over IPv6:",
                "windlass gen p0 --dst-mac p1 --bps 1G --size 1514 --src-ip fd00::1 --dst-ip fd00::2",
            ),
            (
                "What a capture has, at its times, then as fast as the bridge takes it:",
                "windlass gen p0 --replay web0.pcapng\nwindlass gen p0 --replay web0.pcapng --rate max",
            ),
        ],
    ),
    (
        "sink",
        &[
            ("Until Ctrl-C:", "windlass sink p1"),
            (
                "Loss and the 99.9th percentile of a minute, for a script:",
                "windlass sink p1 --time 60 -p -o time,lost,p999-us | tail -n 1",
            ),
        ],
    ),
    (
        "monitor",
        &[(
            "Follow the states of members:",
            "windlass monitor --json | grep state",
        )],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every line of an example that calls windlass is a command line that windlass understands.
    #[test]
    fn examples_are_understood() {
        let examples = EXAMPLES.iter().flat_map(|(_, examples)| *examples);
        let lines = examples.flat_map(|(_, lines)| lines.lines());
        for line in lines.filter(|line| line.starts_with("windlass ")) {
            let words = line
                .split_whitespace()
                .take_while(|word| !["|", ">"].contains(word));
            let parsed = windlass_command::command().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
        }
    }
}
