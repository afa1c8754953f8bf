// Command cmd prints what package scale predicts. Run it by 'make capacity'.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fencelock/fencelock/internal/scale"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "capacity:", err)
		os.Exit(1)
	}
}

// options are the command line's.
type options struct {
	scale.Deployment

	pairs  float64
	maxTTL time.Duration
	costs  scale.Costs
	one    bool // predict one deployment, not the table
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("capacity", flag.ContinueOnError)
	flags.IntVar(&o.Servers, "servers", 0, "predict this deployment: servers; without it, a table of sizes")
	flags.IntVar(&o.Sets, "sets", 1, "node sets")
	flags.IntVar(&o.Nodes, "nodes", 5, "nodes of a set: 1, 3, 5 or 7")
	flags.IntVar(&o.Down, "down", 0, "nodes of each set that do not answer, of a minority")
	flags.IntVar(&o.ServerCores, "cores", 2, "cores of a server")
	trips := flags.String("trips", "1ms", "round trips from a server to each node of a set, separated by commas; the last stands for the rest")
	flags.DurationVar(&o.ClientTrip, "client-trip", time.Millisecond, "round trip from a client to its server")
	flags.DurationVar(&o.NodeTimeout, "node-timeout", 50*time.Millisecond, "FENCELOCK_NODE_TIMEOUT")
	flags.DurationVar(&o.TTL, "ttl", 30*time.Second, "TTL of the leases")
	flags.DurationVar(&o.maxTTL, "max-ttl", time.Minute, "FENCELOCK_MAX_TTL")
	flags.IntVar(&o.Leases, "leases", 100_000, "leases held at the same time")
	flags.IntVar(&o.Counters, "counters", 0, "resources used within FENCELOCK_COUNTER_TTL, beside those held")
	flags.IntVar(&o.Waiters, "waiters", 0, "requests that wait")
	flags.IntVar(&o.Readers, "readers", 0, "servers with a reader of events")
	flags.Float64Var(&o.pairs, "pairs", 0, "pairs a second; by default half of what the deployment can do")
	costs := flags.String("costs", "", "a file of costs that 'make capacity-check' wrote, instead of those in the program")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("what is %q?", flags.Arg(0))
	}
	if o.Trips, err = durations(*trips); err != nil {
		return o, err
	}
	o.one, o.Servers = o.Servers > 0, max(o.Servers, 1)
	o.costs = scale.Measured()
	if *costs != "" {
		raw, err := os.ReadFile(*costs)
		if err != nil {
			return o, err
		}
		if err := json.Unmarshal(raw, &o.costs); err != nil { //nolint:musttag // what bench/capacity wrote
			return o, fmt.Errorf("%s: %w", *costs, err)
		}
	}
	return o, o.Check()
}

func durations(list string) (all []time.Duration, err error) {
	for word := range strings.SplitSeq(list, ",") {
		d, err := time.ParseDuration(word)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("a round trip is like 1ms, not %q", word)
		}
		all = append(all, d)
	}
	return all, nil
}

func run(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.one {
		return o.printOne()
	}
	return o.printSizes()
}

// sizes are the table's: servers and sets.
var sizes = [...][2]int{{1, 1}, {2, 1}, {4, 1}, {10, 1}, {10, 2}, {10, 10}, {100, 1}, {100, 10}, {100, 100}, {400, 20}, {1000, 10}, {1000, 100}}

// apart are the table's distances.
var apart = [...]time.Duration{time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond}

// printSizes prints what sizes can do, one of them over distances, and what faults do to it.
func (o options) printSizes() error {
	for _, table := range []string{o.sizes(), advice(), o.distances(), o.failures(10, 10)} {
		if _, err := fmt.Println(table); err != nil {
			return err
		}
	}
	return nil
}

func (o options) sizes() string {
	rows := [][]string{{"servers", "sets", "pairs/s at most", "first bottleneck", "p99 at half", "batch", "idle node"}}
	for _, size := range sizes {
		d := o.Deployment
		d.Servers, d.Sets = size[0], size[1]
		rows = append(rows, append([]string{strconv.Itoa(d.Servers), strconv.Itoa(d.Sets)}, o.row(d)...))
	}
	return markdown(rows)
}

func advice() string {
	rows := [][]string{{"first bottleneck", "what to do"}}
	for _, b := range scale.Bottlenecks() {
		rows = append(rows, []string{string(b), b.Advice()})
	}
	return markdown(rows)
}

