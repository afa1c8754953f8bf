//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package demo

import (
	"os"
	"os/exec"
	"syscall"
)

var stopSignal, continueSignal os.Signal = syscall.SIGSTOP, syscall.SIGCONT

func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
