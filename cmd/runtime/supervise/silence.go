package supervise

import (
	"bytes"
	"io"
	"net"
	"time"
)

// maxSilences is the number of unanswered probes in a row after which the session is asked to end.
const maxSilences = 3

// question is an HTTP request as text, because the package net/http would make this process slower
// to start. answer is the beginning of a successful response.
var question, answer = []byte("GET /alive HTTP/1.0\r\n\r\n"), []byte("HTTP/1.0 200 ")

// probe probes the session periodically. After each probe, it sends the number of failed probes in
// a row to the returned channel. The kubelet could do the same, but a liveness probe would make
// every pod object larger.
func probe(config Config) <-chan int {
	silent := make(chan int)
	go func() {
		for failures := 0; ; { // until this process exits
			time.Sleep(config.AskInterval)
			if answers(config.BindAddress, config.AskTimeout) {
				failures = 0
			} else {
				failures++
			}
			silent <- failures
		}
	}()
	return silent
}

func answers(address string, timeout time.Duration) bool {
	deadline := time.Now().Add(timeout)
	connection, err := (&net.Dialer{Deadline: deadline}).Dial("tcp", address)
	if err != nil {
		return false
	}
	defer connection.Close()
	if err := connection.SetDeadline(deadline); err != nil {
		return false
	}
	if _, err := connection.Write(question); err != nil {
		return false
	}
	said := make([]byte, len(answer))
	_, err = io.ReadFull(connection, said)
	return err == nil && bytes.Equal(said, answer)
}
