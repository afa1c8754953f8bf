//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package supervise

import (
	"fmt"
	"math"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// victim starts a process group of two processes. ended gets the exit status of the first one, the shell.
func victim(t *testing.T, script string) (pgid int, ended <-chan syscall.WaitStatus) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pgid = cmd.Process.Pid
	t.Cleanup(func() { _ = syscall.Kill(-pgid, syscall.SIGKILL) })
	if _, err := out.Read(make([]byte, 1)); err != nil { // it is set up
		t.Fatal(err)
	}
	done := make(chan syscall.WaitStatus, 1)
	go func() {
		_ = cmd.Wait()
		done <- cmd.ProcessState.Sys().(syscall.WaitStatus)
	}()
	return pgid, done
}

// watching runs a watchdog's loop in this process. over gets the watchdog when the loop has ended.
func watching(t *testing.T) (lines chan string, over <-chan *watch) {
	t.Helper()
	lines = make(chan string)
	done := make(chan *watch, 1)
	go func() {
		w := &watch{kill: math.MaxInt64}
		w.run(lines)
		done <- w
	}()
	return lines, done
}

const stubborn600 = `trap "" TERM; echo x; sleep 600`

func TestWatchdogKillsAtTheDeadline(t *testing.T) {
	pgid, ended := victim(t, stubborn600)
	lines, over := watching(t)
	lines <- fmt.Sprintf(lineWatch, pgid, time.Second)
	lines <- fmt.Sprintf(lineKill, monotonic()+50*time.Millisecond)
	moved := monotonic() + 500*time.Millisecond
	lines <- fmt.Sprintf(lineKill, moved)
	status := <-ended
	if status.Signal() != syscall.SIGKILL || monotonic() < moved {
		t.Errorf("%v, %s before the deadline", status, moved-monotonic())
	}
	lines <- lineDone
	if w := <-over; !w.killed {
		t.Error("it does not know that it killed")
	}
}

func TestWatchdogLeavesWhatIsOver(t *testing.T) {
	pgid, ended := victim(t, stubborn600)
	lines, over := watching(t)
	lines <- fmt.Sprintf(lineWatch, pgid, time.Second)
	lines <- fmt.Sprintf(lineKill, monotonic()+time.Hour)
	lines <- lineDone
	close(lines)
	if w := <-over; w.killed || !groupAlive(pgid) || len(ended) > 0 {
		t.Error("it ended the group")
	}
}

// When the supervisor dies without a message, the watchdog ends the group with SIGTERM, and with SIGKILL after the
// grace.
func TestWatchdogEndsWhatWasAbandoned(t *testing.T) {
	for script, want := range map[string]syscall.WaitStatus{
		`trap 'exit 7' TERM; echo x; while :; do sleep 0.02; done`: 7 << 8,
		stubborn600: syscall.WaitStatus(syscall.SIGKILL),
	} {
		pgid, ended := victim(t, script)
		lines, over := watching(t)
		lines <- fmt.Sprintf(lineWatch, pgid, 500*time.Millisecond)
		lines <- fmt.Sprintf(lineKill, monotonic()+time.Hour)
		close(lines)
		<-over
		if got := <-ended; got != want {
			t.Errorf("%s: status %#x, want %#x", script, got, want)
		}
	}
}
