package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v3"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/check"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/server"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
)

// manifest is a YAML document, read by paths such as "spec.template.spec.containers.0".
type manifest map[string]any

func (m manifest) at(path string) any {
	var now any = map[string]any(m)
	for step := range strings.SplitSeq(path, ".") {
		switch here := now.(type) {
		case map[string]any:
			now = here[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(here) {
				return nil
			}
			now = here[i]
		default:
			return nil
		}
	}
	return now
}

func (m manifest) text(path string) string { s, _ := m.at(path).(string); return s }
func (m manifest) number(path string) int  { n, _ := m.at(path).(int); return n }

// manifestsIn reads every document of the YAML files below a folder of deploy/kubernetes.
func manifestsIn(t *testing.T, folder string) (found []manifest) {
	t.Helper()
	root := filepath.Join("..", "..", "deploy", "kubernetes", folder)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found = append(found, documents(t, path, text)...)
		return nil
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: %d documents, %v", folder, len(found), err)
	}
	return found
}

func documents(t *testing.T, name string, text []byte) (found []manifest) {
	t.Helper()
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var raw map[string]any // a map of another type would make all those within of that type
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return found
		}
		m := manifest(raw)
		if err != nil || m.text("kind") == "" || m.text("apiVersion") == "" {
			t.Fatalf("%s: no manifest: %v %v", name, m, err)
		}
		found = append(found, m)
	}
}

