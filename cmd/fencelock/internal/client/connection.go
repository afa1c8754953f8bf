package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cause"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

const (
	getTimeout     = 5 * time.Second
	maxAnswerBytes = 4 << 20
)

// The variables of the commands that send requests to a server. The file that FENCELOCK_CONFIG names may
// also contain them.
const (
	varURL             = "FENCELOCK_URL"
	varBearerToken     = "FENCELOCK_BEARER_TOKEN"
	varBearerTokenFile = "FENCELOCK_BEARER_TOKEN_FILE"
	varCAFile          = "FENCELOCK_CA_FILE"
	varClientCertFile  = "FENCELOCK_CLIENT_CERT_FILE"
	varClientKeyFile   = "FENCELOCK_CLIENT_KEY_FILE"
	varConfig          = "FENCELOCK_CONFIG"
)

// varServerCert is a variable of the server. A command on the same machine trusts the certificate in it.
const varServerCert = "FENCELOCK_TLS_CERT_FILE"

// Variables returns the variables that these commands read and a server does not.
func Variables() []string {
	return append(configurable(), varConfig, varResource, varLeaseID)
}

// configurable returns the variables that the configuration file may contain.
func configurable() []string {
	return []string{varURL, varBearerToken, varBearerTokenFile, varCAFile, varClientCertFile, varClientKeyFile}
}

const connectionHelp = `
The server's address and your credentials come from flags, or from these variables,
or from the file FENCELOCK_CONFIG (default fencelock/config in the user's
configuration directory, ~/.config on Linux) with lines NAME=value:
  FENCELOCK_URL                http(s)://host:port; several servers of one service
                               separated by commas (default: the one on FENCELOCK_LISTEN)
  FENCELOCK_BEARER_TOKEN       a bearer token, or …
  FENCELOCK_BEARER_TOKEN_FILE  … a file with it, read before every request
  FENCELOCK_CA_FILE            the authorities to trust, PEM
  FENCELOCK_CLIENT_CERT_FILE   this client's certificate, PEM, for mutual TLS
  FENCELOCK_CLIENT_KEY_FILE    and its key`

// connection is how a command reaches the service, according to its flags.
type connection struct {
	server, credentialFile, caFile, certFile, keyFile string
}

// connect adds the flags to a command.
func connect(cmd *cobra.Command) *connection {
	c := &connection{}
	flags := cmd.Flags()
	flags.StringVar(&c.server, "url", "", "URL of the server, or several separated by commas ("+varURL+")")
	flags.StringVar(&c.credentialFile, "bearer-token-file", "", "file with the bearer token ("+varBearerTokenFile+")")
	flags.StringVar(&c.caFile, "ca-file", "", "authorities to trust, PEM ("+varCAFile+")")
	flags.StringVar(&c.certFile, "client-cert-file", "", "client certificate, PEM ("+varClientCertFile+")")
	flags.StringVar(&c.keyFile, "client-key-file", "", "key of the client certificate, PEM ("+varClientKeyFile+")")
	noFiles(cmd, "url")
	return c
}

// noFiles keeps the shell from completing these flags with file names.
func noFiles(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions) // cannot fail: the flag exists
	}
}

// ConnectionTopic is the name of the help topic about the server and the caller.
const ConnectionTopic = "connection"

// ConnectionCommand returns a help topic in the form of a command.
func ConnectionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: ConnectionTopic, Short: "Help on how to name the server and the caller",
		Example: "  fencelock ls --url https://locks.example.com --bearer-token-file token",
	}
	connect(cmd)
	cmd.Long = strings.TrimSpace(connectionHelp) + "\n\nEvery command that talks to a server has these flags:\n" + strings.TrimRight(cmd.Flags().FlagUsages(), "\n")
	return cmd
}

// settings are the values of the variables in configurable.
type settings map[string]string

// settings returns the values of the flags, or else of the variables, or else of the file. Without a URL
// it returns the server that this environment configures.
func (c *connection) settings() (settings, *tls.Config, error) {
	s, err := readClientConfig()
	if err != nil {
		return nil, nil, cli.UsageError{Err: err}
	}
	flags := settings{varURL: c.server, varBearerTokenFile: c.credentialFile, varCAFile: c.caFile, varClientCertFile: c.certFile, varClientKeyFile: c.keyFile}
	for _, name := range configurable() {
		s[name] = cmp.Or(flags[name], os.Getenv(name), s[name])
	}
	config, err := client.TLSFiles(s[varCAFile], s[varClientCertFile], s[varClientKeyFile])
	if err != nil {
		return nil, nil, cli.UsageError{Err: err}
	}
	if s[varURL] != "" {
		return s, config, nil
	}
	if s[varURL], err = ownServer(); err != nil {
		return nil, nil, err
	}
	return s, config, trustOwn(config)
}

