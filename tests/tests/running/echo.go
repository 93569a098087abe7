// An echo server, or with a second argument a client that checks what comes back. Its calls go round libc.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"os"
)

func serve(listener net.Listener) {
	for {
		stream, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			io.Copy(stream, stream)
			stream.Close()
		}()
	}
}

func ask(address string) {
	stream, err := net.Dial("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	total := 0
	for turn := 1; turn <= 2000; turn++ {
		message := bytes.Repeat([]byte{byte(turn)}, turn*7%9000+1)
		answer := make([]byte, len(message))
		if _, err := stream.Write(message); err != nil {
			log.Fatal(err)
		}
		if _, err := io.ReadFull(stream, answer); err != nil || !bytes.Equal(message, answer) {
			log.Fatal("turn ", turn, ": ", err)
		}
		total += len(answer)
	}
	fmt.Println("echoed", total)
}

func main() {
	address := "127.0.0.1:" + os.Args[1]
	if len(os.Args) > 2 {
		ask(address)
		return
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	go serve(listener)
	io.Copy(io.Discard, os.Stdin)
}
