package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/storage/etcdstore"
	"github.com/fencelock/fencelock/storage/zkstore"
)

func (s *Seen) risky(what, do string) { s.Findings = append(s.Findings, Finding{What: what, Do: do}) }

// unusable is what Look returns for a store that cannot be used.
func unusable(what, do string) Seen {
	return Seen{Findings: []Finding{{Wrong: true, What: what, Do: do}}}
}

// lookAtZooKeeper examines the ensemble and the path of the locks.
func lookAtZooKeeper(ctx context.Context, url string, limit time.Duration) Seen {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	found, err := zkstore.Look(ctx, url)
	if err != nil {
		return unusable(err.Error(), "docs/how-to/zookeeper.md says what is needed")
	}
	seen := Seen{Version: fmt.Sprintf("ZooKeeper %s", found.Versions)}
	if found.Servers < 3 {
		seen.risky(fmt.Sprintf("it names %d server: while the ensemble has no majority nothing is granted", found.Servers), "name all servers of an ensemble of three or five")
	}
	if !found.Protected {
		seen.risky("it names no user: every client of the ensemble may read and change the locks", "write user:password@ before the servers; the first start protects the path with them")
	}
	return seen
}

// lookAtEtcd examines the etcd that stores the locks.
func lookAtEtcd(ctx context.Context, url string, limit time.Duration) Seen {
	found, err := etcdstore.Look(ctx, url, limit)
	if err != nil {
		return unusable("etcd cannot be used", err.Error())
	}
	seen := Seen{Version: "etcd " + found.Version}
	for _, other := range found.Others {
		seen.risky("this etcd has locks of fencelock below "+other+", and none below the URL's prefix: servers there and here would grant the same resources", "name that prefix, unless the two are to be separate clusters")
	}
	if found.Members < 3 {
		seen.risky("this etcd has one or two members: while one is down nothing is granted", "run three or five")
	}
	if found.Named < found.Members {
		seen.risky("the URL does not name all members of this etcd: while those that it names are down nothing is granted", "name all of them")
	}
	if !found.TLS {
		seen.risky("the connection is unencrypted", "enable TLS in etcd (--cert-file, --key-file) and write etcds://")
	}
	return seen
}
