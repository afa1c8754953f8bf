package boltfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// ErrInUse says that another process has the file open.
var ErrInUse = errors.New("in use by another process")

// DamagedError says that a file must not be used, and why.
type DamagedError struct {
	Path  string
	Cause error
}

func (e *DamagedError) Error() string {
	if errors.Is(e.Cause, syscall.EIO) {
		return fmt.Sprintf("the disk did not read or write %s: %v. Nobody knows what is on the disk now, so nothing more is done with the file. "+
			"Find out what is wrong with the disk (the kernel's log says it), then start the server again: "+
			"it checks the file, and whatever was answered with success is in it", e.Path, e.Cause)
	}
	return fmt.Sprintf("%s is damaged and is not used: %v. Move it away to start with a new file. "+
		"The locks and the guarded records in it are then lost; the tokens of the new file are larger because they start at the clock. "+
		"Wait until the leases have ended before you start: their holders may still work. "+
		"You can replace it with a copy that was made while the server was stopped, but tokens then continue from that copy",
		e.Path, e.Cause)
}

func (e *DamagedError) Unwrap() error { return e.Cause }

// Options tune Open.
type Options struct {
	// Timeout is how long Open waits for another process to close the file.
	Timeout time.Duration
	// CheckTime bounds the check of the file's structure; 0 means no bound. Checking 100 MB that are in the
	// system's cache takes 0.2 s.
	CheckTime time.Duration
}

// File is an open bbolt file. All methods are safe for concurrent use.
type File struct {
	path    string
	checked float64
	db      *bbolt.DB
	file    *os.File // bbolt's own

	writing  sync.Mutex // held by one Update; bbolt's own lock may be lost in a panic
	starting sync.Mutex // held by begin: no transaction begins after damage was found
	inUse    int64      // bytes in use when the last transaction began; guarded by starting

	damaged chan struct{}
	damage  error // set before damaged is closed
	once    sync.Once
}

// Open opens the file at path, or creates it.
//
// It returns ErrInUse if another process keeps the file open for longer than opts.Timeout. It returns a
// DamagedError if bbolt could not work with the file: the file is empty, shorter than the pages in use, or not
// as bbolt writes it. Open does not change such a file.
func Open(path string, opts Options) (*File, error) {
	f := &File{path: path, checked: 1, damaged: make(chan struct{})}
	if absolute, err := filepath.Abs(path); err == nil {
		f.path = absolute
	}
	if err := f.check(opts); err != nil {
		return nil, err
	}
	err := f.guard(func() (err error) {
		f.db, err = bbolt.Open(f.path, 0o600, &bbolt.Options{
			Timeout:      opts.Timeout,
			FreelistType: bbolt.FreelistMapType,
			OpenFile:     f.open,
		})
		return err
	})
	if err != nil {
		return nil, f.explain(err)
	}
	return f, nil
}

func (f *File) open(path string, flag int, mode fs.FileMode) (file *os.File, err error) {
	f.file, err = os.OpenFile(path, flag, mode)
	return f.file, err
}

// check opens the file for reading, which excludes writers, and checks it.
func (f *File) check(opts Options) error {
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // Open will create it
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", f.path)
	case err == nil && info.Size() == 0:
		return &DamagedError{Path: f.path, Cause: errors.New("it is empty")}
	}
	var db *bbolt.DB
	err = f.guard(func() (err error) {
		db, err = bbolt.Open(f.path, 0, &bbolt.Options{Timeout: opts.Timeout, ReadOnly: true, OpenFile: f.open})
		return err
	})
	if err != nil {
		return f.explain(err)
	}
	f.checked, err = Check(f.file, opts.CheckTime)
	if err != nil {
		err = &DamagedError{Path: f.path, Cause: err}
	}
	return errors.Join(err, db.Close())
}

// explain turns an error of opening into a DamagedError if the file's content caused it.
func (f *File) explain(err error) error {
	_, isDamaged := errors.AsType[*DamagedError](err)
	_, isSystem := errors.AsType[*fs.PathError](err)
	_, isNumber := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%s is %w", f.path, ErrInUse)
	case isDamaged:
		return err
	case isSystem, isNumber:
		return fmt.Errorf("open %s: %w", f.path, err)
	}
	return &DamagedError{Path: f.path, Cause: err}
}

