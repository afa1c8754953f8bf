package operator

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// secretBytes is the size of a bearer token's random part; secretPrefix makes
// tokens easy to find where they should not be.
const (
	secretBytes  = 32
	secretPrefix = "flk_"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make bearer tokens, which identify callers (fencing tokens come with leases)",
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(tokenNewCommand())
	return cmd
}

// grant is what a new name gets.
type grant struct {
	name                         string
	none, read, acquire, admin   []string
	requests, waiters, held, add string
	output                       string
}

func tokenNewCommand() *cobra.Command {
	var g grant
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make a bearer token, and its line for FENCELOCK_ACCESS_FILE",
		Long: `Make a bearer token, the secret that identifies a caller. It is not a fencing token; the service
makes those, one with each lease.

The secret is shown only once. The line for FENCELOCK_ACCESS_FILE holds the name, the SHA-256 of
the secret, and the rights of the name: prefixes of resources, * for all. Each right includes the
previous ones: read (see locks), acquire (take and extend leases, write guarded records), admin
(break locks). The longest prefix counts, and everything that no rule allows is denied.

--append adds the line to the file, before its last line (end), and prints only the secret. Running
servers read the file again. If the file does not exist, it is created.`,
		Example: `  fencelock token new --name worker --acquire orders/ --read '*'
  fencelock token new --name ops --admin '*' --append access.txt > ops.token`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return g.print(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&g.name, "name", "", "who the caller is, for rules and the log (required)")
	f.StringArrayVar(&g.read, "read", nil, "prefix of resources that it may see; may be repeated")
	f.StringArrayVar(&g.acquire, "acquire", nil, "prefix of resources that it may lock and write; may be repeated")
	f.StringArrayVar(&g.admin, "admin", nil, "prefix of resources whose locks it may break; may be repeated")
	f.StringArrayVar(&g.none, "none", nil, "prefix to exclude from a shorter one; may be repeated")
	f.StringVar(&g.requests, "requests", "", "maximum number of requests a second at each server")
	f.StringVar(&g.waiters, "waiters", "", "maximum number of waiting requests at each server")
	f.StringVar(&g.held, "held", "", "maximum number of leases at each server")
	f.StringVar(&g.add, "append", "", "add the line to this file, and print only the secret")
	cli.OutputFlag(cmd, &g.output)
	return cmd
}

func (g *grant) print(cmd *cobra.Command) error {
	if g.name == "" {
		return cli.UsageError{Err: errors.New("--name is missing: say who the caller is")}
	}
	if strings.ContainsAny(g.name+g.requests+g.waiters+g.held, " \t\r\n") {
		return cli.UsageError{Err: errors.New("names and limits must not contain spaces")}
	}
	var random [secretBytes]byte
	_, _ = rand.Read(random[:]) // never fails
	secret := secretPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	line := g.line(secret)
	if _, err := access.Append("", line); err != nil {
		_, text, _ := strings.Cut(err.Error(), ": ") // "line 1: " says nothing here
		return cli.UsageError{Err: errors.New(text)}
	}
	if g.add != "" {
		if err := addLine(g.add, g.name, line); err != nil {
			return err
		}
	}
	switch {
	case g.output == "json":
		return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{"name": g.name, "bearer_token": secret, "line": line})
	case g.add != "":
		_, err := fmt.Fprintln(cmd.OutOrStdout(), secret)
		return err
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "The bearer token of %s, shown this once:\n\n  %s\n\nIts line for FENCELOCK_ACCESS_FILE, before the last line, end:\n\n  %s\n\nCallers send it as Authorization: Bearer flk_…\n", g.name, secret, line)
	return err
}

// line is the line of the file. Whoever reads it checks what it says.
func (g *grant) line(secret string) string {
	parts := []string{g.name, fmt.Sprintf("token=sha256:%x", sha256.Sum256([]byte(secret)))}
	for i, prefixes := range [][]string{g.none, g.read, g.acquire, g.admin} {
		for _, prefix := range prefixes {
			parts = append(parts, []string{"none", "read", "acquire", "admin"}[i]+"="+encodePrefix(prefix))
		}
	}
	for _, limit := range [][2]string{{"requests", g.requests}, {"waiters", g.waiters}, {"held", g.held}} {
		if limit[1] != "" {
			parts = append(parts, limit[0]+"="+limit[1])
		}
	}
	return strings.Join(parts, " ")
}

// encodePrefix writes a prefix without spaces; * stays itself.
func encodePrefix(prefix string) string {
	if prefix == "*" {
		return prefix
	}
	return strings.ReplaceAll(url.PathEscape(prefix), "%2F", "/")
}

// addLine adds a line to a file that stays valid with it, or makes the file.
func addLine(path, name, line string) error {
	mode := os.FileMode(0o600)
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	text, err := access.Append(string(before), line)
	if err != nil {
		return fmt.Errorf("%s is unchanged: with the new line of %s it would not be a valid access file (a name has one line; add token= to it by hand): %w", path, name, err)
	}
	// A reader sees the file before or after, and nothing between.
	temporary := path + ".new"
	if err := os.WriteFile(temporary, []byte(text), mode); err != nil { //nolint:gosec // the operator names the file
		return err
	}
	return os.Rename(temporary, path)
}
