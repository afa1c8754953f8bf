package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

const (
	listenWithin = 30 * time.Second // the server says where it listens
	readyWithin  = 15 * time.Second // it may grant, unless it waits for old leases to end
	askEvery     = 50 * time.Millisecond
	quietFor     = time.Second // a start that takes no longer needs no explanation
)

// serve starts the server and waits until it may grant locks.
func (d *director) serve(ctx context.Context) error {
	cmd := exec.Command(d.Program, "serve")
	cmd.Dir, cmd.Env = d.dir, d.environment()
	process, err := startChild("the server", cmd, nil)
	if err != nil {
		return err
	}
	d.process = process
	d.closers = append(d.closers, func(context.Context) error {
		process.end()
		return nil
	})
	go func() { _, _ = io.Copy(io.Discard, process.stdout) }()
	url, err := d.listening(ctx)
	if err != nil {
		return err
	}
	d.server = newServer(url)
	return d.untilReady(ctx)
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

// listening reads from the log's first line where the server listens.
func (d *director) listening(ctx context.Context) (string, error) {
	late := time.NewTimer(listenWithin)
	defer late.Stop()
	select {
	case line := <-d.process.stderr.first:
		var entry struct {
			Message string `json:"msg"`
			Addr    string `json:"addr"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err == nil && entry.Message == "listening" {
			return "http://" + entry.Addr, nil
		}
		// It did not start; the rest of what it has to say is on its way.
		d.process.end()
		return "", d.process.failure()
	case <-d.process.gone:
		return "", d.process.failure()
	case <-late.C:
		return "", fmt.Errorf("the server did not say within %s where it listens", listenWithin)
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// untilReady waits for the server. Nodes that were restarted a moment ago are
// silent for the longest TTL, and that is worth waiting for.
func (d *director) untilReady(ctx context.Context) error {
	begun := time.Now()
	deadline := begun.Add(readyWithin)
	for {
		ready, err := d.server.ready(ctx)
		if err == nil && ready.Ready {
			return nil
		}
		left := quarantine(ready)
		if left == 0 && time.Now().After(deadline) {
			return fmt.Errorf("the server is not ready: %s%s", ready.Reason, orError(err))
		}
		if left > 0 {
			deadline = time.Now().Add(left + readyWithin)
		}
		if left > 0 && time.Since(begun) > quietFor {
			d.show.progress("waiting for nodes that may have granted leases before", left)
		}
		select {
		case <-d.process.gone:
			return d.process.failure()
		default:
		}
		if err := pause(ctx, askEvery); err != nil {
			return err
		}
	}
}

// quarantine is how long a node has to wait yet, at most.
func quarantine(ready wire.Ready) time.Duration {
	var left time.Duration
	for _, n := range ready.Nodes {
		left = max(left, milliseconds(n.WaitMS))
	}
	return left
}

func orError(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
