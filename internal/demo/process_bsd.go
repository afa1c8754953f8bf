//go:build darwin || freebsd || netbsd || openbsd || dragonfly

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

func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