// client makes a client of the service.
func (c *connection) client(opts ...client.Option) (*client.Client, error) {
	s, config, err := c.settings()
	if err != nil {
		return nil, err
	}
	opts = append(opts, client.WithHTTPClient(&http.Client{Transport: newTransport(config)}))
	if s[varBearerTokenFile] != "" || s[varBearerToken] != "" {
		opts = append(opts, client.WithBearerTokenFunc(func(context.Context) (string, error) {
			credential, err := s.bearerToken()
			if err != nil {
				err = cli.UsageError{Err: err} // no request was sent
			}
			return credential, err
		}))
	}
	made, err := client.New(strings.Split(s[varURL], ","), opts...)
	if err != nil {
		return nil, cli.UsageError{Err: errors.New(strings.TrimPrefix(err.Error(), "client: "))}
	}
	return made, nil
}

// bearerToken returns the token that identifies the caller; "" if there is none.
func (s settings) bearerToken() (string, error) {
	path := s[varBearerTokenFile]
	if path == "" {
		return s[varBearerToken], nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("bearer token: %w", err)
	}
	if credential := strings.TrimSpace(string(text)); credential != "" {
		return credential, nil
	}
	return "", fmt.Errorf("bearer token: %s is empty", path)
}

// get sends a request to the servers until one responds, and returns the status and the body. An error is
// client.ErrUnavailable in words, or a usage error.
func (c *connection) get(ctx context.Context, path string) (status int, body []byte, err error) {
	s, config, err := c.settings()
	if err != nil {
		return 0, nil, err
	}
	credential, err := s.bearerToken()
	if err != nil {
		return 0, nil, cli.UsageError{Err: err}
	}
	transport := newTransport(config)
	defer transport.CloseIdleConnections()
	asking := &http.Client{Timeout: getTimeout, Transport: transport}
	for server := range strings.SplitSeq(s[varURL], ",") {
		status, body, err = getFrom(ctx, asking, strings.TrimSuffix(strings.TrimSpace(server), "/")+path, credential)
		if err == nil || ctx.Err() != nil {
			return status, body, err
		}
	}
	return 0, nil, noAnswer(err)
}

func getFrom(ctx context.Context, asking *http.Client, url, credential string) (status int, body []byte, err error) {
	resp, err := sendGet(ctx, asking, url, credential)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	return resp.StatusCode, body, err
}

// sendGet sends a GET. It does not follow a redirect, because the other server would get the bearer
// token.
func sendGet(ctx context.Context, asking *http.Client, url, credential string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if credential != "" {
		req.Header.Set("Authorization", "Bearer "+credential)
	}
	asking.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := asking.Do(req)
	if err != nil {
		return nil, err
	}
	if to, err := resp.Location(); err == nil {
		_ = resp.Body.Close()
		return nil, cli.PlainError{Text: url + " redirects to " + to.Scheme + "://" + to.Host + ", and redirects are not followed: check the address"}
	}
	return resp, nil
}

// stream reads events from the first server that responds, and passes them to each, until the events or
// ctx end. The error is client.ErrUnavailable in words, a refusal, a usage error, or the error of each.
func (c *connection) stream(ctx context.Context, path string, each func(kind string, data []byte) error) error {
	s, config, err := c.settings()
	if err != nil {
		return err
	}
	credential, err := s.bearerToken()
	if err != nil {
		return cli.UsageError{Err: err}
	}
	transport := newTransport(config)
	defer transport.CloseIdleConnections()
	web := &http.Client{Transport: transport}
	for server := range strings.SplitSeq(s[varURL], ",") {
		resp, failed := sendGet(ctx, web, strings.TrimSuffix(strings.TrimSpace(server), "/")+path, credential) //nolint:bodyclose // followEvents closes it
		if failed == nil {
			return followEvents(resp, each)
		}
		err = failed
	}
	return noAnswer(err)
}

