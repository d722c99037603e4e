package supervise

import (
	"bytes"
	"io"
	"net"
	"time"
)

// silentTold is how often in a row a session is silent before it is told to end.
const silentTold = 3

// question is written by hand: a client of HTTP would make this process slower to start.
var question, answer = []byte("GET /alive HTTP/1.0\r\n\r\n"), []byte("HTTP/1.0 200 ")

// ask the session again and again whether it is alive, and tell how often in a row it was silent. A
// kubelet could ask as well, but then every pod would carry the question, and the API server with
// each write of it.
func ask(place Place) <-chan int {
	silent := make(chan int)
	go func() {
		for failures := 0; ; {
			time.Sleep(place.AskInterval) // for as long as this process is there
			if answers(place.BindAddress, place.AskTimeout) {
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
