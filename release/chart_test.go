package release_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const chartFolder = "../deploy/helm/fencelock"

// release is what the chart makes of some values, each object decoded strictly.
type release struct {
	deployment appsv1.Deployment
	config     corev1.ConfigMap
	service    corev1.Service
	budget     *policyv1.PodDisruptionBudget
	policy     *networkingv1.NetworkPolicy
}

func render(values string) (release, error) {
	var r release
	chart, err := loader.Load(chartFolder)
	if err != nil {
		return r, err
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return r, err
	}
	options := chartutil.ReleaseOptions{Name: "locks", Namespace: "backend", IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, given, options, nil)
	if err != nil {
		return r, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return r, err
	}
	for name, text := range files {
		into := map[string]any{
			"deployment.yaml": &r.deployment, "configmap.yaml": &r.config, "service.yaml": &r.service,
		}[filepath.Base(name)]
		switch {
		case filepath.Base(name) == "NOTES.txt" || strings.TrimSpace(text) == "":
			continue
		case filepath.Base(name) == "poddisruptionbudget.yaml":
			r.budget = new(policyv1.PodDisruptionBudget)
			into = r.budget
		case filepath.Base(name) == "networkpolicy.yaml":
			r.policy = new(networkingv1.NetworkPolicy)
			into = r.policy
		case filepath.Base(name) == "servicemonitor.yaml": // a custom resource
			into = new(map[string]any)
		case into == nil:
			return r, fmt.Errorf("%s: which kind is it?", name)
		}
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			return r, fmt.Errorf("%s: %w\n%s", name, err, text)
		}
	}
	return r, nil
}

func mustRender(t *testing.T, values string) release {
	t.Helper()
	r, err := render(values)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestChartIsWithoutLint(t *testing.T) {
	linter := lint.AllWithKubeVersion(chartFolder, nil, "backend", nil)
	for _, m := range linter.Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestChartRunsTheManifestsPod keeps the chart's pod and the manifests' the same, with
// all that hardens it.
func TestChartRunsTheManifestsPod(t *testing.T) {
	text, err := os.ReadFile("../deploy/kubernetes/base/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &want); err != nil {
		t.Fatal(err)
	}
	got := mustRender(t, `image: {repository: fencelock, tag: "1"}`).deployment
	for _, spec := range []*corev1.PodSpec{&want.Spec.Template.Spec, &got.Spec.Template.Spec} {
		// Labels and names are each one's own.
		spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].PodAffinityTerm.LabelSelector = nil
		spec.TopologySpreadConstraints[0].LabelSelector = nil
		c := &spec.Containers[0]
		c.Image, c.ImagePullPolicy, c.EnvFrom = "", "", nil
	}
	if !reflect.DeepEqual(want.Spec.Template.Spec, got.Spec.Template.Spec) {
		a, _ := yaml.Marshal(want.Spec.Template.Spec)
		b, _ := yaml.Marshal(got.Spec.Template.Spec)
		t.Errorf("manifests:\n%s\nchart:\n%s", a, b)
	}
	if !reflect.DeepEqual(want.Spec.Strategy, got.Spec.Strategy) || *want.Spec.Replicas != *got.Spec.Replicas {
		t.Errorf("strategy %+v and %d replicas, want %+v and %d", got.Spec.Strategy, *got.Spec.Replicas, want.Spec.Strategy, *want.Spec.Replicas)
	}
}

func TestChartFitsTogether(t *testing.T) {
	r := mustRender(t, `{locks: store, databaseURL: true, secret: mine, networkPolicy: {enabled: true, callers: [{podSelector: {}}]}, config: {FENCELOCK_MAX_TTL: 30s}}`)
	labels := r.deployment.Spec.Template.Labels
	for what, selector := range map[string]map[string]string{
		"deployment": r.deployment.Spec.Selector.MatchLabels, "service": r.service.Spec.Selector,
		"budget": r.budget.Spec.Selector.MatchLabels, "policy": r.policy.Spec.PodSelector.MatchLabels,
	} {
		if len(selector) == 0 {
			t.Errorf("%s selects everything", what)
		}
		for k, v := range selector {
			if labels[k] != v {
				t.Errorf("%s selects %s=%s, and the pods have %v", what, k, v, labels)
			}
		}
	}
	pod := r.deployment.Spec.Template.Spec
	if name := pod.Containers[0].EnvFrom[0].ConfigMapRef.Name; name != r.config.Name {
		t.Errorf("the pod reads the ConfigMap %s, which is called %s", name, r.config.Name)
	}
	if secret := pod.Volumes[0].Secret.SecretName; secret != "mine" {
		t.Errorf("the pod mounts the Secret %s", secret)
	}
	for name, want := range map[string]string{
		"FENCELOCK_STORE_FILE": "/etc/fencelock/store", "FENCELOCK_DATABASE_URL_FILE": "/etc/fencelock/database-url",
		"FENCELOCK_REDIS_ADDRS_FILE": "", "FENCELOCK_MAX_TTL": "30s",
	} {
		if r.config.Data[name] != want {
			t.Errorf("%s=%q, want %q", name, r.config.Data[name], want)
		}
	}
	page, err := os.ReadFile("../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range r.config.Data {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("%s is not a variable of the service", name)
		}
	}
	if changed := mustRender(t, `config: {FENCELOCK_MAX_TTL: 31s}`); changed.deployment.Spec.Template.Annotations["checksum/config"] ==
		mustRender(t, "").deployment.Spec.Template.Annotations["checksum/config"] {
		t.Error("another configuration does not restart the pods")
	}
	if r := mustRender(t, `disruptionBudget: false`); r.budget != nil || r.policy != nil {
		t.Errorf("a budget %v and a policy %v that were switched off", r.budget, r.policy)
	}
}