// Path is the file's absolute path.
func (f *File) Path() string { return f.path }

// Checked returns the part of the file's pages that Open checked, 0 to 1. It is less than 1 if
// Options.CheckTime was too short.
func (f *File) Checked() float64 { return f.checked }

// Damaged is closed when the file is found damaged, or could not be synced. From then on every transaction
// fails, and Err returns the reason.
func (f *File) Damaged() <-chan struct{} { return f.damaged }

// Err returns nil until Damaged is closed, and then a DamagedError.
func (f *File) Err() error {
	select {
	case <-f.damaged:
		return f.damage
	default:
		return nil
	}
}

// View runs read in a read transaction. It returns read's error, or a DamagedError. If the file is damaged,
// read may have run completely, partly or not at all.
func (f *File) View(read func(*bbolt.Tx) error) error { return f.transact(false, read) }

// Update runs write in its own transaction, and returns after the sync. After an error the file contains none
// of its changes, except when the last sync failed: then Damaged is closed, and the file may contain them.
func (f *File) Update(write func(*bbolt.Tx) error) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	return f.transact(true, write)
}

func (f *File) transact(writable bool, run func(*bbolt.Tx) error) error {
	return f.guard(func() error {
		tx, err := f.begin(writable)
		if err != nil {
			return err
		}
		// A transaction that is not rolled back blocks Close and, if it reads, the file's growth.
		defer func() { _ = tx.Rollback() }()
		if err := run(tx); err != nil || !writable {
			return err
		}
		return tx.Commit()
	})
}

// begin begins a transaction unless the file has become too short.
func (f *File) begin(writable bool) (*bbolt.Tx, error) {
	f.starting.Lock()
	defer f.starting.Unlock()
	if err := f.Err(); err != nil {
		return nil, err
	}
	info, err := f.file.Stat()
	if errors.Is(err, fs.ErrClosed) {
		return nil, bolterrors.ErrDatabaseNotOpen
	}
	if err == nil && info.Size() < f.inUse {
		return nil, f.fail(fmt.Errorf("it was cut to %d bytes while it was open; %d are in use", info.Size(), f.inUse))
	}
	tx, err := f.db.Begin(writable)
	if err == nil {
		f.inUse = tx.Size()
	}
	return tx, err
}

// guard turns a panic of bbolt, a fault in its mapped memory, an error of the
// disk and a wrong seal into damage.
func (f *File) guard(run func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if reason := recover(); reason != nil {
			if !ofFile(reason) {
				panic(reason)
			}
			err = f.fail(fmt.Errorf("%v", reason))
		}
	}()
	err = run()
	// The state of the disk after a failed sync is unknown, and the next sync may succeed without having
	// written everything.
	if errors.Is(err, syscall.EIO) || errors.Is(err, ErrSeal) {
		return f.fail(err)
	}
	return err
}

// fail notes the first damage and returns it.
func (f *File) fail(cause error) error {
	f.once.Do(func() {
		f.damage = &DamagedError{Path: f.path, Cause: cause}
		close(f.damaged)
	})
	<-f.damaged
	return f.damage
}

// ofFile reports whether the file caused a panic: a fault in mapped memory, or a panic inside bbolt. Every
// other panic is a bug in this program.
func ofFile(reason any) bool {
	if _, isFault := reason.(interface{ Addr() uintptr }); isFault {
		return true
	}
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	inPanic := false
	for {
		frame, more := frames.Next()
		isRuntime := strings.HasPrefix(frame.Function, "runtime.")
		switch {
		case isRuntime:
			inPanic = true
		case inPanic:
			return strings.HasPrefix(frame.Function, "go.etcd.io/bbolt")
		}
		if !more {
			return false
		}
	}
}

// Close closes the file. It leaves a damaged file open until the process ends, because bbolt may never release
// its locks.
func (f *File) Close() error {
	select {
	case <-f.damaged:
		return nil
	default:
		return f.db.Close()
	}
}
