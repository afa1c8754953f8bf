package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/internal/supervise"
)

// releaseLimit bounds giving a lease back.
const releaseLimit = 5 * time.Second

// watchdogName is the hidden subcommand that is the watchdog's program.
const watchdogName = "run-watchdog"

// lockFlags are what acquire and run have in common.
type lockFlags struct {
	*connection

	ttl, wait, patience time.Duration
	noWait              bool
	conflict            int
	holder, metadata    string
}

func (f *lockFlags) add(cmd *cobra.Command) {
	f.connection = connect(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&f.ttl, "ttl", 0, "the lease's time to live, such as 30s (default: the server's)")
	flags.DurationVarP(&f.wait, "wait", "w", 0, "wait in the queue for at most this long (default: for as long as it takes)")
	flags.BoolVarP(&f.noWait, "no-wait", "n", false, "do not wait in the queue")
	flags.IntVarP(&f.conflict, "conflict-exit-code", "E", exitFailed, "exit code if somebody else has the lock")
	flags.DurationVar(&f.patience, "patience", 10*time.Second, "go on asking for this long while no server answers")
	flags.StringVar(&f.holder, "holder", "", "label that others see (default host:pid)")
	flags.StringVar(&f.metadata, "metadata", "", "JSON value that others see")
	cmd.ValidArgsFunction = f.resourceCompletion
	for _, name := range []string{"ttl", "wait", "conflict-exit-code", "patience", "holder", "metadata"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions) // the flag is there
	}
}

func (f *lockFlags) check(cmd *cobra.Command) error {
	waits := cmd.Flags().Changed("wait")
	switch {
	case f.noWait && waits:
		return usageError{errors.New("say either --no-wait or --wait")}
	case f.ttl < 0 || f.wait < 0 || f.patience < 0:
		return usageError{errors.New("--ttl, --wait and --patience must not be negative")}
	case f.ttl%time.Millisecond != 0:
		return usageError{fmt.Errorf("--ttl %s: must be whole milliseconds", f.ttl)}
	case f.conflict < 0 || f.conflict > 255:
		return usageError{fmt.Errorf("-E %d: must be an exit code from 0 to 255", f.conflict)}
	case f.metadata != "" && !json.Valid([]byte(f.metadata)):
		return usageError{errors.New(`--metadata: must be JSON, such as '{"job":7}'`)}
	}
	if !f.noWait && !waits {
		f.wait = client.Forever
	}
	return nil
}