func followEvents(resp *http.Response, each func(kind string, data []byte) error) error {
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes)) // without a readable body it counts as another program's response
		return refusal(resp.StatusCode, body)
	}
	err := readEvents(resp.Body, each)
	if err == nil {
		err = errors.New("the server ended the stream")
	}
	return cli.PlainError{Text: "the events ended: " + cause.InWords(err), Cause: errors.Join(client.ErrUnavailable, err)}
}

// readEvents reads server-sent events to their end.
func readEvents(body io.Reader, each func(kind string, data []byte) error) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxAnswerBytes)
	kind := ""
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "event":
			kind = value
		case "data":
			if err := each(kind, []byte(value)); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// noAnswer is the error of a request to which no server responded.
func noAnswer(err error) error {
	text := "no server responded in time"
	if said, ok := errors.AsType[cli.PlainError](err); ok {
		text = "no server responds: " + said.Text
	} else if failed, ok := errors.AsType[*url.Error](err); ok {
		text = "no server responds: " + failed.URL + " " + cause.InWords(failed.Err)
	}
	return cli.PlainError{Text: text + whereElse, Cause: errors.Join(client.ErrUnavailable, err)}
}

// ready reads the states of the nodes from a server.
func (c *connection) ready(ctx context.Context) (r wire.Ready, err error) {
	status, body, err := c.get(ctx, "/readyz")
	switch {
	case err != nil:
		return r, err
	case status != http.StatusOK && status != http.StatusServiceUnavailable, json.Unmarshal(body, &r) != nil:
		return r, refusal(status, body)
	}
	return r, nil
}

// live checks whether a server responds at all.
func (c *connection) live(ctx context.Context) error {
	status, body, err := c.get(ctx, "/healthz")
	if err == nil && status != http.StatusOK {
		err = refusal(status, body)
	}
	return err
}

// whoAmI reads the caller's rights from the service.
func (c *connection) whoAmI(ctx context.Context) (caller wire.Caller, err error) {
	status, body, err := c.get(ctx, "/whoami")
	switch {
	case err != nil:
		return caller, err
	case status != http.StatusOK, json.Unmarshal(body, &caller) != nil:
		return caller, refusal(status, body)
	}
	return caller, nil
}

// refusal describes the problem in a server's response.
func refusal(status int, body []byte) error {
	var problem wire.Problem
	_ = json.Unmarshal(body, &problem) // a response that is not a problem of the service has no type
	problem.Status, problem.Title = status, cmp.Or(problem.Title, http.StatusText(status))
	return plain(client.ProblemOf(problem))
}

// ownServer returns the URL of the server that the environment configures, as seen from the same machine.
func ownServer() (string, error) {
	address := cmp.Or(os.Getenv("FENCELOCK_LISTEN"), config.DefaultOf("FENCELOCK_LISTEN"))
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "0" {
		return "", cli.UsageError{Err: fmt.Errorf("FENCELOCK_LISTEN=%q has no fixed port: use --url http://host:port", address)}
	}
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	scheme := "http"
	if os.Getenv(varServerCert) != "" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

// trustOwn trusts the certificate of the server that the environment configures, for any host name.
func trustOwn(config *tls.Config) error {
	path := os.Getenv(varServerCert)
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return fmt.Errorf("%s: %w", varServerCert, err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return errors.New(varServerCert + " holds no certificate in PEM")
	}
	config.InsecureSkipVerify = true // VerifyConnection compares the certificate itself
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if !bytes.Equal(state.PeerCertificates[0].Raw, block.Bytes) {
			return errors.New("the server presents a different certificate from the one in " + varServerCert + ": use --url")
		}
		return nil
	}
	return nil
}

// readClientConfig reads the configuration file. The default file need not exist.
func readClientConfig() (settings, error) {
	path, named := os.Getenv(varConfig), true
	if path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return settings{}, nil // a system user may have no home
		}
		path, named = filepath.Join(dir, "fencelock", "config"), false
	}
	file, err := os.Open(path) //nolint:gosec // the user's own file, named by the user
	if err != nil {
		if !named && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
			return settings{}, nil
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

func parseClientConfig(lines *bufio.Scanner) (settings, error) {
	values := settings{}
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

// checkMode refuses a file with a secret if other users may read it.
func checkMode(path string, file *os.File, values settings) error {
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
