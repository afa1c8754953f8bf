// Package reload notices files that change. It polls, because systems differ in how mounts and renames
// affect their notifications.
package reload

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"
)

// every is the interval between two looks at the files.
const every = time.Second

// Files is a group of files that are read together: an access file, or a certificate and its key.
type Files struct {
	Name  string // the name in the log
	Paths []string
	// Load reads the files. After an error the previous content stays in use.
	Load func() error
	// Refused, if not nil, is called after each load with whether the files are unusable.
	Refused func(bool)
}

// Watch loads the files at once, because they may have changed since the program's start read them. It
// loads them again whenever one of them has changed, until ctx ends. If Load refuses them (a half-written
// file, or a certificate without its new key), Watch loads them again at each look, and reports it from
// the second refusal on.
func Watch(ctx context.Context, logger *slog.Logger, files Files) {
	tick := time.NewTicker(every)
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
	failed int           // the number of looks since the last successful load
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

// reportedLook is the number of the look at which refused files are reported. The first look may have
// come while the files were being written.
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
		infos[i], _ = os.Stat(file) // a deleted file counts as a change, and loading reports it
	}
	return infos
}

func same(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