// distances are those of the other nodes, when one of each set is in the server's site.
func (o options) distances() string {
	rows := [][]string{{"sites apart", "node timeout", "pairs/s at most", "first bottleneck", "p99 at half", "batch", "idle node"}}
	for _, far := range apart {
		d := o.Deployment
		d.Servers, d.Sets = 10, 10
		d.Trips = []time.Duration{time.Millisecond, far}
		d.NodeTimeout = max(o.NodeTimeout, 10*far)
		rows = append(rows, append([]string{fmt.Sprintf("%d ms", far.Milliseconds()), d.NodeTimeout.String()}, o.row(d)...))
	}
	return markdown(rows)
}

func (o options) row(d scale.Deployment) []string {
	most := scale.Capacity(d, o.costs)
	p99, batch := "–", "–"
	if half, ok := scale.At(d, o.costs, most.Pairs/2); ok && most.Pairs > 0 {
		p99, batch = millis(half.P99), strconv.FormatFloat(half.Batch, 'f', 1, 64)
	}
	return []string{count(most.Pairs), string(most.First), p99, batch, fmt.Sprintf("%.1f %%", 100*scale.IdleOf(d, o.costs).Node)}
}

func (o options) failures(servers, sets int) string {
	d := o.Deployment
	d.Servers, d.Sets = servers, sets
	rows := [][]string{{"what", "stops", "for", "leases", "from", "shown by"}}
	for _, f := range scale.Failures(d, o.maxTTL) {
		rows = append(rows, []string{f.What, f.Stops, f.For, f.Leases, f.From, f.Test})
	}
	return markdown(rows)
}

// markdown is a table of Markdown.
func markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat(" --- |", len(row)) + "\n")
		}
	}
	return b.String()
}

// printOne prints all that is predicted of a deployment.
func (o options) printOne() error {
	most := scale.Capacity(o.Deployment, o.costs)
	if o.pairs == 0 {
		o.pairs = most.Pairs / 2
	}
	at, ok := scale.At(o.Deployment, o.costs, o.pairs)
	memory, idle := scale.MemoryOf(o.Deployment, o.costs), scale.IdleOf(o.Deployment, o.costs)
	events := scale.EventsOf(o.Deployment, o.costs, 2*o.pairs)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(w, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	line("at most", "%s pairs a second; then %s: %s", count(most.Pairs), most.First, most.First.Advice())
	if ok {
		line("at "+count(o.pairs)+" a second", "acquire %s in the mean, p99 %s; batches of %.1f", millis(at.Acquire), millis(at.P99), at.Batch)
		line("in use", "servers %.0f %%, nodes %.0f %%, places in flight %.0f %%, round's time limit %.0f %%", 100*at.ServerUse, 100*at.NodeUse, 100*at.InFlightUse, 100*at.LimitUse)
	} else {
		line("at "+count(o.pairs)+" a second", "more than it can do")
	}
	line("memory", "node %s, server %s", mega(memory.Node), mega(memory.Server))
	line("idle", "%.1f %% of each node's core (%.1f %% searches for locks without an expiry), %.2f cores of each server", 100*idle.Node, 100*idle.LeakSearch, idle.Server)
	line("connections", "%.0f to a node; Redis takes those of %d servers", idle.Connections, idle.MaxServers)
	if o.Readers > 0 {
		line("events", "%.0f %% of the core of the first set's nodes, %.2f cores of a server with a reader; %s a second are left out", 100*events.Node, events.Server, count(events.Lost))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Printf("\n%s", o.failures(o.Servers, o.Sets))
	return err
}

// count has two significant digits, as befits a prediction.
func count(x float64) string {
	switch {
	case x >= 1e6:
		return strconv.FormatFloat(x/1e6, 'f', 1, 64) + " M"
	case x >= 10_000:
		return strconv.FormatFloat(x/1e3, 'f', 0, 64) + " k"
	case x >= 1000:
		return strconv.FormatFloat(x/1e3, 'f', 1, 64) + " k"
	}
	return strconv.FormatFloat(x, 'f', 0, 64)
}

func millis(seconds float64) string { return strconv.FormatFloat(1000*seconds, 'f', 1, 64) + " ms" }

func mega(bytes float64) string { return strconv.FormatFloat(bytes/1e6, 'f', 0, 64) + " MB" }
