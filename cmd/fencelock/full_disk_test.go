package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// A server whose disk is full is not ready, even if nobody asks it for a lock, and even if writes that only replace
// something succeed. It says so in one line of its log, and is ready again when there is room.
func TestAFullDiskShowsWithoutTraffic(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, 4)
	p := start(t, "FENCELOCK_DATA="+filepath.Join(dir, "fencelock.db"))
	disk := full(t, dir)
	ready := func(want int) {
		t.Helper()
		p.until(fmt.Sprintf("/readyz says %d", want), func() bool {
			resp, err := p.client.Get(p.url + "/readyz")
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == want
		})
	}
	ready(http.StatusOK)
	for range 2 { // the second time it has just proved that there is room
		disk.begin()
		ready(http.StatusServiceUnavailable)
		p.until("the log says why", func() bool { return strings.Contains(p.Logs(), "no space left") })
		disk.end()
		ready(http.StatusOK)
	}
	if n := strings.Count(p.Logs(), "no space left"); n != 1 { // a state that comes back at once is no news
		t.Errorf("%d lines say so:\n%s", n, p.Logs())
	}
}

// A Postgres whose disk is full can still be read. For a server that is one state: its log says so in one line,
// whatever requests come meanwhile.
func TestAFullDiskUnderPostgresIsOneState(t *testing.T) {
	testenv.Long(t, "a full disk of Postgres that the log tells many times, as two states in turn")
	t.Parallel()
	const lasts = 6 * time.Second
	f := newPostgresFaults(t)
	disk := full(t, onSmallDisk(t, f.pg, f.text(`SHOW data_directory`), 160))
	o := observe(f.p)
	o.grantedAfter(time.Now(), patience)
	o.untilReady(func(l look) bool { return l.whole })
	disk.begin()
	o.untilReady(func(l look) bool { return strings.Contains(l.says, "No space left") })
	<-time.After(lasts) // what is measured is how often the log says it
	told, late := 0, 0
	for line := range strings.Lines(f.p.Logs()) {
		switch {
		case !strings.Contains(line, `"node state"`):
		case strings.Contains(line, "No space left"):
			told++
			if !strings.Contains(line, `"state":"refused"`) {
				t.Errorf("a Postgres that answers is not refused: %s", line)
			}
		case strings.Contains(line, context.DeadlineExceeded.Error()): // a busy machine's, another state
			late++
		}
	}
	if told < 1 || told > 1+late {
		t.Errorf("a full disk of %s is told in %d lines, want one:\n%s", lasts, told, f.p.Logs())
	}
	disk.end()
	o.untilReady(func(l look) bool { return l.sound })
	o.end()
}
