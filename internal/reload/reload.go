// Package reload notices files that change, without asking the system to tell:
// what mounts and renames do to such notices differs from system to system.
package reload

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"
)

// Every is how often files are looked at.
const Every = time.Second

// Watch calls load each time one of the files has changed, until ctx ends. What
// load refuses (a file that is half written, say, or a certificate whose key is
// yet to come) is tried again at each look, and logged once if it is still
// refused at the second; load itself keeps what it had.
func Watch(ctx context.Context, logger *slog.Logger, what string, files []string, load func() error) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	w := watch{logger: logger, what: what, files: files, load: load, seen: look(files)}
	for {
		select {
		case <-tick.C:
			w.look()
		case <-ctx.Done():
			return
		}
	}
}

type watch struct {
	logger *slog.Logger
	what   string
	files  []string
	load   func() error
	seen   []os.FileInfo
	failed int // looks since the files were last good
}

func (w *watch) look() {
	now := look(w.files)
	changed := !slices.EqualFunc(w.seen, now, same)
	if !changed && w.failed == 0 {
		return
	}
	w.seen = now
	if changed {
		w.failed = 0
	}
	err := w.load()
	if err == nil {
		w.failed = 0
		w.logger.Info("read again", slog.String("what", w.what))
		return
	}
	if w.failed++; w.failed == 2 {
		w.logger.Error("a changed file cannot be used; the version before stays in force: mend the file, no restart is needed",
			slog.String("what", w.what), slog.Any("error", err))
	}
}

func look(files []string) []os.FileInfo {
	infos := make([]os.FileInfo, len(files))
	for i, file := range files {
		infos[i], _ = os.Stat(file) // a file that has gone is a change, and load says what is wrong
	}
	return infos
}

func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
