//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package demo

import "syscall"

// dieWithParent can do nothing where the kernel has no parent-death signal.
func dieWithParent(*syscall.SysProcAttr) {}