func ofKind(t *testing.T, all []manifest, kind string) (found []manifest) {
	t.Helper()
	for _, m := range all {
		if m.text("kind") == kind {
			found = append(found, m)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no %s", kind)
	}
	return found
}

// knownVariable fails for a variable that the service does not read.
func knownVariable(t *testing.T, where, name string) {
	t.Helper()
	if !slices.ContainsFunc(config.Variables(), func(v config.Variable) bool { return v.Name == name }) {
		t.Errorf("%s: there is no variable %s", where, name)
	}
}

func TestDeploymentFitsTheService(t *testing.T) {
	t.Parallel()
	base := manifestsIn(t, "base")
	d := ofKind(t, base, "Deployment")[0]
	const pod, container = "spec.template.spec", "spec.template.spec.containers.0"
	if grace := time.Duration(d.number(pod+".terminationGracePeriodSeconds")) * time.Second; grace <= lockcore.MaxWait || grace <= server.DrainTimeout {
		t.Errorf("the grace period, %s, is not above the longest wait, %s", grace, lockcore.MaxWait)
	}
	budget := ofKind(t, base, "PodDisruptionBudget")[0]
	labels, _ := ofKind(t, base, "Kustomization")[0].at("labels.0.pairs").(map[string]any) // of the pods
	if selects, _ := budget.at("spec.selector.matchLabels").(map[string]any); budget.number("spec.maxUnavailable") != 1 || len(selects) == 0 || !maps.Equal(selects, labels) {
		t.Errorf("a budget %v for pods with %v", budget.at("spec"), labels)
	}
	for path, want := range map[string]any{
		pod + ".securityContext.runAsNonRoot": true, pod + ".automountServiceAccountToken": false, pod + ".enableServiceLinks": false,
		container + ".securityContext.readOnlyRootFilesystem": true, container + ".securityContext.allowPrivilegeEscalation": false,
		container + ".securityContext.capabilities.drop.0": "ALL", pod + ".securityContext.seccompProfile.type": "RuntimeDefault",
		container + ".args.0": "serve",
	} {
		if got := d.at(path); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	if d.at(pod+".affinity.podAntiAffinity") == nil {
		t.Error("no anti-affinity")
	}
	p := start(t)
	for probe, want := range map[string]string{"livenessProbe": "/healthz", "readinessProbe": "/readyz", "startupProbe": "/healthz"} {
		path := d.text(container + "." + probe + ".httpGet.path")
		if path != want || d.text(container+"."+probe+".httpGet.port") != "http" {
			t.Errorf("%s asks for %q", probe, path)
		}
		p.wants(p.ask(nil, "GET", path, ""), http.StatusOK)
	}
}

// settingsOf returns the literals of a folder's ConfigMap.
func settingsOf(t *testing.T, folder string) map[string]string {
	t.Helper()
	settings := map[string]string{}
	for _, k := range ofKind(t, manifestsIn(t, folder), "Kustomization") {
		generators, _ := k["configMapGenerator"].([]any)
		for _, generator := range generators {
			literals, _ := generator.(map[string]any)["literals"].([]any)
			for _, literal := range literals {
				name, value, _ := strings.Cut(literal.(string), "=")
				knownVariable(t, folder, name)
				settings[name] = value
			}
		}
	}
	return settings
}

// What the manifests set is a configuration that the service takes, with the
// ports that they name.
func TestManifestsAreAConfiguration(t *testing.T) {
	for _, overlay := range []string{"example", "managed-redis"} {
		settings := settingsOf(t, "base")
		maps.Copy(settings, settingsOf(t, "overlays/"+overlay))
		folder, err := filepath.Abs(filepath.Join("..", "..", "deploy", "kubernetes", "overlays", overlay))
		if err != nil {
			t.Fatal(err)
		}
		t.Run(overlay, func(t *testing.T) {
			for name, value := range settings {
				t.Setenv(name, strings.Replace(value, "/etc/fencelock", folder, 1))
			}
			cfg, err := config.Load()
			if err != nil {
				t.Fatal(err)
			}
			if err := server.CheckFiles(cfg); err != nil {
				t.Error(err)
			}
			if !strings.HasSuffix(cfg.Listen, ":8080") || !strings.HasSuffix(cfg.AdminListen, ":8081") {
				t.Errorf("listens on %s and %s, which are not the Deployment's ports", cfg.Listen, cfg.AdminListen)
			}
		})
	}
}

func TestRedisManifestsAreFitNodes(t *testing.T) {
	node := ofKind(t, manifestsIn(t, "redis/node"), "StatefulSet")[0]
	const container = "spec.template.spec.containers.0"
	args, _ := node.at(container + ".args").([]any)
	var line []string
	for _, arg := range args {
		line = append(line, arg.(string))
	}
	if text := strings.Join(line, " "); !strings.Contains(text, "--maxmemory-policy noeviction") || !strings.Contains(text, "--maxmemory 400mb") || strings.Contains(text, "replicaof") {
		t.Errorf("arguments %s", text)
	}
	if node.number("spec.replicas") != 1 || node.at("spec.template.spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution") == nil {
		t.Error("not one replica, or not apart from the others")
	}
	settings := settingsOf(t, "base")
	silence, err := time.ParseDuration(settings["FENCELOCK_MAX_TTL"])
	if err != nil {
		t.Fatal(err)
	}
	silence += silence/100 + 2*time.Millisecond
	if delay := time.Duration(node.number(container+".readinessProbe.initialDelaySeconds")) * time.Second; delay < silence+10*time.Second {
		t.Errorf("ready after %s, but silent for %s after a restart", delay, silence)
	}
	folders, _ := filepath.Glob("../../deploy/kubernetes/redis/node-*")
	var names []string
	for _, folder := range folders {
		k := ofKind(t, manifestsIn(t, "redis/"+filepath.Base(folder)), "Kustomization")[0]
		names = append(names, "redis://fencelock:PASSWORD@"+node.text("metadata.name")+k.text("nameSuffix")+":6379")
	}
	addresses := strings.Split(strings.TrimSpace(string(deployFile(t, "kubernetes/overlays/example/redis-addrs"))), ",")
	if !slices.Equal(names, addresses) || len(names) != 5 {
		t.Errorf("nodes %v, addresses %v", names, addresses)
	}
}

// Without the password a client of a Redis pod can change and read nothing. The pod's file of users allows only the
// probes' PING without one, and the service's user has a password.
func TestRedisPodsAskForAPassword(t *testing.T) {
	t.Parallel()
	const mounted = "/etc/redis/users.acl"
	pod := ofKind(t, manifestsIn(t, "redis/node"), "StatefulSet")[0]
	const container = "spec.template.spec.containers.0"
	args, _ := pod.at(container + ".args").([]any)
	if at := slices.Index(args, any("--aclfile")); at < 0 || args[at+1] != mounted {
		t.Errorf("arguments %v", args)
	}
	if mount := pod.text(container + ".volumeMounts.1.mountPath"); mount != filepath.Dir(mounted) {
		t.Errorf("the Secret is mounted at %s", mount)
	}
	secret := pod.text("spec.template.spec.volumes.0.secret.secretName")
	generators, _ := ofKind(t, manifestsIn(t, "overlays/example"), "Kustomization")[0]["secretGenerator"].([]any)
	if !slices.ContainsFunc(generators, func(g any) bool { return g.(map[string]any)["name"] == secret }) {
		t.Errorf("nobody makes the Secret %s", secret)
	}
	users := string(deployFile(t, "kubernetes/overlays/example/users.acl"))
	if users != string(deployFile(t, "redis/users.acl")) {
		t.Error("the overlay's users are not those of deploy/redis")
	}

	server := testenv.StartRedis(t, testenv.WithConfig("maxmemory 100mb")) // its own: its users change
	as := func(user, password string) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: user, Password: password, Protocol: 2})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	admin := server.Client()
	for line := range strings.Lines(users) {
		command := []any{"ACL", "SETUSER"}
		for _, word := range strings.Fields(line)[1:] {
			command = append(command, word)
		}
		if err := admin.Do(t.Context(), command...).Err(); strings.Contains(line, "-SHA256") != (err != nil) {
			t.Fatalf("%s: %v", line, err) // the example without a password of one's own starts no Redis
		}
	}
	for name, c := range map[string]*redis.Client{"nobody": as("", ""), "the probes' user": as("probe", "x"), "a wrong password": as("fencelock", "PASSWORD")} {
		for _, command := range [][]any{{"GET", "fencelock"}, {"FLUSHALL"}, {"CONFIG", "GET", "*"}, {"ACL", "LIST"}, {"SUBSCRIBE", "fencelock:x"}} {
			if err := c.Do(t.Context(), command...).Err(); err == nil {
				t.Errorf("%s may %v", name, command)
			}
		}
	}
	if err := as("probe", "x").Ping(t.Context()).Err(); err != nil {
		t.Errorf("the probes: %v", err)
	}
	for _, probe := range []string{"livenessProbe", "readinessProbe"} {
		if command := pod.text(container + "." + probe + ".exec.command.2"); !strings.HasPrefix(command, "redis-cli --no-auth-warning --user probe --pass x ping |") {
			t.Errorf("the %s runs %q", probe, command)
		}
	}
}

