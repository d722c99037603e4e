// Command server is an S3 server that stores everything in memory, for tests.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
	address := flag.String("bind-address", "127.0.0.1:9000", "The address of the server.")
	flag.Parse()
	server := &http.Server{Addr: *address, ReadHeaderTimeout: 10 * time.Second,
		Handler: gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true)).Server()}
	if err := server.ListenAndServe(); err != nil {
		fmt.Fprintln(os.Stderr, "s3:", err)
		os.Exit(1)
	}
}
