package redisguard

import (
	"context"
	_ "embed" // the scripts
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/fencing"
)

//go:embed claim.lua
var claimLua string

//go:embed attempt.lua
var attemptLua string

// NewScript makes a script of your own that can call claim(mark_key, token) as
// claim.lua describes it. Pass the mark's key in KEYS, next to the data's, and
// the token in ARGV. A script that writes only after claim has returned true
// is guarded:
//
//	local live, mark = claim(KEYS[1], ARGV[1])
//	if not live then return redis.error_reply('STALE ' .. string.format('%.0f', mark)) end
//	redis.call('HINCRBY', KEYS[2], 'balance', ARGV[2])
func NewScript(body string) *redis.Script { return redis.NewScript(claimLua + body) }

// Options tune a Guard. The zero value is ready for use.
type Options struct {
	Prefix      string // of all keys; "" means "fencing:"
	HistoryKept int    // attempts kept for each resource; 0 means 100
}

const (
	defaultPrefix      = "fencing:"
	defaultHistoryKept = 100
)

// Guard is a fencing.Guard whose records are in one Redis.
type Guard struct {
	client  redis.UniversalClient
	opts    Options
	attempt *redis.Script
}

var _ fencing.Guard = (*Guard)(nil)

// New makes a guard over a client, which it does not close. A client that
// retries by itself (MaxRetries above 0) may count a write twice.
func New(client redis.UniversalClient, opts Options) *Guard {
	if opts.Prefix == "" {
		opts.Prefix = defaultPrefix
	}
	if opts.HistoryKept <= 0 {
		opts.HistoryKept = defaultHistoryKept
	}
	return &Guard{client: client, opts: opts, attempt: NewScript(attemptLua)}
}

func (g *Guard) markKey(resource string) string    { return g.opts.Prefix + "mark:" + resource }
func (g *Guard) recordKey(resource string) string  { return g.opts.Prefix + "record:" + resource }
func (g *Guard) historyKey(resource string) string { return g.opts.Prefix + "history:" + resource }
func (g *Guard) highestKey() string                { return g.opts.Prefix + "highest" }

// Claim raises the mark; see fencing.Guard.
func (g *Guard) Claim(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	return g.try(ctx, fencing.KindClaim, resource, token, nil)
}

// Write raises the mark and replaces the value; see fencing.Guard.
func (g *Guard) Write(ctx context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
	if !json.Valid(value) {
		return fencing.Record{}, fencing.ErrMalformedValue
	}
	return g.try(ctx, fencing.KindWrite, resource, token, value)
}

func (g *Guard) try(ctx context.Context, kind fencing.AttemptKind, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
	if err := fencing.CheckClaim(resource, token); err != nil {
		return fencing.Record{}, err
	}
	if err := ctx.Err(); err != nil {
		return fencing.Record{}, err
	}
	keys := []string{g.markKey(resource), g.recordKey(resource), g.historyKey(resource), g.highestKey()}
	reply, err := g.attempt.Run(ctx, g.client, keys, token.String(), string(kind), string(value), g.opts.HistoryKept).Slice()
	if err != nil {
		return fencing.Record{}, explain(ctx, err)
	}
	var compared fencing.Token
	record := fencing.Record{Resource: resource, Mark: token}
	if err := scan(reply, &compared, &record.Version, &record.Value); err != nil {
		return fencing.Record{}, explain(ctx, err)
	}
	if compared > token {
		return fencing.Record{}, &fencing.StaleTokenError{Resource: resource, Presented: token, Highest: compared}
	}
	return record, nil
}

// Read returns the record as it stands; see fencing.Guard.
func (g *Guard) Read(ctx context.Context, resource string) (fencing.Record, error) {
	if err := ctx.Err(); err != nil {
		return fencing.Record{}, err
	}
	var mark *redis.StringCmd
	var fields *redis.SliceCmd
	// A transaction, so that mark and value are of one moment.
	_, err := g.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		mark = p.Get(ctx, g.markKey(resource))
		fields = p.HMGet(ctx, g.recordKey(resource), "version", "value")
		return nil
	})
	if err != nil {
		return fencing.Record{}, explain(ctx, err)
	}
	record := fencing.Record{Resource: resource}
	if err := scan(append([]any{mark.Val()}, fields.Val()...), &record.Mark, &record.Version, &record.Value); err != nil {
		return fencing.Record{}, explain(ctx, err)
	}
	return record, nil
}

// History returns the newest attempts first; see fencing.Guard.
func (g *Guard) History(ctx context.Context, resource string, limit int) ([]fencing.Attempt, error) {
	if _, err := g.Read(ctx, resource); err != nil {
		return nil, err
	}
	if limit <= 0 {
		return nil, nil
	}
	lines, err := g.client.LRange(ctx, g.historyKey(resource), 0, int64(limit)-1).Result()
	if err != nil {
		return nil, explain(ctx, err)
	}
	attempts := make([]fencing.Attempt, len(lines))
	for i, line := range lines {
		if attempts[i], err = parseAttempt(line); err != nil {
			return nil, explain(ctx, err)
		}
	}
	return attempts, nil
}

// HighestMark returns the largest mark of all records; see fencing.Guard.
func (g *Guard) HighestMark(ctx context.Context) (fencing.Token, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	highest, err := g.client.Get(ctx, g.highestKey()).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, explain(ctx, err)
	}
	return fencing.Token(highest), nil
}

// scan reads a mark, a version and a value; the latter two may be missing.
func scan(reply []any, mark *fencing.Token, version *int64, value *json.RawMessage) error {
	const fields = 3
	if len(reply) != fields {
		// Redis cuts a Lua table at its first nil: there is no value.
		reply = append(reply, nil)
	}
	if len(reply) != fields {
		return fmt.Errorf("reply of %d fields, want %d", len(reply), fields)
	}
	if _, err := fmt.Sscan(fmt.Sprint(reply[0]), mark); err != nil {
		return fmt.Errorf("mark %v: %w", reply[0], err)
	}
	if reply[1] != nil {
		if _, err := fmt.Sscan(fmt.Sprint(reply[1]), version); err != nil {
			return fmt.Errorf("version %v: %w", reply[1], err)
		}
	}
	if text, ok := reply[2].(string); ok {
		*value = json.RawMessage(text)
	}
	return nil
}

func parseAttempt(line string) (fencing.Attempt, error) {
	var a fencing.Attempt
	var seconds, micros int64
	_, err := fmt.Sscan(line, &a.Kind, &a.Token, &a.Highest, &a.Version, &seconds, &micros)
	if err != nil {
		return a, fmt.Errorf("history line %q: %w", line, err)
	}
	a.Accepted = a.Token >= a.Highest
	a.At = time.Unix(seconds, micros*int64(time.Microsecond)).UTC()
	return a, nil
}

// explain turns an error of Redis into one that fencing.Guard lists.
func explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, redis.Nil):
		return fencing.ErrNotFound
	case strings.Contains(err.Error(), "FENCING malformed token"):
		return fencing.ErrMalformedToken
	}
	return fmt.Errorf("%w: %w", fencing.ErrGuardUnavailable, err)
}
