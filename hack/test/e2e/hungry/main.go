// Command hungry allocates memory until it is killed.
package main

import "os"

// enough is a number of bytes that exceeds the memory limit of a session. If no limit applies, the
// program ends successfully.
const enough = 4 << 30

func main() {
	var taken [][]byte
	for range enough >> 24 {
		piece := make([]byte, 1<<24)
		for i := 0; i < len(piece); i += os.Getpagesize() {
			piece[i] = 1
		}
		taken = append(taken, piece)
	}
	os.Stdout.Write(taken[0][:1]) // keeps the memory in use
}
