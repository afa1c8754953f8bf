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

// The scripts. Each consists of the constants, gate.lua and the file with the script's name.
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

// script is one Lua file with its prelude.
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
		panic(err) // the file is embedded, so it is always there
	}
	return string(text)
}

// constants defines, in Lua, the constants that the scripts share with all other kinds of node.
func constants() string {
	return fmt.Sprintf("local MAX_TOKEN, MAX_SHOWN, MAX_ATTEMPTS = %d, %d, %d\n", fencing.MaxToken, node.MaxShown, node.MaxAttempts) +
		fmt.Sprintf("local TICKET_TTL, ENQUEUED_TTL, ENQUEUED_AGAIN, MAX_TOKENS_AHEAD = %s, %s, %s, %d\n",
			millis(node.TicketTTL), millis(node.EnqueuedTTL), millis(node.EnqueuedAgain), node.MaxTokensAhead)
}

// caller is a client of the library, or a single connection.
type caller interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	ScriptLoad(ctx context.Context, script string) *redis.StringCmd
}

// run calls the script. A node that lacks the script has executed nothing, so run loads it and calls it again.
// (A cached script proves nothing about the node; the gate does.)
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

// call runs the script with the given arguments.
func (s script) call(ctx context.Context, client *redis.Client, args ...any) *redis.Cmd {
	return s.run(ctx, client, append(slices.Clip(s.args), args...))
}
