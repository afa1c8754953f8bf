package chaos

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// smallDisk mounts a disk of two megabytes.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("NO SMALL DISK CAN BE HAD HERE (that takes root), so a full one was not tried: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes until the disk is full, and returns the file that fills it.
func fill(tb testing.TB, dir string) (path string) {
	tb.Helper()
	path = filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		tb.Fatal(err)
	}
	_ = f.Close()
	return path
}

// The disk of the embedded file is full for a while, and the server is killed meanwhile. Nothing that was
// acknowledged is lost, and everything works again when there is room.
func TestDiskFull(t *testing.T) {
	testenv.Long(t, "a full disk that loses an acknowledged lease")
	dir := smallDisk(t)
	config := short(t)
	config.Keep = true
	s := StartSingle(t, config, dir)
	full := func(more func()) func(*Stand, *rand.Rand, []*node) course {
		return func(s *Stand, _ *rand.Rand, _ []*node) course {
			path := fill(t, dir)
			more()
			return course{end: func() {
				if err := os.Remove(path); err != nil {
					t.Error(err)
				}
				if !s.servers[0].Running() {
					s.servers[0].Restart()
				}
			}}
		}
	}
	kill := func() {
		wait(200 * time.Millisecond)
		s.servers[0].Kill()
	}
	for _, f := range []Fault{
		{Name: "disk full", Major: true, begin: full(func() {})},
		{Name: "disk full, kill -9", Major: true, begin: full(kill)},
		{Name: "kill -9 of the only server", Major: true, begin: func(s *Stand, _ *rand.Rand, _ []*node) course {
			kill()
			return course{end: func() { s.servers[0].Restart() }}
		}},
	} {
		result := s.Run(f)
		for _, v := range result.Violations {
			t.Errorf("%s: %s", f.Name, v)
		}
		t.Logf("%+v", result)
	}
}
