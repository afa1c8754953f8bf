package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

// releaseLimit bounds the release of a lease.
const releaseLimit = 5 * time.Second

// waitingNotice is how long a wait may last before a message reports what it waits for.
const waitingNotice = time.Second

// lockFlags are the flags that acquire, run and elect have in common.
type lockFlags struct {
	*connection

	ttl, wait, patience time.Duration
	minHold, maxHold    time.Duration
	slots               int
	noWait, quiet       bool
	waits               bool // for at most the time in wait
	conflict            int
	holder, metadata    string
	// outer is the lease id of an enclosing run, which owns the lease; "" without one.
	outer string
}

// add defines the flags of a command that takes one lock.
func (f *lockFlags) add(cmd *cobra.Command) {
	f.addLease(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&f.minHold, "min-hold", 0, "keep the lock taken for this long from the start, even after the release; at most the TTL")
	flags.DurationVarP(&f.wait, "wait", "w", 0, "wait in the queue for at most this long (default: no limit)")
	flags.BoolVarP(&f.noWait, "no-wait", "n", false, "do not wait in the queue")
	flags.IntVarP(&f.conflict, "conflict-exit-code", "E", cli.ExitHeld, "exit code if the lock is held; with -n, 0 also prints nothing")
	noFiles(cmd, "min-hold", "wait", "conflict-exit-code")
}

// addLease adds the flags of every command that takes a lock.
func (f *lockFlags) addLease(cmd *cobra.Command) {
	f.connection = connect(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&f.ttl, "ttl", 0, "the lease's TTL, such as 30s (default: the server's)")
	flags.IntVar(&f.slots, "slots", 0, "take one of N slots of the resource (a semaphore), 1 to 32")
	flags.DurationVar(&f.maxHold, "max-hold", 0, "maximum hold time of the lease, at least the TTL (default: the server's FENCELOCK_MAX_HOLD)")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing about the lock and the service; use the exit code")
	flags.DurationVar(&f.patience, "patience", 15*time.Second, "how long to repeat a request while no server responds or has a quorum")
	flags.StringVar(&f.holder, "holder", "", "label of the lease, visible to every reader (default: host and process id)")
	flags.StringVar(&f.metadata, "metadata", "", "JSON value, visible to every reader")
	cmd.ValidArgsFunction = f.resourceCompletion
	noFiles(cmd, "ttl", "slots", "max-hold", "patience", "holder", "metadata")
}

func (f *lockFlags) check(cmd *cobra.Command) error {
	waits := cmd.Flags().Changed("wait")
	switch {
	case f.noWait && waits:
		return cli.UsageError{Err: errors.New("--no-wait and --wait cannot be given together: choose one")}
	case f.wait < 0 || f.patience < 0:
		return cli.UsageError{Err: errors.New("--wait and --patience must not be negative")}
	case f.conflict < 0 || f.conflict > 255:
		return cli.UsageError{Err: fmt.Errorf("-E %d: must be an exit code from 0 to 255", f.conflict)}
	case cmd.Flags().Changed("slots") && f.slots < 1:
		return cli.UsageError{Err: fmt.Errorf("--slots %d: must be at least 1", f.slots)}
	case f.metadata != "" && !json.Valid([]byte(f.metadata)):
		return cli.UsageError{Err: errors.New(`--metadata: must be JSON, such as '{"job":7}'`)}
	}
	f.waits = waits || f.noWait
	return errors.Join(checkMillis("ttl", f.ttl), checkMillis("min-hold", f.minHold), checkMillis("max-hold", f.maxHold))
}

// checkMillis refuses a duration that the service does not accept. 0 means the service's default.
func checkMillis(flag string, d time.Duration) error {
	if d < 0 || d%time.Millisecond != 0 {
		return cli.UsageError{Err: fmt.Errorf("--%s %s: must be whole milliseconds, and not negative", flag, d)}
	}
	return nil
}

