package archive

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
)

// errCutOff says that a line has no end.
var errCutOff = errors.New("the line is cut off")

// line of a segment. Of a long one only a part is held, since who wants it may be slow, and many
// may want it.
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
			return n, errCutOff
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

// name of the event, as session.JournalName has it, of a line that need not be held for that.
func (l *line) name() (string, error) {
	sum := naming{sha256.New()}
	if _, err := l.WriteTo(sum); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)[:12]), nil
}

// naming leaves the end of the line out.
type naming struct{ hash.Hash }

func (n naming) Write(part []byte) (int, error) {
	_, err := n.Hash.Write(bytes.TrimSuffix(part, newline))
	return len(part), err
}

// cutOff says whether a line has no end, and so is none: it begins where the whole lines of its
// segment end. If it has one all the same, the segment is another than the one that was asked.
func (l *line) cutOff(offset int64, end func() (int64, error)) (bool, error) {
	if !l.long() {
		return false, nil // that is seen without
	}
	switch whole, err := end(); {
	case err != nil:
		return false, fmt.Errorf("read a segment: %w", err)
	case offset < whole:
		return false, nil
	}
	switch _, err := l.WriteTo(io.Discard); {
	case err == nil:
		return false, errMoved
	case !errors.Is(err, errCutOff):
		return false, fmt.Errorf("read a segment: %w", err)
	}
	return true, nil
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
