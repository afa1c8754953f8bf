package demo

import (
	"os"
	"os/exec"
	"syscall"
)

var stopSignal, continueSignal os.Signal = syscall.SIGSTOP, syscall.SIGCONT

// ownGroup also has the kernel end the process when the director dies without
// cleaning up, by kill -9 for example.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
