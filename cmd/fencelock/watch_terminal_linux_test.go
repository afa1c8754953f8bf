package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
	"github.com/fencelock/fencelock/internal/testenv"
)

// The control sequences that ls --watch uses.
const (
	clearScreen = "\x1b[2J"
	toTopLeft   = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	dim         = "\x1b[2m"
)

func resize(t *testing.T, terminal *os.File, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
}

// lastFrame is the last whole frame that ls --watch drew, as its lines.
func lastFrame(shown *testenv.Buffer) []string {
	frames := strings.Split(shown.String(), toTopLeft)
	for i := len(frames) - 1; i > 0; i-- {
		if text, whole := strings.CutSuffix(strings.TrimSuffix(frames[i], clearScreen), clearBelow); whole {
			return strings.Split(strings.ReplaceAll(strings.ReplaceAll(text, clearLine, ""), "\r", ""), "\n")
		}
	}
	return nil
}

// The list fits the terminal, also after the terminal's size changes, and its header stays. Lines that are no longer
// known are dimmed under the reason.
func TestListWatchOnATerminal(t *testing.T) {
	t.Parallel()
	p := start(t)
	for i := range 30 {
		p.acquire(fmt.Sprintf(`{"resource":"注文/%02d","holder":%q,"ttl_ms":60000}`, i, strings.Repeat("ワーカー", i%5)))
	}
	p.acquire(`{"resource":"0","holder":"` + "\u202e" + `live","ttl_ms":60000}`)
	path := testenv.Program(t)
	cmd, outer, shown := p.onTerminal(path, "ls", "--watch", "--interval", "100ms")
	fits := func(width, height, rows int, last string) {
		t.Helper()
		resize(t, outer, uint16(width), uint16(height))
		p.until(fmt.Sprintf("the list fits %d × %d", width, height), func() bool {
			lines := lastFrame(shown)
			return len(lines) == rows && strings.HasPrefix(lines[0], "RESOURCE") && strings.Contains(lines[len(lines)-1], last)
		})
		for i, line := range lastFrame(shown) {
			if screen.Width(line) >= width {
				t.Errorf("line %d is %d wide, the terminal %d: %q", i, screen.Width(line), width, line)
			}
		}
	}
	fits(60, 10, 10, "… and 23 more")
	fits(40, 20, 20, "… and 13 more")
	fits(200, 50, 32, "注文/29")
	fits(30, 5, 5, "… and 28 more")
	if text := shown.String(); strings.Contains(text, "\u202e") || !strings.Contains(text, `\u202elive`) {
		t.Errorf("the direction of writing changes: %q", text)
	}
	// A wide name and a narrow one: what stands behind them begins in the same column.
	resize(t, outer, 200, 50)
	p.until("the list is wide", func() bool { return len(lastFrame(shown)) == 32 })
	lines := lastFrame(shown)
	header, _, _ := strings.Cut(lines[0], "TOKEN")
	for _, line := range lines[1:] {
		cells := 0
		for i, r := range line {
			if cells == screen.Width(header) {
				if r != '1' || line[i-1] != ' ' {
					t.Errorf("no token stands under its header: %q", line)
				}
				break
			}
			cells += screen.Width(string(r))
		}
	}

	p.Kill()
	p.until("the state is unknown", func() bool {
		text := strings.Join(lastFrame(shown), "\n")
		return strings.Contains(strings.ReplaceAll(text, "\n", " "), "it is unknown which locks are held") && strings.Contains(text, "ago:") && strings.Contains(text, dim+"注文/29")
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	exits(t, cmd, 0, shown, "")
}
