package demo

import "syscall"

// dieWithParent has the kernel end the child when the director dies without
// cleaning up, by kill -9 for example.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