func (f *lockFlags) request() client.Request {
	r := client.Request{TTL: f.ttl, Wait: f.wait, Holder: f.holder}
	if f.metadata != "" {
		r.Metadata = json.RawMessage(f.metadata)
	}
	if r.Holder == "" {
		host, _ := os.Hostname() // without one the number says something
		r.Holder = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	return r
}

// patienceOfPeople is how long nobody wonders why nothing happens.
const patienceOfPeople = time.Second

// sayWaiting tells a person at a terminal what is waited for, once that takes time,
// and until stop is called.
func sayWaiting(stderr io.Writer, resource string) (stop func() bool) {
	if !isTerminal(stderr) {
		return func() bool { return false }
	}
	return time.AfterFunc(patienceOfPeople, func() {
		_, _ = fmt.Fprintf(stderr, "fencelock: waiting for %s; fencelock get says who holds it\n", resource)
	}).Stop
}

// notAcquired is the end of a command that did not get its lock.
func (f *lockFlags) notAcquired(resource string, err error) error {
	problem, _ := errors.AsType[*client.ProblemError](err)
	if !errors.Is(err, client.ErrHeld) || problem == nil {
		return advise(err)
	}
	text := resource + " is held by somebody else"
	if d := problem.HeldDetails; d != nil && d.Holder != "" {
		text = resource + " is held by " + d.Holder
	}
	if d := problem.HeldDetails; d != nil && d.Waiters > 0 {
		text += fmt.Sprintf("; in the queue for it: %d", d.Waiters)
	}
	return codeError{error: errors.New(text), code: f.conflict}
}

type runFlags struct {
	lockFlags

	grace time.Duration
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run RESOURCE [flags] -- COMMAND [ARG…]",
		Short: "Run a command under a lock, and end it before the lock is lost",
		Long: `Run a command under a lock: wait for the lock, keep its lease alive while the
command runs, and release it at the end.

If the lease can no longer be kept alive, or was broken, the command's process
group gets SIGTERM and, --grace later, SIGKILL, before the lease expires. A watchdog
process does the same if this one is stopped or killed. A lease lasts at most the
server's FENCELOCK_MAX_HOLD; a longer command is ended then.

Two commands can still overlap: processes that left the group (setsid, a daemon)
are not reached, a suspended machine counts no time, and after a break the lock is
free at once. Let the command's storage check the token.

The command finds in its environment
  FENCING_TOKEN         the fencing token: pass it to the storage that is written
  FENCING_PROOF         the proof that it was minted, if the server makes them
  FENCELOCK_RESOURCE    the resource
  FENCELOCK_LEASE_ID    the lease id, a secret: whoever knows it has the lease
A run of the same resource inside it works under the same lease instead of
waiting for it, and leaves the release to the outer one.

Signals are passed on to the group, and so is the terminal. What the command left
running in its group when it ended is ended, too.

Exit codes: the command's own (128 and the signal's number if a signal killed
it); 1, or what -E says, if somebody else has the lock; 69 if the service is
unavailable, 75 if the lease was lost, 77 if access is denied, 2 for wrong usage,
126 and 127 if the command cannot be run or is not there.`,
		Example: `  fencelock run backups/nightly -- pg_dump -f shop.sql shop
  fencelock run -n -E 0 cron/report -- ./report.sh       # skip this run if another holds the lock
  fencelock run --wait 30s --ttl 15s deploy/web -- sh -c 'deploy --fencing-token "$FENCING_TOKEN"'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return usageError{errors.New("say fencelock run RESOURCE -- COMMAND, with -- before the command")}
			}
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().DurationVar(&f.grace, "grace", 0, "time between SIGTERM and SIGKILL (default a fifth of the TTL)")
	_ = cmd.RegisterFlagCompletionFunc("grace", cobra.NoFileCompletions) // the flag is there
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := f.check(cmd)
		if err == nil && f.grace < 0 {
			err = usageError{errors.New("--grace must not be negative")}
		}
		if err == nil && f.ttl > 0 {
			_, err = f.timing(f.ttl)
		}
		if err != nil {
			return err
		}
		return f.run(cmd.Context(), cmd.ErrOrStderr(), args[0], args[1:])
	}
	return cmd
}

// timing is how the end of a lease is divided: SIGTERM comes grace and lead
// before it, SIGKILL lead.
type timing struct{ grace, lead time.Duration }

func (f *runFlags) timing(ttl time.Duration) (timing, error) {
	const tenth, fifth, least, most = 10, 5, 50 * time.Millisecond, 3 * time.Second
	t := timing{grace: f.grace, lead: max(least, min(ttl/tenth, most))}
	if t.grace == 0 {
		t.grace = ttl / fifth
	}
	if longest := ttl/2 - t.lead; t.grace > max(longest, ttl/fifth) {
		return t, usageError{fmt.Errorf("--grace %s does not fit into a lease of %s: at most %s, or give it a longer --ttl", t.grace, ttl, max(0, longest))}
	}
	return t, nil
}

// run takes the lock and runs the command.
func (f *runFlags) run(ctx context.Context, stderr io.Writer, resource string, argv []string) error {
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	locks, err := f.client(client.WithPatience(f.patience))
	if err != nil {
		return err
	}
	begun := sayWaiting(stderr, resource)
	lease, err := f.take(ctx, locks, resource)
	begun()
	if err == nil && ctx.Err() != nil {
		_ = lease.giveBack(ctx) // the TTL ends it otherwise
		err = ctx.Err()
	}
	if err != nil && ctx.Err() != nil {
		return interrupted(signals)
	}
	if err != nil {
		return f.notAcquired(resource, err)
	}
	t, err := f.timing(lease.TTL())
	if err != nil {
		return errors.Join(err, lease.giveBack(ctx))
	}
	return (&running{lease: lease, timing: t, stderr: stderr}).run(context.WithoutCancel(ctx), path, argv)
}

// take acquires the lock, or joins the lease that the run around this one has.
func (f *runFlags) take(ctx context.Context, locks *client.Client, resource string) (runLease, error) {
	if outer := os.Getenv(varLeaseID); outer != "" && os.Getenv(varResource) == resource {
		lease, err := locks.Lease(ctx, outer)
		return runLease{Lease: lease, joined: true}, err
	}
	lease, err := locks.Acquire(ctx, resource, f.request())
	return runLease{Lease: lease}, err
}

// runLease is the lease that a command runs under. A joined one belongs to the
// run around this one, which gives it back. It is kept alive here, too: so this
// run learns until when it is valid.
type runLease struct {
	*client.Lease

	joined bool
}

func (l runLease) giveBack(ctx context.Context) error {
	if l.joined {
		return nil
	}
	return release(ctx, l.Lease)
}

// interrupted is the end of a command that was told to stop while it waited.
func interrupted(signals <-chan os.Signal) error {
	select {
	case s := <-signals:
		if number, ok := s.(syscall.Signal); ok {
			return codeError{code: exitSignalled + int(number)}
		}
	default:
	}
	return codeError{code: exitFailed}
}

func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil // a shell would run ./it as well
	case errors.Is(err, fs.ErrPermission):
		return "", codeError{error: fmt.Errorf("%s cannot be run: %w", name, err), code: exitNotRunnable}
	}
	return "", codeError{error: fmt.Errorf("%s is not there: %w", name, err), code: exitNotFound}
}

// running is a command under its lease.
type running struct {
	timing

	lease  runLease
	stderr io.Writer
}

func (r *running) say(text string) {
	_, _ = fmt.Fprintln(r.stderr, "fencelock:", text) // nobody to tell if stderr is gone
}

func (r *running) run(ctx context.Context, path string, argv []string) error {
	self, err := os.Executable()
	if err != nil {
		return errors.Join(err, r.lease.giveBack(ctx))
	}
	group, err := supervise.Start(supervise.Options{
		Path: path, Args: argv, Env: environmentOf(r.lease.Lease), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Watchdog: []string{self, watchdogName}, Grace: r.grace, Deadline: r.deadline(), Say: r.say,
	})
	if err != nil {
		return errors.Join(codeError{error: fmt.Errorf("%s cannot be run: %w", argv[0], err), code: exitNotRunnable}, r.lease.giveBack(ctx))
	}
	kept, stop := r.lease.KeepAlive(ctx, client.KeepOptions{
		Margin: r.grace + r.lead, Extended: func(*client.Lease) { group.Extend(r.deadline()) },
	})
	go r.tell(kept)
	result := group.Run(kept.Done())
	lost := context.Cause(kept)
	stop()
	return r.outcome(ctx, result, lost)
}

// deadline is when the command must be killed.
func (r *running) deadline() time.Time { return r.lease.Until().Add(-r.lead) }

// tell says at once why the command gets a SIGTERM.
func (r *running) tell(kept context.Context) {
	<-kept.Done()
	if lost := context.Cause(kept); errors.Is(lost, client.ErrLeaseLost) {
		why := strings.TrimPrefix(lost.Error(), client.ErrLeaseLost.Error()+": ")
		if refusedAs(lost, "lease-not-held") {
			why = "somebody broke it, or it has ended"
		}
		r.say(fmt.Sprintf("lost the lease of %s: %s. The command is told to end, and killed in %s at the latest",
			r.lease.Resource(), why, max(0, min(r.grace, time.Until(r.deadline()))).Round(10*time.Millisecond)))
	}
}

func (r *running) outcome(ctx context.Context, result supervise.Result, lost error) error {
	if result.Ended {
		return codeError{error: errors.New("the lease was lost, and the command was ended"), code: exitLost}
	}
	err := r.lease.giveBack(ctx)
	switch {
	case errors.Is(err, client.ErrLeaseLost) || errors.Is(lost, client.ErrLeaseLost):
		return codeError{error: errors.New("the lease was lost before the command ended: was it broken by an administrator?"), code: exitLost}
	case err != nil:
		r.say(fmt.Sprintf("%s could not be released, and is free in %s at the latest: %s",
			r.lease.Resource(), r.lease.TTL().Round(time.Second), err))
	}
	if result.Code != 0 {
		return codeError{code: result.Code}
	}
	return nil
}

// release gives the lease back although ctx may have ended, within what is left
// of the lease.
func release(ctx context.Context, lease *client.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(releaseLimit, lease.Validity()))
	defer cancel()
	return lease.Release(ctx)
}

func environmentOf(lease *client.Lease) []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == varFencingToken || name == varFencingProof || name == varResource || name == varLeaseID
	})
	for _, v := range leaseVariables(lease) {
		env = append(env, v[0]+"="+v[1])
	}
	return env
}

// leaseVariables tell a command of its lease: names and values.
func leaseVariables(lease *client.Lease) [][2]string {
	list := [][2]string{{varFencingToken, lease.Token().String()}}
	if proof := lease.Wire().FenceProof; proof != "" {
		list = append(list, [2]string{varFencingProof, proof})
	}
	return append(list, [2]string{varResource, lease.Resource()}, [2]string{varLeaseID, lease.ID()})
}

// watchdogCommand is what fencelock run starts beside the command.
func watchdogCommand() *cobra.Command {
	return &cobra.Command{
		Use:    watchdogName,
		Short:  "Watch over the command of fencelock run",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if code := supervise.Watch(cmd.InOrStdin()); code != 0 {
				return codeError{code: code}
			}
			return nil
		},
	}
}
