package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/supervise"
)

// watchdogName is the hidden subcommand that runs the watchdog.
const watchdogName = "run-watchdog"

type runFlags struct {
	lockFlags

	grace time.Duration
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run RESOURCE… [flags] -- COMMAND [ARG…]",
		Short: "Run a command under a lock, and end it before the lock is lost",
		Long: `Run a command under a lock: wait for the lock, extend its lease while the command
runs, and release it at the end. Several resources, 2 to 16 before the --, are taken
at once, all or none, in any order.

If the lease cannot be extended, or is broken, the command's process group gets
SIGTERM and, --grace later, SIGKILL, before the lease expires. A watchdog process
does the same if this one is stopped or killed.

Two commands can still overlap: processes that left the group (setsid, a daemon) keep
running, a suspended machine counts no time, and a broken lock is free at once. So let
the command's storage check the token.

The command's environment has
  FENCING_TOKEN         the fencing token: pass it to the storage
  FENCING_PROOF         its proof, if the server makes proofs
  FENCELOCK_RESOURCE    the resource
  FENCELOCK_LEASE_ID    the lease id, a secret that controls the lease
FENCELOCK_BEARER_TOKEN and the server's variables are not passed on, but FENCELOCK_URL,
FENCELOCK_CONFIG, FENCELOCK_BEARER_TOKEN_FILE and those of certificates are. For several
resources it has, in place of the first three,
  FENCING_TOKENS        the tokens, as JSON: {"accounts/1":34,"accounts/2":7}
  FENCING_PROOFS        the proofs, likewise
A run of the same resources inside the command joins the lease, and the outer run
releases it. A run of only some of them, or of more, would wait for itself: exit code 2.

--slots 3 is a semaphore: the command takes one of three slots, in order of arrival.
The resource is then the slot's name, such as jobs#slot2, with its own tokens.

-n skips the run if the lock is held. For a cron job on several hosts that is not
enough: after a short run on one host, a host whose clock is behind finds the lock
free. --min-hold keeps the lock taken for longer than the clocks differ.

The lease can be extended without limit unless --max-hold or the server's
FENCELOCK_MAX_HOLD sets one; run warns when a tenth is left, and ends the command at it.

The process group gets signals and the terminal. When the command ends, run also ends
processes that are left in the group.

Exit codes: the command's own (128 and the signal's number if a signal killed
it); 75, or the one of -E, if the lock is held; 69 if the service is unavailable,
79 if the lease was lost, 77 if access is denied, 2 for wrong usage, 126 and 127
if the command cannot be run or does not exist.`,
		Example: `  fencelock run backups/nightly -- pg_dump -f shop.sql shop
  fencelock run -n -E 0 --min-hold 30s cron/report -- ./report.sh   # once a tick on all hosts, and quiet
  fencelock run accounts/1 accounts/2 -- ./transfer.sh              # reads $FENCING_TOKENS
  fencelock run --slots 3 jobs -- ./job.sh                          # three at a time, on all hosts
  fencelock run --wait 30s --ttl 15s deploy/web -- sh -c 'deploy --fencing-token "$FENCING_TOKEN"'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash < 1 || dash == len(args) {
				return cli.UsageError{Err: errors.New("separate the resource and the command with --: use fencelock run RESOURCE… -- COMMAND")}
			}
			return nil
		},
	}
	f.add(cmd)
	f.addGrace(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(cmd); err != nil {
			return err
		}
		dash := cmd.ArgsLenAtDash()
		return f.run(cmd.Context(), cmd.ErrOrStderr(), args[:dash], args[dash:])
	}
	return cmd
}

func (f *runFlags) addGrace(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.grace, "grace", 0, "time between SIGTERM and SIGKILL (default a fifth of the TTL)")
	noFiles(cmd, "grace")
}

func (f *runFlags) check(cmd *cobra.Command) error {
	err := f.lockFlags.check(cmd)
	if err == nil && f.grace < 0 {
		err = cli.UsageError{Err: errors.New("--grace must not be negative")}
	}
	if err == nil && f.ttl > 0 {
		_, err = f.timing(f.ttl)
	}
	return err
}

// timing divides the end of a lease: SIGTERM is sent grace plus lead before the end, and SIGKILL lead
// before it.
type timing struct{ grace, lead time.Duration }

func (f *runFlags) timing(ttl time.Duration) (timing, error) {
	const tenth, fifth, least, most = 10, 5, 50 * time.Millisecond, 3 * time.Second
	t := timing{grace: f.grace, lead: max(least, min(ttl/tenth, most))}
	if t.grace == 0 {
		t.grace = ttl / fifth
	}
	if longest := ttl/2 - t.lead; t.grace > max(longest, ttl/fifth) {
		return t, cli.UsageError{Err: fmt.Errorf("--grace %s is too long for a lease of %s: use at most %s, or a longer --ttl", t.grace, ttl, max(0, longest))}
	}
	return t, nil
}

// run takes the lock, or joins the lease of an enclosing run, and runs the command.
func (f *runFlags) run(ctx context.Context, stderr io.Writer, resources, argv []string) error {
	path, err := f.prepare(resources, argv)
	if err != nil {
		return err
	}
	return f.hush(f.once(ctx, stderr, resources, path, argv))
}

// prepare finds the command's program, and the lease of an enclosing run.
func (f *runFlags) prepare(resources, argv []string) (path string, err error) {
	if path, err = lookUp(argv[0]); err == nil {
		f.outer, err = outerLease(resources, f.slots)
	}
	return path, err
}

// once runs the command under one lease.
func (f *runFlags) once(ctx context.Context, stderr io.Writer, resources []string, path string, argv []string) error {
	lease, err := f.obtain(ctx, stderr, resources)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // from here on, signals are for the command
	t, err := f.timing(lease.TTL())
	if err != nil {
		return errors.Join(err, f.release(ctx, lease))
	}
	return (&running{runFlags: f, timing: t, lease: lease, stderr: stderr}).run(ctx, path, argv)
}

func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil // a shell would run ./it, too
	case errors.Is(err, syscall.EISDIR):
		return "", cli.CodeError{Err: fmt.Errorf("%s is a folder, not a command", name), Code: cli.ExitNotRunnable}
	case errors.Is(err, fs.ErrPermission):
		return "", cli.CodeError{Err: fmt.Errorf("%s cannot be run: it is not executable (chmod +x), or its folder can't be searched", name), Code: cli.ExitNotRunnable}
	case strings.ContainsRune(name, filepath.Separator):
		return "", cli.CodeError{Err: fmt.Errorf("%s does not exist", name), Code: cli.ExitNotFound}
	}
	return "", cli.CodeError{Err: fmt.Errorf("the command %s was not found in PATH", name), Code: cli.ExitNotFound}
}

// running is a command under its lease. A joined lease is extended here, too, because that tells this run
// how long it is valid.
type running struct {
	*runFlags
	timing

	lease  *client.Lease
	stderr io.Writer
}

func (r *running) say(text string) {
	if r.quiet {
		return
	}
	_, _ = fmt.Fprintln(r.stderr, "fencelock:", screen.Visible(text)) // the command continues even if stderr is closed
}

func (r *running) run(ctx context.Context, path string, argv []string) error {
	self, err := os.Executable()
	if err != nil {
		return errors.Join(err, r.release(ctx, r.lease))
	}
	group, err := supervise.Start(supervise.Options{
		Path: path, Args: argv, Env: environmentOf(r.lease), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Watchdog: []string{self, watchdogName}, Grace: r.timing.grace, Deadline: r.deadline(), Say: r.say,
	})
	if err != nil {
		if errors.Is(err, syscall.ENOEXEC) {
			err = errors.New("it is not a program, and has no #! line that names its interpreter; try sh " + argv[0])
		}
		return errors.Join(cli.CodeError{Err: fmt.Errorf("%s cannot be run: %w", argv[0], err), Code: cli.ExitNotRunnable}, r.release(ctx, r.lease))
	}
	kept, stop := r.lease.KeepAlive(ctx, client.Margin(r.timing.grace+r.lead),
		client.OnExtend(func(*client.Lease) { group.Extend(r.deadline()) }))
	go r.explain(kept)
	defer r.warn()()
	result := group.Run(kept.Done())
	lost := context.Cause(kept)
	stop()
	return r.outcome(ctx, result, lost)
}

// deadline returns when the command must be killed.
func (r *running) deadline() time.Time { return r.lease.Until().Add(-r.lead) }

// warn prints a message when a tenth of the maximum hold is left, if there is a maximum.
func (r *running) warn() (stop func() bool) {
	longest := r.lease.Wire().MaxHoldRemainingMS
	if longest == nil {
		return func() bool { return false }
	}
	const tenth = 10
	left := time.Duration(*longest)*time.Millisecond - r.timing.grace - r.lead
	return time.AfterFunc(left-left/tenth, func() {
		r.say(fmt.Sprintf("the command gets SIGTERM in %s: the lease of %s reaches its maximum hold time (--max-hold, or the server's FENCELOCK_MAX_HOLD)",
			(left / tenth).Round(time.Millisecond), resourcesOf(r.lease)))
	}).Stop
}

// explain prints at once why the command gets a SIGTERM.
func (r *running) explain(kept context.Context) {
	<-kept.Done()
	if lost := context.Cause(kept); errors.Is(lost, client.ErrLeaseLost) {
		why := lost.Error()
		if failed, ok := errors.AsType[*client.Error](lost); ok {
			why = strings.TrimPrefix(plain(failed.Err).Error(), client.ErrLeaseLost.Error()+": ")
		}
		if refusedAs(lost, "lease-not-held") {
			why = "it was broken, or has expired"
		}
		r.say(fmt.Sprintf("lost the lease of %s: %s. The command gets SIGTERM now, and SIGKILL in %s at the latest",
			resourcesOf(r.lease), why, max(0, min(r.timing.grace, time.Until(r.deadline()))).Round(10*time.Millisecond)))
	}
}

// errEnded: this process ended the command, because the lease was lost.
var errEnded = errors.New("the lease was lost, and the command was ended")

func (r *running) outcome(ctx context.Context, result supervise.Result, lost error) error {
	if result.Ended {
		return cli.CodeError{Err: errEnded, Code: cli.ExitLost}
	}
	err := r.release(ctx, r.lease)
	switch {
	case errors.Is(err, client.ErrLeaseLost) || errors.Is(lost, client.ErrLeaseLost):
		return cli.CodeError{Err: errors.New("the lease was lost before the command ended: was it broken by an administrator?"), Code: cli.ExitLost}
	case err != nil:
		r.say(fmt.Sprintf("%s could not be released, and is free in %s at the latest: %s",
			resourcesOf(r.lease), r.lease.TTL().Round(time.Second), plain(err)))
	}
	if result.Code != 0 {
		return cli.CodeError{Code: result.Code}
	}
	return nil
}

// environmentOf returns this process's environment with the lease's variables. It leaves out the bearer
// token, which belongs to this caller: the lease id is all that the command needs. It also leaves out the
// server's variables, which contain the database's password and the keys.
func environmentOf(lease *client.Lease) []string {
	passed := append(Variables(), varServerCert)
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		ofServer := strings.HasPrefix(name, "FENCELOCK_") && !slices.Contains(passed, name)
		return ofServer || name == varBearerToken || slices.Contains(allLeaseVariables(), name)
	})
	return append(env, leaseVariables(lease)...)
}

// WatchdogCommand returns the command of the watchdog that fencelock run starts together with its
// command.
func WatchdogCommand() *cobra.Command {
	return &cobra.Command{
		Use:    watchdogName,
		Short:  "Watch over the command of fencelock run",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if code := supervise.Watch(cmd.InOrStdin()); code != 0 {
				return cli.CodeError{Code: code}
			}
			return nil
		},
	}
}