// The probes speak what the server speaks, and the runtime knows the limit of its memory.
func TestChartFollowsItsValues(t *testing.T) {
	r := mustRender(t, `{config: {FENCELOCK_TLS_CERT_FILE: /etc/fencelock/tls.crt}, resources: {limits: {memory: 2Gi}}, image: {digest: "sha256:`+strings.Repeat("ab", 32)+`"},
		extraEnv: [{name: SSL_CERT_DIR, value: /authorities}], extraVolumes: [{name: ca}], extraVolumeMounts: [{name: ca, mountPath: /authorities}],
		networkPolicy: {enabled: true, callers: []}, serviceMonitor: {enabled: true}}`)
	pod := r.deployment.Spec.Template.Spec
	c := pod.Containers[0]
	for name, probe := range map[string]*corev1.Probe{"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe, "startup": c.StartupProbe} {
		if probe.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			t.Errorf("with TLS the %s probe uses %q", name, probe.HTTPGet.Scheme)
		}
	}
	if c.Env[0].Value != "1843MiB" || c.Env[1].Name != "SSL_CERT_DIR" || len(pod.Volumes) != 2 || len(c.VolumeMounts) != 2 {
		t.Errorf("environment %v, volumes %v, mounts %v", c.Env, pod.Volumes, c.VolumeMounts)
	}
	if !strings.HasSuffix(c.Image, "@sha256:"+strings.Repeat("ab", 32)) {
		t.Errorf("image %s", c.Image)
	}
	for _, rule := range r.policy.Spec.Ingress {
		if rule.Ports[0].Port.String() == "http" {
			t.Errorf("nobody may call, and the rule is %+v", rule)
		}
	}
	if ports := r.service.Spec.Ports; len(ports) != 2 || ports[1].Name != "admin" {
		t.Errorf("a ServiceMonitor of a Service with the ports %+v", ports)
	}
	if _, err := render(`resources: {limits: {memory: 512000000}}`); err == nil || !strings.Contains(err.Error(), "set goMemLimit") {
		t.Errorf("a limit that is not understood: %v", err)
	}
}

// What docs/how-to/install.md gives to helm renders, and the Secret that it makes has the files that the pod reads.
func TestInstallPage(t *testing.T) {
	page, err := os.ReadFile("../docs/how-to/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\nhelm install locks deploy/helm/fencelock ")
	line, _, _ := strings.Cut(rest, "\n")
	values := map[string]any{}
	for setting := range strings.FieldsSeq(strings.ReplaceAll(line, "--set ", "")) {
		if err := strvals.ParseInto(setting, values); err != nil {
			t.Errorf("%s: %v", setting, err)
		}
	}
	text, err := yaml.Marshal(values)
	if err != nil || !found || len(values) == 0 {
		t.Fatalf("the page's helm install has the values %v: %v", values, err)
	}
	r := mustRender(t, string(text))
	if secret := r.deployment.Spec.Template.Spec.Volumes[0].Secret.SecretName; !strings.Contains(string(page), "kubectl create secret generic "+secret+" ") {
		t.Errorf("the page does not make the Secret %s", secret)
	}
	for name, file := range r.config.Data {
		if base := filepath.Base(file); strings.HasPrefix(file, "/etc/fencelock/") && !strings.Contains(string(page), "--from-file="+base) {
			t.Errorf("the page's Secret lacks %s, for %s", base, name)
		}
	}
}

// TestSchemaRefuses: bad values are refused before anything is installed.
func TestSchemaRefuses(t *testing.T) {
	for _, values := range []string{
		`replicas: 0`, `replicas: three`, `replica: 3`, `locks: redis`, `secret: ""`, `goMemLimit: 400MB`,
		`config: {FENCELOCK_STORE: "postgres://u:secret@h/d"}`, `config: {PATH: /bin}`, `config: {FENCELOCK_MAX_TTL: 60}`,
		`config: {FENCELOCK_REDIS_NEXT_ADDRS: "redis://u:secret@h"}`, `config: {FENCELOCK_OIDC_ISSUER: "https://u:secret@h"}`, `service: null`, `image: {digest: "sha256:1"}`,
		`service: {type: Cluster}`, `image: {repository: ""}`, `networkPolicy: {enabled: "yes"}`,
	} {
		if _, err := render(values); err == nil || !strings.Contains(err.Error(), "values don't meet the specifications of the schema") {
			t.Errorf("%s: %v, want a refusal", values, err)
		}
	}
}
