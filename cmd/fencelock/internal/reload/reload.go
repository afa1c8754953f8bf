// Package reload notices files that change. It polls, since mounts and renames
// affect the system's notifications differently on every system.
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

// Files are read together: an access file, or a certificate and its key.
type Files struct {
	Name  string // for the log
	Paths []string
	// Load reads the files. After an error what was loaded before stays in use.
	Load func() error
	// Refused, if not nil, is called with whether the present files cannot be used.
	Refused func(bool)
}

// Watch loads the files at once, since they may have changed after the program's
// start read them, and each time one of them has changed, until ctx ends. Files that
// Load refuses (half written, or a certificate without its new key) are loaded again
// at each look, and reported from the second refusal on.
func Watch(ctx context.Context, logger *slog.Logger, files Files) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	w := watch{Files: files, logger: logger}
	for w.look(); ; {
		select {
		case <-tick.C:
			w.look()
		case <-ctx.Done():
			return
		}
	}
}

type watch struct {
	Files
	logger *slog.Logger
	seen   []os.FileInfo // nil before the first look
	failed int           // looks since the files were last good
}

func (w *watch) look() {
	before, now := w.seen, look(w.Paths)
	changed := !slices.EqualFunc(before, now, same)
	if !changed && w.failed == 0 {
		return
	}
	w.seen = now
	if changed {
		w.failed = 0
	}
	if err := w.Load(); err != nil {
		w.refused(err)
		return
	}
	w.failed = 0
	w.report(false)
	if before != nil {
		w.logger.Info("a changed file is in use now", slog.String("what", w.Name))
	}
}

// reportedLook is the one at which files that are still refused are reported:
// the first may have come while they were being written.
const reportedLook = 2

func (w *watch) refused(err error) {
	if w.failed++; w.failed != reportedLook {
		return
	}
	w.report(true)
	w.logger.Error("a changed file cannot be used, so the previous version stays in force: correct the file; no restart is needed",
		slog.String("what", w.Name), slog.Any("error", err))
}

func (w *watch) report(refused bool) {
	if w.Refused != nil {
		w.Refused(refused)
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
