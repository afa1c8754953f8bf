package redisnode

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; nothing is secured by it
	"embed"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

//go:embed *.lua
var sources embed.FS

// The scripts: each is the file of that name behind the constants and gate.lua.
var (
	voteScript         = newScript("vote")
	observeScript      = newScript("observe")
	installEpochScript = newScript("install_epoch")
	surveyScript       = newScript("survey")
	countersScript     = newScript("counters")
	quarantineScript   = newScript("quarantine")
	expelScript        = newScript("expel")
	stageScript        = newScript("stage")
	loadScript         = newScript("load")
	admitScript        = newScript("admit")
	maxTTLScript       = newScript("maxttl")
	secretsScript      = newScript("secrets")
	proveScript        = newScript("prove")
	leaksScript        = newScript("leaks")
	installMapScript   = newScript("install_map")
	receiveScript      = newScript("receive")
)

// script is one Lua file, ready to call.
type script struct {
	body string
	args []any // "EVALSHA", its hash, "0": the head of every call
}

func newScript(name string) script {
	body := constants() + source("gate") + source(name)
	sum := sha1.Sum([]byte(body)) //nolint:gosec // see above
	return script{body: body, args: []any{"EVALSHA", hex.EncodeToString(sum[:]), "0"}}
}

func source(name string) string {
	text, err := sources.ReadFile(name + ".lua")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// constants are what the scripts share with every other node, in Lua.
func constants() string {
	return fmt.Sprintf("local MAX_TOKEN, MAX_SHOWN, MAX_ATTEMPTS = %d, %d, %d\n", fencing.MaxToken, node.MaxShown, node.MaxAttempts) +
		fmt.Sprintf("local TICKET_TTL, ENQUEUED_TTL, MAX_TOKENS_AHEAD = %s, %s, %d\n",
			millis(node.TicketTTL), millis(node.EnqueuedTTL), node.MaxTokensAhead)
}

// caller is a client of the library, or one connection.
type caller interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	ScriptLoad(ctx context.Context, script string) *redis.StringCmd
}

// run calls the script. A node that does not know it has run nothing: the script is
// loaded and called again. (The script cache proves nothing about the node: the gate does.)
func (s script) run(ctx context.Context, client caller, args []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	if err := client.Process(ctx, cmd); err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return cmd
	}
	if err := client.ScriptLoad(ctx, s.body).Err(); err != nil {
		cmd.SetErr(err)
		return cmd
	}
	cmd = redis.NewCmd(ctx, args...)
	_ = client.Process(ctx, cmd)
	return cmd
}

// call runs the script with these arguments.
func (s script) call(ctx context.Context, client *redis.Client, args ...any) *redis.Cmd {
	return s.run(ctx, client, append(slices.Clip(s.args), args...))
}
