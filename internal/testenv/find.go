package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// redisBind is the address on which a Redis node listens.
func redisBind() string { return "127.0.0.1" }

// newRedisServer finds a way to run Redis on this machine.
func newRedisServer(dir string, _ int, env []string) (server, error) {
	path, err := findRedis()
	if err != nil {
		return nil, err
	}
	return &process{
		path: path, args: []string{filepath.Join(dir, "redis.conf")}, env: env, dir: dir,
		stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL,
	}, nil
}

// findRedis finds the program, and installs it where that is possible.
func findRedis() (string, error) {
	if path := localRedis(); path != "" {
		return path, nil
	}
	if err := aptInstall("redis-server", func() bool { return localRedis() != "" }); err != nil {
		return "", fmt.Errorf("no Redis: %w", err)
	}
	return localRedis(), nil
}

// localRedis is the path of a Redis server program, or "".
func localRedis() string {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// findPostgres finds the folder of PostgreSQL's programs, and installs them
// where that is possible.
func findPostgres() (string, error) {
	if bin := localPostgres(); bin != "" {
		return bin, nil
	}
	if err := aptInstall("postgresql", func() bool { return localPostgres() != "" }); err != nil {
		return "", fmt.Errorf("no PostgreSQL: %w", err)
	}
	return localPostgres(), nil
}

// localPostgres is the folder with initdb and postgres, or "". Debian keeps
// them out of PATH; a postgres in PATH may be a link away from its initdb.
func localPostgres() string {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	brew, _ := filepath.Glob("/opt/homebrew/opt/postgresql@*/bin")
	dirs = append(dirs, brew...)
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if isFile(filepath.Join(dirs[i], "initdb")) && isFile(filepath.Join(dirs[i], "postgres")) {
			return dirs[i]
		}
	}
	return ""
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}
