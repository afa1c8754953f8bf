package testenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

// folder is this test process's folder. Every server has its data below it.
type folder struct {
	path string
	// alive is the reaper's standard input. This process keeps it and never closes it, so the kernel closes
	// it when the process has ended.
	alive io.Closer
}

// home makes the folder when the first server needs one.
var home = sync.OnceValues(newHome)

// reapName is the file in a server's folder that holds a shell script which
// ends the server. It is there exactly while the server runs.
const reapName = "reap.sh"

// reaper waits until its standard input ends: then the test process has ended, in whatever way. It ends the
// servers that still run, and removes everything. If the tests have cleaned up, only the shared servers are
// left to it.
const reaper = `cat >/dev/null
for script in "$0"/*/` + reapName + `; do
	if [ -f "$script" ]; then sh "$script"; fi
done
for try in 1 2 3 4 5 6 7 8 9 10; do
	rm -rf "$0" && exit
	sleep 0.3
done`

// newHome makes the folder and starts its reaper.
func newHome() (*folder, error) {
	dir, err := os.MkdirTemp(inMemory(), "fencelock-testenv-")
	if errors.Is(err, os.ErrPermission) {
		dir, err = os.MkdirTemp("", "fencelock-testenv-")
	}
	if err != nil {
		return nil, err
	}
	// PostgreSQL runs as another user and has to reach its folder.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	cmd := exec.Command("sh", "-c", reaper, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // survive Ctrl-C
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the reaper: %w", err)
	}
	return &folder{path: dir, alive: stdin}, nil
}

// newServerDir makes a folder for one server.
func newServerDir(name string) (string, error) {
	base, err := home()
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(base.path, name+"-")
}

// writeReap writes the script that ends the server of this folder.
func writeReap(dir, script string) error {
	return os.WriteFile(filepath.Join(dir, reapName), []byte(script+"\n"), 0o600)
}

// removeReap removes that script, because the folder's server has ended.
func removeReap(dir string) { _ = os.Remove(filepath.Join(dir, reapName)) }
