package redisguard

import (
	_ "embed" // claim.lua

	"github.com/redis/go-redis/v9"
)

//go:embed claim.lua
var claimLua string

// NewScript makes a script of your own that can call claim(mark_key, token) as
// claim.lua describes it. Pass the mark's key in KEYS, next to the data's, and
// the token in ARGV. A script that writes only after claim has returned true
// is guarded:
//
//	local live, mark = claim(KEYS[1], ARGV[1])
//	if not live then return redis.error_reply('STALE ' .. string.format('%.0f', mark)) end
//	redis.call('HINCRBY', KEYS[2], 'balance', ARGV[2])
func NewScript(body string) *redis.Script { return redis.NewScript(claimLua + body) }