func (f *lockFlags) options() client.AcquireOptions {
	holder := f.holder
	if holder == "" {
		host, _ := os.Hostname() // without a host name, the process id is still useful
		holder = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	opts := client.AcquireOptions{
		client.TTL(f.ttl), client.MinHold(f.minHold), client.MaxHold(f.maxHold),
		client.Holder(holder), client.Metadata(json.RawMessage(f.metadata)),
	}
	if f.slots > 0 {
		opts = append(opts, client.Slots(f.slots))
	}
	if f.waits {
		opts = append(opts, client.Wait(f.wait))
	}
	return opts
}

// obtain waits for a lease until a signal ends ctx. During a long wait, it shows on a terminal what it
// waits for.
func (f *lockFlags) obtain(ctx context.Context, stderr io.Writer, resources []string) (*client.Lease, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	locks, err := f.client(client.WithPatience(f.patience), f.saying(stderr))
	if err != nil {
		return nil, err
	}
	if cli.IsTerminal(stderr) && !f.quiet {
		defer time.AfterFunc(waitingNotice, func() {
			_, _ = fmt.Fprintf(stderr, "fencelock: waiting for %s; fencelock get shows its holder\n", screen.Visible(named(resources)))
		}).Stop()
	}
	var lease *client.Lease
	if f.outer == "" {
		lease, err = locks.AcquireAll(ctx, resources, f.options()...)
	} else {
		lease, err = locks.Lease(ctx, f.outer)
	}
	switch {
	case ctx.Err() != nil:
		if err == nil {
			_ = f.release(ctx, lease) // if it fails, the lease ends with its TTL
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
		defer cancel()
		_ = locks.Close(closing) // releases a grant that arrived while the request ended
		return nil, interrupted(signals)
	case err != nil:
		return nil, f.notAcquired(err)
	}
	return lease, nil
}

// saying prints once that a request is being repeated: no server responds, or none can serve it.
func (f *lockFlags) saying(stderr io.Writer) client.Option {
	var once sync.Once
	return client.WithOnRetry(func(r client.Retry) {
		once.Do(func() {
			if !f.quiet {
				_, _ = fmt.Fprintf(stderr, "fencelock: %s. Trying again for %s (--patience)\n", screen.Visible(withoutAdvice(r.Err)), f.patience)
			}
		})
	})
}

// interrupted returns the error of a command that got a signal while it waited.
func interrupted(signals <-chan os.Signal) error {
	select {
	case s := <-signals:
		if number, ok := s.(syscall.Signal); ok {
			return cli.CodeError{Code: cli.ExitSignalled + int(number)}
		}
	default:
	}
	return cli.CodeError{Code: cli.ExitFailed}
}

// hush reduces an error to its exit code, if --quiet is set and the error is about the lock or the
// service.
func (f *lockFlags) hush(err error) error {
	_, wrong := errors.AsType[cli.UsageError](err)
	if code := cli.ExitCode(err); err != nil && !wrong && f.quiet && code != cli.ExitNotRunnable && code != cli.ExitNotFound {
		return cli.CodeError{Code: code}
	}
	return err
}

// notAcquired returns the error of a command that did not get its lock.
func (f *lockFlags) notAcquired(err error) error {
	problem, _ := errors.AsType[*client.ProblemError](err)
	if !errors.Is(err, client.ErrHeld) || problem == nil {
		return plain(err)
	}
	if f.noWait && f.conflict == 0 { // cron mails all output
		return cli.CodeError{}
	}
	text := screen.Visible(problem.Resource) + " is held by another lease"
	if problem.Holder != "" {
		text = screen.Visible(problem.Resource + " is held by " + problem.Holder)
	}
	if problem.Waiters > 0 {
		text += fmt.Sprintf("; in the queue for it: %d", problem.Waiters)
	}
	return cli.CodeError{Err: errors.New(text), Code: f.conflict}
}

// release releases the lease even if ctx has ended, within the rest of its validity. It does not release
// the lease of an enclosing run.
func (f *lockFlags) release(ctx context.Context, lease *client.Lease) error {
	if f.outer != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(releaseLimit, lease.Validity()))
	defer cancel()
	err := lease.Release(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", client.ErrUnavailable, err)
	}
	return err
}
