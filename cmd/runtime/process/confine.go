package process

import (
	"fmt"
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ConfineCommand of the runtime runs the program that its arguments name, confined.
const ConfineCommand = "confine"

// Versions of Landlock: the first that lets files be moved between directories, and the first that
// knows signals.
const (
	landlockRefer  = 2
	landlockScopes = 6
)

// Confine a child, with all that it starts, to its own processes: it cannot look into others of the
// same user, such as a tool server that holds keys, nor signal them. The runtime does that in the
// child, before it becomes the program. Where the kernel has no Landlock the child runs all the
// same.
func Confine(cmd *exec.Cmd) {
	self, err := os.Executable()
	if err != nil || cmd.Err != nil {
		return
	}
	cmd.Args = append([]string{self, ConfineCommand, cmd.Path}, cmd.Args...)
	cmd.Path = self
}

// Confinable says whether the kernel can confine a process.
func Confinable() bool { return landlock() >= landlockRefer }

// Become confined, and then the program with these arguments, the first of which is its name.
func Become(program string, args []string) error {
	if err := restrict(landlock()); err != nil {
		return fmt.Errorf("confine %s: %w", program, err)
	}
	return fmt.Errorf("%s: %w", program, unix.Exec(program, args, os.Environ()))
}

// landlock is the version that the kernel has; 0 where it has none, or does not let a container use
// it.
func landlock() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// restrict this process. What is in a domain of Landlock's can look into those processes only that
// are in it too, whatever else the domain is for; so it is for as little as possible.
func restrict(version int) error {
	attributes := unix.LandlockRulesetAttr{}
	size := unsafe.Sizeof(attributes)
	switch {
	case version < landlockRefer:
		return nil
	case version < landlockScopes:
		// The one right that a domain takes away unless it gives it.
		attributes.Access_fs, size = unix.LANDLOCK_ACCESS_FS_REFER, unsafe.Sizeof(attributes.Access_fs)
	default:
		attributes.Scoped = unix.LANDLOCK_SCOPE_SIGNAL
	}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attributes)), size, 0)
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(rules))
	if attributes.Access_fs != 0 {
		if err := allowEverywhere(rules, attributes.Access_fs); err != nil {
			return err
		}
	}
	// It is in a session's pod anyway, and the kernel asks for it.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func allowEverywhere(rules uintptr, access uint64) error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	everywhere := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(root)}
	defer unix.Close(root)
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules, unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&everywhere)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