// shippedUsers are the users of deploy/redis, each user but the default one with its name as its password.
func shippedUsers(t *testing.T) (lines []string) {
	t.Helper()
	for line := range strings.Lines(string(deployFile(t, "redis/users.acl"))) {
		for name, placeholder := range map[string]string{"admin": "ADMIN-SHA256", "fencelock": "SERVICE-SHA256"} {
			line = strings.Replace(line, placeholder, fmt.Sprintf("%x", sha256.Sum256([]byte(name))), 1)
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

// Redis loads its append-only file as the default user. So that user keeps its rights, although nobody can log in as
// it.
func TestShippedUsersLoseNoDataAtARestart(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t, testenv.WithPersistence(testenv.PersistAOFEverysec), testenv.WithConfig(append(shippedUsers(t), "maxmemory 100mb")...))
	url := "redis://fencelock:fencelock@" + server.Addr() + "/0"
	p := start(t, "FENCELOCK_REDIS_ADDRS="+url, "FENCELOCK_BOOTSTRAP=new")
	p.acquire(`{"resource":"orders/42","ttl_ms":60000}`)
	p.Signal(syscall.SIGTERM)
	p.exit()
	admin := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "admin", Password: "admin", Protocol: 2})
	t.Cleanup(func() { _ = admin.Close() })
	keys := func() int64 {
		n, err := admin.DBSize(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := keys()
	server.Restart()
	if after := keys(); after != before || before < 3 {
		t.Errorf("%d keys before the restart, %d after it", before, after)
	}
	for _, command := range [][]any{{"CONFIG", "GET", "maxmemory"}, {"SLOWLOG", "GET"}, {"ACL", "LIST"}, {"FLUSHALL"}} {
		if err := admin.Do(t.Context(), command...).Err(); err != nil {
			t.Errorf("the administrator may not %v: %v", command, err)
		}
	}
}

// A Redis whose default user has no rights comes back empty; check says so before it restarts.
func TestCheckSeesADefaultUserWithoutRights(t *testing.T) {
	t.Parallel()
	lines := slices.Concat(shippedUsers(t)[1:], []string{"user default off", "maxmemory 100mb"})
	server := testenv.StartRedis(t, testenv.WithPersistence(testenv.PersistAOFEverysec), testenv.WithConfig(lines...))
	addrs := "FENCELOCK_REDIS_ADDRS=redis://fencelock:fencelock@" + server.Addr() + "/0"
	_, report := checks(t, cli.ExitFailed, addrs)
	finds(t, report, check.Wrong, server.Addr(), "the next restart empties it")
	admin := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "admin", Password: "admin", Protocol: 2})
	t.Cleanup(func() { _ = admin.Close() })
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "default", "off", "~*", "&*", "+@all").Err(); err != nil { // as it advises
		t.Fatal(err)
	}
	if _, report = checks(t, cli.ExitRisky, addrs); slices.ContainsFunc(report.Findings, func(f check.Finding) bool { return f.Level == check.Wrong }) {
		t.Errorf("after that: %+v", report.Findings)
	}
}

