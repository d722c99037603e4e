package supervise

import (
	"bytes"
	"io"
	"net"
	"time"
)

// maxSilences is how many probes in a row a session may leave unanswered before it is asked to end.
const maxSilences = 3

// question is an HTTP request, written by hand because an HTTP client would make this process
// slower to start. answer is the beginning of a successful response.
var question, answer = []byte("GET /alive HTTP/1.0\r\n\r\n"), []byte("HTTP/1.0 200 ")

// probe checks periodically whether the session is alive. After each check it sends the number of
// failed checks in a row. A liveness probe of the kubelet would check the same, but would make
// every pod object and each write of a pod larger.
func probe(config Config) <-chan int {
	silent := make(chan int)
	go func() {
		for failures := 0; ; {
			time.Sleep(config.AskInterval) // until this process exits
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
