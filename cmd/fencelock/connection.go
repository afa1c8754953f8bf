package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencelock/fencelock/client"
)

// The variables of the commands that talk to a server. They may also stand in
// the file that FENCELOCK_CONFIG names.
const (
	varURL             = "FENCELOCK_URL"
	varBearerToken     = "FENCELOCK_BEARER_TOKEN"
	varBearerTokenFile = "FENCELOCK_BEARER_TOKEN_FILE"
	varCAFile          = "FENCELOCK_CA_FILE"
	varClientCertFile  = "FENCELOCK_CLIENT_CERT_FILE"
	varClientKeyFile   = "FENCELOCK_CLIENT_KEY_FILE"
	varConfig          = "FENCELOCK_CONFIG"
)

// The variables that fencelock run gives its command.
const (
	varFencingToken = "FENCING_TOKEN"
	varFencingProof = "FENCING_PROOF"
	varResource     = "FENCELOCK_RESOURCE"
	varLeaseID      = "FENCELOCK_LEASE_ID"
)

// clientVariables are those that mean something to the commands and nothing to a server.
func clientVariables() []string {
	return append(configurable(), varConfig, varResource, varLeaseID)
}

// configurable are the variables that the configuration file may hold.
func configurable() []string {
	return []string{varURL, varBearerToken, varBearerTokenFile, varCAFile, varClientCertFile, varClientKeyFile}
}

const connectionHelp = `
Where the server is and what this caller may show to it comes from flags, else
from variables, else from the file FENCELOCK_CONFIG (default fencelock/config in
the user's configuration directory, ~/.config on Linux), which holds the same
variables, a line NAME=value each:
  FENCELOCK_URL                http(s)://host:port; several servers of one service
                               separated by commas (default: the one on FENCELOCK_LISTEN)
  FENCELOCK_BEARER_TOKEN       a bearer token, or …
  FENCELOCK_BEARER_TOKEN_FILE  … a file that holds it, read before every request
  FENCELOCK_CA_FILE            the authorities to trust, PEM
  FENCELOCK_CLIENT_CERT_FILE   this client's certificate, PEM, for mutual TLS
  FENCELOCK_CLIENT_KEY_FILE    and its key`

// connection is how a command reaches the service, as its flags say.
type connection struct {
	server, credentialFile, caFile, certFile, keyFile string

	file map[string]string // the configuration file, once it is read
}

// connect adds the flags to a command.
func connect(cmd *cobra.Command) *connection {
	c := &connection{}
	c.flags(cmd.Flags())
	cmd.Long += "\n" + connectionHelp
	noFiles := cobra.FixedCompletions(nil, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("server", noFiles) // the flag is there
	return c
}

func (c *connection) flags(flags *pflag.FlagSet) {
	flags.StringVar(&c.server, "server", "", "URL of the server, or several separated by commas ("+varURL+")")
	flags.StringVar(&c.credentialFile, "credential-file", "", "file that holds the bearer token ("+varBearerTokenFile+")")
	flags.StringVar(&c.caFile, "ca-file", "", "authorities to trust, PEM ("+varCAFile+")")
	flags.StringVar(&c.certFile, "cert-file", "", "client certificate, PEM ("+varClientCertFile+")")
	flags.StringVar(&c.keyFile, "key-file", "", "key of the client certificate, PEM ("+varClientKeyFile+")")
}

// setting is the flag, else the variable, else the line in the file.
func (c *connection) setting(flag, variable string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if value := os.Getenv(variable); value != "" {
		return value, nil
	}
	if c.file == nil {
		file, err := readClientConfig()
		if err != nil {
			return "", usageError{err}
		}
		c.file = file
	}
	return c.file[variable], nil
}

// client makes a client of the service.
func (c *connection) client(opts ...client.Option) (*client.Client, error) {
	servers, err := c.servers()
	if err != nil {
		return nil, err
	}
	credential, err := c.credential()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := c.tls()
	if err != nil {
		return nil, err
	}
	opts = append(opts, client.WithTLSConfig(tlsConfig))
	if credential != nil {
		opts = append(opts, client.WithBearerTokenFunc(credential))
	}
	made, err := client.New(servers, opts...)
	if err != nil {
		return nil, usageError{err}
	}
	return made, nil
}

func (c *connection) servers() (string, error) {
	servers, err := c.setting(c.server, varURL)
	if err != nil || servers != "" {
		return servers, err
	}
	return ownServer()
}

// credential is where the bearer token comes from; nil for none.
func (c *connection) credential() (func(context.Context) (string, error), error) {
	file, err := c.setting(c.credentialFile, varBearerTokenFile)
	if err != nil {
		return nil, err
	}
	if file != "" {
		return func(context.Context) (string, error) { return readCredential(file) }, nil
	}
	text, err := c.setting("", varBearerToken)
	if err != nil || text == "" {
		return nil, err
	}
	return func(context.Context) (string, error) { return text, nil }, nil
}

func readCredential(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("bearer token: %w", err)
	}
	if credential := strings.TrimSpace(string(text)); credential != "" {
		return credential, nil
	}
	return "", fmt.Errorf("bearer token: %s is empty", path)
}