// kubectl builds the overlays. Where there is no kubectl, the other tests check their parts.
func TestOverlaysBuild(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("NOT RUN: kubectl is not on this machine (https://kubernetes.io/docs/tasks/tools); the parts of the overlays were tested")
	}
	for overlay, sets := range map[string]int{"example": 5, "managed-redis": 0} {
		out, err := exec.Command(kubectl, "kustomize", "../../deploy/kubernetes/overlays/"+overlay).Output()
		if err != nil {
			t.Errorf("%s: %v", overlay, err)
			continue
		}
		all := documents(t, overlay, out)
		server := ofKind(t, all, "Deployment")[0]
		if sets > 0 {
			onlyServersReach(t, ofKind(t, all, "NetworkPolicy"), server)
		}
		count := 0
		for _, m := range all {
			if m.text("kind") != "StatefulSet" {
				continue
			}
			count++
			// The anti-affinity is towards all nodes; the selector is the node's own.
			terms, _ := m.at("spec.template.spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution.0.labelSelector.matchLabels").(map[string]any)
			own, _ := m.at("spec.selector.matchLabels").(map[string]any)
			if len(terms) != 1 || own["fencelock/node"] == nil || m.text("spec.serviceName") != m.text("metadata.name") {
				t.Errorf("%s: apart from %v, selects %v", m.text("metadata.name"), terms, own)
			}
		}
		if count != sets {
			t.Errorf("%s: %d StatefulSets, want %d", overlay, count, sets)
		}
	}
}

// onlyServersReach checks the network policy of the Redis pods: it applies to the pods of all nodes, allows
// connections only from the servers' pods, and none to the outside.
func onlyServersReach(t *testing.T, policies []manifest, server manifest) {
	t.Helper()
	labels, _ := server.at("spec.template.metadata.labels").(map[string]any)
	from, _ := policies[0].at("spec.ingress.0.from.0.podSelector.matchLabels").(map[string]any)
	sources, _ := policies[0].at("spec.ingress.0.from").([]any)
	types, _ := policies[0].at("spec.policyTypes").([]any)
	if len(policies) != 1 || len(sources) != 1 || len(from) != 1 || from["app.kubernetes.io/name"] != labels["app.kubernetes.io/name"] ||
		len(types) != 2 || policies[0].at("spec.egress") != nil {
		t.Errorf("policies %v, servers %v", policies, labels)
	}
	pods, _ := policies[0].at("spec.podSelector.matchLabels").(map[string]any)
	node := ofKind(t, manifestsIn(t, "redis/node"), "StatefulSet")[0]
	if own, _ := node.at("spec.template.metadata.labels").(map[string]any); len(pods) != 1 || pods["app.kubernetes.io/name"] != own["app.kubernetes.io/name"] {
		t.Errorf("the policy is for %v", pods)
	}
}

// An image is built from the whole Git tree. If one of its files were left out, Git would report it as missing, and
// the image's version would end with +dirty.
func TestImageIsBuiltFromTheWholeTree(t *testing.T) {
	if _, err := os.Stat("../../.git"); err != nil {
		t.Skip("not in a git repository, which knows the files")
	}
	git := exec.Command("git", "ls-files", "--cached", "--ignored", "--exclude-from=.dockerignore")
	git.Dir = "../.."
	out, err := git.Output()
	if err != nil {
		t.Fatal(err)
	}
	if len(out) > 0 {
		t.Errorf(".dockerignore leaves out files that git knows:\n%s", out)
	}
}

