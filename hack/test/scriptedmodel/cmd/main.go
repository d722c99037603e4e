// Command scriptedmodel serves a script as if it were a model. It is a stub for the demo and for
// tests.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func main() {
	address := flag.String("address", "127.0.0.1:0", "where to listen")
	file := flag.String("script", "", "the script, a file of JSON")
	flag.Parse()
	if err := serve(*address, *file); err != nil {
		fmt.Fprintln(os.Stderr, "scriptedmodel:", err)
		os.Exit(1)
	}
}

func serve(address, file string) error {
	if file == "" {
		return errors.New("name a script with -script")
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	script, err := scriptedmodel.Load(f)
	_ = f.Close()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("a scripted model (a stub, no model) answers at http://%s\n", listener.Addr())
	server := &http.Server{Handler: scriptedmodel.New(script), ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(listener)
}
