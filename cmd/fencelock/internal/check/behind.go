package check

import (
	"context"
	"net"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/storage/redisnode"
)

// looksBehind is how many further connections are made to an address. A load balancer that uses its
// servers in turn shows another server at once.
const looksBehind = 3

// several reports an address with more than one server behind it: a name with several addresses, or a load
// balancer. A lock that is set on one of the servers is free on the others.
func (r *Report) several(ctx context.Context, url string, n redisNode) {
	first := n.info["run_id"]
	if first == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for _, at := range addressesOf(ctx, url) {
		if id := runID(ctx, url, at); id != "" && id != first {
			r.Add(Wrong, n.name, "different Redis servers respond at this address (at "+at+", too): a lock in one of them is free in the other",
				"give each server an address of its own, without a balancer, and a name with one address")
			return
		}
	}
}

// addressesOf returns the host:port pairs to which to connect in order to find the servers behind an
// address.
func addressesOf(ctx context.Context, url string) (all []string) {
	opts, err := redisnode.ParseAddr(url)
	if err != nil {
		return nil
	}
	host, port, err := net.SplitHostPort(opts.Addr)
	if err != nil {
		return nil
	}
	hosts, _ := net.DefaultResolver.LookupHost(ctx, host)
	for _, host := range hosts {
		all = append(all, slices.Repeat([]string{net.JoinHostPort(host, port)}, looksBehind)...)
	}
	return all
}

// runID returns the run id of the server that a new connection reaches; "" if it reaches none.
func runID(ctx context.Context, url, at string) string {
	opts, err := redisnode.ParseAddr(url)
	if err != nil {
		return ""
	}
	opts.Addr = at // ParseAddr has already set the name that the certificate must have
	client := redis.NewClient(plain(opts))
	defer func() { _ = client.Close() }()
	text, err := client.Info(ctx, "server").Result()
	if err != nil {
		return ""
	}
	return redisnode.ParseInfo(text)["run_id"]
}
