package check

import (
	"context"

	"github.com/fencelock/fencelock/storage/etcdstore"
)

// etcd checks the etcd that stores the locks.
func (r *Report) etcd(ctx context.Context, url string) {
	const subject = "FENCELOCK_STORE"
	seen, err := etcdstore.Look(ctx, url, answerTime)
	if err != nil {
		r.Add(Wrong, subject, "etcd cannot be used", err.Error())
		return
	}
	r.lookedf("etcd %s", seen.Version)
	for _, other := range seen.Others {
		r.Add(Risky, subject, "this etcd has locks of fencelock below "+other+", and none below the URL's prefix: servers there and here would grant the same resources", "name that prefix, unless the two are to be separate clusters")
	}
	if seen.Members < 3 {
		r.Add(Risky, subject, "this etcd has one or two members: while one is down nothing is granted", "run three or five")
	}
	if seen.Named < seen.Members {
		r.Add(Risky, subject, "the URL does not name all members of this etcd: while those that it names are down nothing is granted", "name all of them")
	}
	if !seen.TLS {
		r.Add(Risky, subject, "the connection is unencrypted", "enable TLS in etcd (--cert-file, --key-file) and write etcds://")
	}
}
