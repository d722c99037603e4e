package process

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseProgram unmaps the pages of this program's code and constants. An idle session needs few
// of them. The kernel maps a page again when it is needed, usually from the page cache.
func ReleaseProgram() error {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var start, end uintptr
		var access string
		// Skip writable pages. They hold variables, whose values would be lost.
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &start, &end, &access); err != nil ||
			access != "r-xp" && access != "r--p" || !strings.HasSuffix(lines.Text(), " "+self) {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED); errno != 0 {
			return errno
		}
	}
	return lines.Err()
}
