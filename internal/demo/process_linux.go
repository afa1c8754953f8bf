package demo

import (
	"os/exec"
	"syscall"
)

const (
	stopSignal     = syscall.SIGSTOP
	continueSignal = syscall.SIGCONT
	canStop        = true
)

// ownGroup also has the kernel end the process when the director dies without
// cleaning up, by kill -9 for example.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
