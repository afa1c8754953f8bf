package chaos

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel end the child when the test process dies.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