func TestSystemdUnit(t *testing.T) {
	unit := string(deployFile(t, "systemd/fencelock.service"))
	section, settings := "", map[string]string{}
	for line := range strings.Lines(unit) {
		line = strings.TrimSpace(line)
		name, value, ok := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = line
		case !ok || section == "":
			t.Errorf("no setting: %q", line)
		default:
			settings[section+name] = value
		}
	}
	stop, err := time.ParseDuration(settings["[Service]TimeoutStopSec"])
	if err != nil || stop <= 30*time.Second {
		t.Errorf("is killed after %s, and may take 30 s to end", stop)
	}
	for name, want := range map[string]string{
		"ExecStart": "/usr/local/bin/fencelock serve", "EnvironmentFile": "/etc/fencelock/fencelock.env", "RestartPreventExitStatus": "2",
		"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "", "StateDirectory": "fencelock",
	} {
		if got, there := settings["[Service]"+name]; got != want || !there {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
	for _, name := range regexp.MustCompile(`FENCELOCK_[A-Z_]+`).FindAllString(unit+string(deployFile(t, "systemd/fencelock.env")), -1) {
		knownVariable(t, "systemd", name)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd-analyze is not installed: the unit was read by this test alone")
		return
	}
	program := testenv.Program(t)
	copied := filepath.Join(t.TempDir(), "fencelock.service")
	if err := os.WriteFile(copied, []byte(strings.ReplaceAll(unit, "/usr/local/bin/fencelock", program)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", copied).CombinedOutput(); err != nil || strings.Contains(string(out), "Unknown") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// The Redis user of deploy/redis may do all that the service needs, and no more.
func TestRedisUserMayDoWhatTheServiceNeeds(t *testing.T) {
	t.Parallel()
	var rules []string
	for line := range strings.Lines(string(deployFile(t, "redis/users.acl"))) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "user fencelock on #SERVICE-SHA256 "); ok {
			rules = strings.Fields(rest)
		}
	}
	if len(rules) == 0 {
		t.Fatal("no rules in users.acl")
	}
	var urls []string
	var servers []*testenv.Redis
	for range 3 {
		server := testenv.StartRedis(t, testenv.WithUser("fencelock", "a-password", rules...))
		servers, urls = append(servers, server), append(urls, server.URL())
	}
	p := start(t, "FENCELOCK_REDIS_ADDRS="+strings.Join(urls, ","), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=1s", "FENCELOCK_MAX_TTL=10s")
	lease := p.acquire(`{"resource":"orders/42","ttl_ms":1500}`)
	p.wants(p.ask(nil, "POST", "/leases/current/extend", `{"ttl_ms":2000}`, "Fencelock-Lease: "+lease.LeaseID), http.StatusOK)
	waited := p.acquire(`{"resource":"orders/42","wait_ms":20000}`)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"orders/42","wait_ms":50}`), http.StatusConflict)
	p.wants(p.ask(nil, "GET", "/locks?prefix=orders/", ""), http.StatusOK)
	p.wants(p.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+waited.LeaseID), http.StatusOK)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+waited.LeaseID), http.StatusNoContent)
	first := p.acquire(`{"resource":"queue"}`)
	var waiting sync.WaitGroup
	for i := range 2 { // whose turn is told when the one before gives it back
		waiting.Go(func() {
			var next wire.Lease
			if resp, err := p.try(t.Context(), &next, "POST", "/locks", `{"resource":"queue","wait_ms":20000}`, "Idempotency-Key: waiter"+strconv.Itoa(i)); err != nil || resp.StatusCode != http.StatusCreated {
				t.Errorf("a waiter got %v, %v", resp, err)
				return
			}
			if _, err := p.try(t.Context(), nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+next.LeaseID); err != nil {
				t.Error(err)
			}
		})
	}
	p.until("both stand in the queue", func() bool {
		var lock wire.Lock
		p.ask(&lock, "GET", "/locks/queue", "")
		return lock.Waiters == 2
	})
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID), http.StatusNoContent)
	waiting.Wait()
	p.acquire(`{"resource":"keyed"}`)
	p.breaks("keyed")
	checks(t, cli.ExitRisky, "FENCELOCK_REDIS_ADDRS="+strings.Join(urls, ","), "FENCELOCK_NODE_DOWN_AFTER=1s", "FENCELOCK_MAX_TTL=10s")
	for _, server := range servers { // a part that fails may not be missed by any call
		refused, err := server.Client().Info(t.Context(), "errorstats").Result()
		if err != nil || strings.Contains(refused, "NOPERM") || strings.Contains(refused, "errorstat_ERR") { // the second, of a command in a script
			t.Errorf("%s: %v\n%s", server.Addr(), err, refused)
		}
	}
}
