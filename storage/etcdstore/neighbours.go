package etcdstore

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxNeighbours bounds the number of folders that are searched.
const maxNeighbours = 64

// neighbours lists the other top-level folders of this etcd that hold locks of fencelock, in any format.
// Servers on two prefixes would both grant the same resource. A server searches before it begins a cluster,
// because an operator may have given one server another prefix by mistake. The search does not see folders
// that the user may not read, or nested ones.
func (s *service) neighbours(ctx context.Context) (found []string) {
	from := "/"
	for range maxNeighbours {
		next, err := s.conn.get(ctx, from, clientv3.WithFromKey(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil || len(next.Kvs) == 0 {
			return found
		}
		folder, ok := topFolder(string(next.Kvs[0].Key))
		if ok && folder != s.prefix {
			if head, err := s.conn.get(ctx, folder+headName); err == nil && len(head.Kvs) == 1 && isHead(head.Kvs[0].Value) {
				found = append(found, folder)
			}
		}
		from = clientv3.GetPrefixRangeEnd(folder)
	}
	return found
}

// topFolder returns the first folder of a key, with both slashes. For a key outside any folder, it returns the
// key.
func topFolder(key string) (folder string, ok bool) {
	if rest, ok := strings.CutPrefix(key, "/"); ok {
		if name, _, ok := strings.Cut(rest, "/"); ok {
			return "/" + name + "/", true
		}
	}
	return key, false
}

// isHead reports whether a value begins with the number of a format, as every head does.
func isHead(value []byte) bool { return len(value) > 0 && value[0] < ' ' }
