#!/usr/bin/env python3
"""A lookup plugin of windlass: every address is behind the host that the command line names.

windlass overlay create ov0 --vni 23 --search plugin -p plugin/command="/usr/local/lib/one-host.py 192.0.2.7",...
"""
import json
import sys

target = {"ip": sys.argv[1], "port": 4789}
hears = open(3, "r", encoding="utf-8")
says = open(3, "w", encoding="utf-8", closefd=False)


def say(**message):
    says.write(json.dumps(message) + "\n")
    says.flush()


say(op="hello", v=1, kind="dynamic")
for line in hears:
    message = json.loads(line)
    match message["op"]:
        case "ping":
            say(op="pong", id=message["id"])
        case "start" | "set":
            say(op="ok", overlay=message["overlay"])
        case "lookup":
            say(op="answer", id=message["id"], target=target, ttl=60)
        case "arp" | "ndp" | "dhcp":
            say(op="answer", id=message["id"], drop=True)
        case "hello" | "stop" | "announce" | "retire" | "forget" | "resync" | "unsupported":
            pass
        case unknown:
            say(op="unsupported", what=unknown)
