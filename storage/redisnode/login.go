package redisnode

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Admits returns the error of a node that does not let the address's user in. It returns nil for
// one that cannot be reached, and never shows a password.
func Admits(ctx context.Context, addr string) error {
	parsed, err := ParseAddr(addr)
	if err != nil {
		return err
	}
	client := redis.NewClient(clientOptions(parsed, Options{}.withDefaults()))
	defer func() { _ = client.Close() }()
	if err := client.Ping(ctx).Err(); err != nil && refusesUser(err) {
		return err
	}
	return nil
}

// refusesUser tells the server's errors about a user, a password or a missing one.
func refusesUser(err error) bool {
	for _, code := range []string{"WRONGPASS", "NOAUTH", "NOPERM"} {
		if strings.HasPrefix(err.Error(), code) {
			return true
		}
	}
	return false
}
