package demo

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/client"
)

// readyMost is how long the server may take until it grants a lock: nodes that
// were restarted a moment ago are quarantined for the longest TTL.
const readyMost = 90 * time.Second

// serve starts the server, with its data in dir.
func (d *director) serve(ctx context.Context, dir string) (*process, error) {
	cmd := exec.Command(d.Program, "serve")
	cmd.Dir, cmd.Env = dir, d.environment(dir)
	server, err := startProcess("the server", cmd, nil)
	if err != nil {
		return nil, err
	}
	var first struct {
		Message string `json:"msg"`
		Addr    string `json:"addr"`
	}
	line, err := server.next(ctx)
	if err != nil || json.Unmarshal([]byte(line), &first) != nil || first.Message != "listening" {
		server.end() // what else it has to say is on its way
		return nil, errors.Join(err, server.failure())
	}
	go func() {
		for range server.lines { // it must not block on its log
		}
	}()
	d.url = "http://" + first.Addr
	d.locks, err = client.New(d.url, client.WithHolder("demo"), client.WithPatience(readyMost))
	return server, err
}

// environment is this process's without what configures a server, and with
// what configures this one. Secrets travel here, not as arguments.
func (d *director) environment(dir string) []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "FENCELOCK_") })
	env = append(env,
		"FENCELOCK_LISTEN=127.0.0.1:0",
		"FENCELOCK_ADMIN_LISTEN=127.0.0.1:0",
		"FENCELOCK_DATA="+filepath.Join(dir, "fencelock.db"),
		"FENCELOCK_LOG_FORMAT=json",
		// As long as may be, a tenth of the leases: a machine that plays all
		// parts at once may be busy.
		"FENCELOCK_NODE_TIMEOUT="+(d.TTL/10).Truncate(time.Millisecond).String(),
		// New nodes need not wait for leases that nobody can have.
		"FENCELOCK_BOOTSTRAP=new")
	if d.Redis != "" {
		env = append(env, "FENCELOCK_REDIS_ADDRS="+d.Redis)
	}
	if d.DatabaseURL != "" {
		env = append(env, "FENCELOCK_DATABASE_URL="+d.DatabaseURL)
	}
	return env
}
