package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ConfineCommand is the subcommand of Confiner that runs a confined program.
const ConfineCommand = "confine"

// Confiner is the name of the program that confines itself and then executes another program.
// Confine looks for it in the directory of the running program. The default is the supervisor,
// which is smaller than the runtime and starts much faster. Tests set Confiner to the name of the
// test program.
var Confiner = "supervisor"

// landlockRefer is the first Landlock version that supports moving files between directories.
// landlockScopes is the first version that can restrict signals.
const (
	landlockRefer  = 2
	landlockScopes = 6
)

// Confine confines a child and its descendants. They cannot inspect or signal other processes of
// the same user, such as a tool server with keys. The child first runs Confiner, which restricts
// itself and then executes the program of cmd. If the kernel has no Landlock, the child runs
// unconfined.
func Confine(cmd *exec.Cmd) {
	self, err := os.Executable()
	if err != nil || cmd.Err != nil {
		return
	}
	confiner := filepath.Join(filepath.Dir(self), Confiner)
	cmd.Args = append([]string{confiner, ConfineCommand, cmd.Path}, cmd.Args...)
	cmd.Path = confiner
}

// Confinable reports whether the kernel can confine a process.
func Confinable() bool { return landlock() >= landlockRefer }

// Become confines this process and then executes the program. As in execve, args[0] is the
// program's name.
func Become(program string, args []string) error {
	// Landlock confines only the calling thread, so the same thread must execute the program.
	runtime.LockOSThread()
	if err := restrict(landlock()); err != nil {
		return fmt.Errorf("confine %s: %w", program, err)
	}
	return fmt.Errorf("%s: %w", program, unix.Exec(program, args, os.Environ()))
}

// landlock returns the kernel's Landlock version. It returns 0 if the kernel has no Landlock or the
// container is not allowed to use it.
func landlock() int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// restrict puts this process into a Landlock domain. The process can then inspect only processes of
// the same domain. As little else as possible is restricted.
func restrict(version int) error {
	attributes := unix.LandlockRulesetAttr{}
	size := unsafe.Sizeof(attributes)
	switch {
	case version < landlockRefer:
		return nil
	case version < landlockScopes:
		// By default, every domain denies the right REFER: to move files between directories. This
		// domain allows REFER everywhere, and restricts no other right.
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
	// Landlock requires no_new_privs. A session's pod has it anyway.
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