func (c *connection) tls() (*tls.Config, error) {
	ca, errCA := c.setting(c.caFile, varCAFile)
	cert, errCert := c.setting(c.certFile, varClientCertFile)
	key, errKey := c.setting(c.keyFile, varClientKeyFile)
	if err := errors.Join(errCA, errCert, errKey); err != nil {
		return nil, err
	}
	config, err := client.TLSFiles(ca, cert, key)
	if err != nil {
		return nil, usageError{err}
	}
	if servers, err := c.setting(c.server, varURL); err != nil || servers != "" {
		return config, err
	}
	return trustOwn(config)
}

// httpClient is for the commands that ask one server something besides locks.
func (c *connection) httpClient() (*http.Client, error) {
	config, err := c.tls()
	if err != nil {
		return nil, err
	}
	return &http.Client{Timeout: remoteTimeout, Transport: &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment}}, nil
}

// authorize puts the bearer token on a request.
func (c *connection) authorize(req *http.Request) error {
	credential, err := c.credential()
	if err != nil || credential == nil {
		return err
	}
	text, err := credential(req.Context())
	if err == nil {
		req.Header.Set("Authorization", "Bearer "+text)
	}
	return err
}

// readClientConfig reads the configuration file. That the usual one is not there
// is no mistake.
func readClientConfig() (map[string]string, error) {
	path, named := os.Getenv(varConfig), true
	if path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return map[string]string{}, nil // a system user has none
		}
		path, named = filepath.Join(dir, "fencelock", "config"), false
	}
	file, err := os.Open(path) //nolint:gosec // the user's own file, named by the user
	if err != nil {
		if !named && errors.Is(err, fs.ErrNotExist) || !named && errors.Is(err, fs.ErrPermission) {
			return map[string]string{}, nil
		}
		return nil, fmt.Errorf("%s: %w", varConfig, err)
	}
	defer func() { _ = file.Close() }()
	values, err := parseClientConfig(bufio.NewScanner(file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return values, checkMode(path, file, values)
}

func parseClientConfig(lines *bufio.Scanner) (map[string]string, error) {
	values := map[string]string{}
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.Trim(strings.TrimSpace(value), `"'`)
		if !found || !slices.Contains(configurable(), name) {
			// Not the line itself: it may hold a secret.
			return nil, fmt.Errorf("line %d must be NAME=value with one of %s", n, strings.Join(configurable(), ", "))
		}
		values[name] = value
	}
	return values, lines.Err()
}

// checkMode refuses a file with a secret that others may read.
func checkMode(path string, file *os.File, values map[string]string) error {
	info, err := file.Stat()
	const others = 0o077
	if err != nil || values[varBearerToken] == "" || info.Mode().Perm()&others == 0 || filepath.Separator == '\\' {
		return err
	}
	return fmt.Errorf("%s holds a bearer token and others may read it: chmod 600 %s", path, path)
}

// resourceCompletion completes the first argument with resources that are held.
func (c *connection) resourceCompletion(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const soon, most = time.Second, 200
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	locks, err := c.client(client.WithTimeout(soon), client.WithPatience(0))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), soon)
	defer cancel()
	var found []cobra.Completion
	for lock, err := range locks.Locks(ctx, begun) {
		if err != nil || len(found) == most {
			break
		}
		found = append(found, lock.Resource)
	}
	slices.Sort(found)
	return found, cobra.ShellCompDirectiveNoFileComp
}
