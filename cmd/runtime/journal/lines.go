package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
)

// ReadLines yields the lines of a journal's file, with their ends. The last one may have none. A line
// that is longer than any event is an error. A line is valid until the next.
func ReadLines(file io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		reader := bufio.NewReaderSize(file, 64<<10)
		var line []byte
		for {
			part, err := reader.ReadSlice('\n')
			line = append(line, part...)
			switch {
			case len(line) > maxLine+1:
				yield(nil, fmt.Errorf("a line of more than %d bytes", maxLine))
				return
			case errors.Is(err, bufio.ErrBufferFull):
				continue
			case err != nil && !errors.Is(err, io.EOF):
				yield(nil, err)
				return
			}
			if len(line) > 0 && !yield(line, nil) || err != nil {
				return
			}
			line = line[:0]
		}
	}
}
