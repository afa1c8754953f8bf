package demo

import (
	"os"
	"os/exec"
	"syscall"
)

var stopSignal, continueSignal os.Signal = syscall.SIGSTOP, syscall.SIGCONT

// ownGroup also makes the kernel kill the process if the director dies without cleaning up, for example by
// kill -9.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
