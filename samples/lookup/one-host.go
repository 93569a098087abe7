// A lookup plugin of windlass: every address is behind the host that the command line names.
// go build -o /usr/local/lib/one-host one-host.go
package main

import (
	"encoding/json"
	"os"
)

type object = map[string]any

func main() {
	socket := os.NewFile(3, "windlassd")
	hears, says := json.NewDecoder(socket), json.NewEncoder(socket)
	target := object{"ip": os.Args[1], "port": 4789}

	says.Encode(object{"op": "hello", "v": 1, "kind": "dynamic"})
	for {
		var message struct {
			Op      string
			ID      uint64
			Overlay string
		}
		if hears.Decode(&message) != nil {
			return
		}
		switch message.Op {
		case "ping":
			says.Encode(object{"op": "pong", "id": message.ID})
		case "start", "set":
			says.Encode(object{"op": "ok", "overlay": message.Overlay})
		case "lookup":
			says.Encode(object{"op": "answer", "id": message.ID, "target": target, "ttl": 60})
		case "arp", "ndp", "dhcp":
			says.Encode(object{"op": "answer", "id": message.ID, "drop": true})
		case "hello", "stop", "announce", "retire", "forget", "resync", "unsupported":
		default:
			says.Encode(object{"op": "unsupported", "what": message.Op})
		}
	}
}
