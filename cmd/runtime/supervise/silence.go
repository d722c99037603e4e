package supervise

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	// answerTimeout is how long the session may take to say that it is alive.
	answerTimeout = 5 * time.Second
	// It is told to end when it was silent so often in a row, and killed when it still was then.
	silentTold, silentKilled = 3, 5
)

// question is written by hand: a client of HTTP would make this process slower to start.
var question, answer = []byte("GET /alive HTTP/1.0\r\n\r\n"), []byte("HTTP/1.0 200 ")

// ask the session again and again whether it is alive, and tell how often in a row it was silent. A
// kubelet could ask as well, but then every pod would carry the question, and the API server with
// each write of it.
func ask(address string, interval time.Duration) <-chan int {
	silent := make(chan int)
	go func() {
		for failures := 0; ; silent <- failures {
			time.Sleep(interval)
			if answers(address) {
				failures = 0
			} else {
				failures++
			}
		}
	}()
	return silent
}

func answers(address string) bool {
	connection, err := net.DialTimeout("tcp", address, answerTimeout)
	if err != nil {
		return false
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return false
	}
	if _, err := connection.Write(question); err != nil {
		return false
	}
	said := make([]byte, len(answer))
	_, err = io.ReadFull(connection, said)
	return err == nil && bytes.Equal(said, answer)
}

// endSilent ends a session that was silent for too long. The container ends with it, and is started
// again.
func endSilent(child, silent int) {
	switch silent {
	case silentTold:
		fmt.Fprintf(os.Stderr, "supervisor: the session does not answer, %d times in a row: it is told to end\n", silent)
		_ = syscall.Kill(child, syscall.SIGTERM)
	case silentKilled:
		fmt.Fprintln(os.Stderr, "supervisor: the session neither answers nor ends: it is killed")
		_ = syscall.Kill(child, syscall.SIGKILL)
	}
}
