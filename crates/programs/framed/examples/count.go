// Counts packets by EtherType, and prints a line for each batch: go run count.go SOCKET
//
// By cgo, over an installed libwindlass (pkg-config finds it). Frames lie in the ring's memory: none is copied.
package main

/*
#cgo pkg-config: windlass
#include <stdlib.h>
#include <windlass.h>
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"unsafe"
)

// As many frames as one call lends.
const batch = C.WINDLASS_FRAMEIO_NVECS_MAX

// Device is an open device of windlassd.
type Device struct {
	handle *C.windlass_t
	bufs   [batch]C.windlass_buf_t
}

// Open opens the device behind a socket.
func Open(path string) (*Device, error) {
	// The number of an error is the calling thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	handle := C.windlass_open_socket(name, 0)
	if handle == nil {
		return nil, fmt.Errorf("%s: %s", path, C.GoString(C.windlass_strerror(C.windlass_errno())))
	}
	return &Device{handle: handle}, nil
}

// Batch waits for frames and gives each to a function, which may use it until it returns.
func (d *Device) Batch(each func(frame []byte)) error {
	count, err := C.windlass_peek(d.handle, &d.bufs[0], batch)
	for count < 0 {
		// Go's scheduler interrupts threads by signals.
		if err != syscall.EINTR {
			return err
		}
		count, err = C.windlass_peek(d.handle, &d.bufs[0], batch)
	}
	for _, buf := range d.bufs[:count] {
		each(unsafe.Slice((*byte)(buf.buf), int(buf.len)))
	}
	if done, err := C.windlass_release(d.handle, C.uint(count)); done != 0 {
		return err
	}
	return nil
}

// Close closes the device.
func (d *Device) Close() { C.windlass_close(d.handle) }

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: count SOCKET")
	}
	device, err := Open(os.Args[1])
	if err != nil {
		return err
	}
	defer device.Close()
	fmt.Println("counting")
	counts := map[uint16]int{}
	for {
		err := device.Batch(func(frame []byte) { counts[binary.BigEndian.Uint16(frame[12:])]++ })
		if err != nil {
			return err
		}
		var words []string
		for kind, n := range counts {
			words = append(words, fmt.Sprintf("%04x=%d", kind, n))
		}
		sort.Strings(words)
		fmt.Println(strings.Join(words, " "))
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
