//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import "os/exec"

// startChild starts a command. On these systems this process is never the first process of a container.
func startChild(cmd *exec.Cmd) error { return cmd.Start() }

func reaped(int) {}
