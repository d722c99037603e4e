// Command hungry takes memory until it is killed for it.
package main

import "os"

// enough is more than a session may have. Where nothing stops it, it ends as if all were well.
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
	os.Stdout.Write(taken[0][:1]) // all of it is in use until here
}
