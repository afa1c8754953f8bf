package redisnode

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; nothing is secured by it
	_ "embed"
	"encoding/hex"
	"slices"

	"github.com/redis/go-redis/v9"
)

//go:embed gate.lua
var gateSource string

//go:embed vote.lua
var voteSource string

//go:embed observe.lua
var observeSource string

//go:embed install_epoch.lua
var installEpochSource string

//go:embed survey.lua
var surveySource string

//go:embed counters.lua
var countersSource string

//go:embed quarantine.lua
var quarantineSource string

//go:embed stage.lua
var stageSource string

//go:embed load.lua
var loadSource string

//go:embed admit.lua
var admitSource string

//go:embed maxttl.lua
var maxTTLSource string

//go:embed secrets.lua
var secretsSource string

//go:embed leaks.lua
var leaksSource string

//go:embed expel.lua
var expelSource string

// script is one Lua file behind the gate's prelude.
type script struct {
	body string
	args []any // "EVALSHA", its hash, "0": the head of every call
}

func newScript(source string) script {
	body := gateSource + source
	sum := sha1.Sum([]byte(body)) //nolint:gosec // see above
	return script{body: body, args: []any{"EVALSHA", hex.EncodeToString(sum[:]), "0"}}
}

// run calls the script. When the node does not know it, nothing has run: it is
// loaded and called again. (The cache says nothing about safety: the gate does.)
func (s script) run(ctx context.Context, client *redis.Client, args []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	if err := client.Process(ctx, cmd); !redis.HasErrorPrefix(err, "NOSCRIPT") {
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
func (s script) call(ctx context.Context, client *redis.Client, args ...any) ([]any, error) {
	return s.run(ctx, client, append(slices.Clip(s.args), args...)).Slice()
}

// scripts are the files, ready to call.
type scripts struct {
	vote, observe, installEpoch, survey, counters, quarantine, stage, load, admit, maxTTL, secrets, leaks, expel script
}

func newScripts() scripts {
	return scripts{
		vote: newScript(voteSource), observe: newScript(observeSource), installEpoch: newScript(installEpochSource),
		survey: newScript(surveySource), counters: newScript(countersSource), quarantine: newScript(quarantineSource), stage: newScript(stageSource),
		load: newScript(loadSource), admit: newScript(admitSource), maxTTL: newScript(maxTTLSource),
		secrets: newScript(secretsSource),
		leaks:   newScript(leaksSource), expel: newScript(expelSource),
	}
}
