package archive

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// line of a segment. Of a long one only a part is held, since who wants it may be slow, and many may want it.
type line struct {
	reader *bufio.Reader
	// part is what was read last, and err why the line does not end with it.
	part []byte
	err  error
	// size of what was read.
	size int64
}

func readLine(reader *bufio.Reader) *line {
	l := &line{reader: reader}
	l.read()
	return l
}

func (l *line) read() {
	l.part, l.err = l.reader.ReadSlice('\n')
	l.size += int64(len(l.part))
}

// long says whether there is more of it.
func (l *line) long() bool { return errors.Is(l.err, bufio.ErrBufferFull) }

// WriteTo writes what was not written of it, its end included.
func (l *line) WriteTo(w io.Writer) (n int64, err error) {
	for {
		written, err := w.Write(l.part)
		n += int64(written)
		l.part = nil
		switch {
		case err != nil:
			return n, err
		case errors.Is(l.err, io.EOF):
			return n, io.ErrUnexpectedEOF
		case !l.long():
			return n, l.err
		}
		l.read()
	}
}

// bytes of it in one piece.
func (l *line) bytes() ([]byte, error) {
	var text piece
	_, err := l.WriteTo(&text)
	return text.Bytes(), err
}

// piece is no larger than what is taken at once.
type piece struct{ bytes.Buffer }

func (p *piece) Write(text []byte) (int, error) {
	if p.Len()+len(text) > maxSegment {
		return 0, bufio.ErrTooLong
	}
	return p.Buffer.Write(text)
}

// gather it in one piece: it may be one that was cut off, and so none.
func (l *line) gather() {
	var text bytes.Buffer
	_, _ = l.WriteTo(&text) // err says it
	l.part = text.Bytes()
}

// id of the event, as far as what is held says it: a session writes it first.
func (l *line) id() int {
	if !l.long() {
		return idOf(l.part)
	}
	head := json.NewDecoder(bytes.NewReader(l.part))
	if brace, err := head.Token(); err != nil || brace != json.Delim('{') {
		return -1
	}
	name, err := head.Token()
	id := -1
	if err != nil || name != "id" || head.Decode(&id) != nil {
		return -1
	}
	return id
}
