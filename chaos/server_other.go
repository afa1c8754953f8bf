//go:build !linux

package chaos

import "os/exec"

// dieWithParent can be had on Linux only.
func dieWithParent(*exec.Cmd) {}
