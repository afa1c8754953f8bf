package demo

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencelock/fencelock/client"
)

// readyMost is how long the server may take until it grants a lock: as long as
// leases may live that its nodes granted before.
const readyMost = 90 * time.Second

// serve starts the server.
func (d *director) serve(ctx context.Context) error {
	cmd := exec.Command(d.Program, "serve")
	cmd.Dir, cmd.Env = d.dir, d.environment()
	server, err := startProcess("the server", cmd, nil)
	if err != nil {
		return err
	}
	d.closers = append(d.closers, func(context.Context) error { server.end(); return nil })
	line, err := server.next(ctx)
	if err != nil {
		return err
	}
	var first struct {
		Message string `json:"msg"`
		Addr    string `json:"addr"`
	}
	if json.Unmarshal([]byte(line), &first) != nil || first.Message != "listening" {
		server.end() // what else it has to say is on its way
		return server.failure()
	}
	go func() {
		for range server.lines { // it must not block on its log
		}
	}()
	d.url = "http://" + first.Addr
	// Nodes that were restarted a moment ago are quarantined for the longest
	// TTL, and that is worth waiting for.
	d.locks, err = client.New(d.url, client.WithHolder("demo"), client.WithPatience(readyMost))
	return err
}

// environment is this process's without what configures a server, and with
// what configures this one. Secrets travel here, not as arguments.
func (d *director) environment() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "FENCELOCK_") {
			env = append(env, entry)
		}
	}
	env = append(env,
		"FENCELOCK_LISTEN=127.0.0.1:0",
		"FENCELOCK_ADMIN_LISTEN=127.0.0.1:0",
		"FENCELOCK_DATA="+filepath.Join(d.dir, "fencelock.db"),
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
