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

// secretBytes is the number of random bytes in a bearer token. secretPrefix makes tokens easy to find in
// places where they do not belong.
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

// grant is the rights of a new name.
type grant struct {
	name                         string
	none, read, acquire, admin   []string
	requests, waiters, held, add string
	out, output                  string
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
servers read the file again. If the file does not exist, it is created. --out writes the secret to a
separate file, which must not exist; after an error neither file has changed.`,
		Example: `  fencelock token new --name worker --acquire orders/ --read '*'
  fencelock token new --name ops --admin '*' --append access.txt --out ops.token`,
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
	f.StringVar(&g.out, "out", "", "with --append: write the secret to this new file, mode 600, and print nothing")
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
	_, _ = rand.Read(random[:]) // it never fails
	secret := secretPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	line := g.line(secret)
	if _, err := access.Append("", line); err != nil {
		_, text, _ := strings.Cut(err.Error(), ": ") // "line 1: " is meaningless here
		return cli.UsageError{Err: errors.New(text)}
	}
	if g.out != "" && g.add == "" {
		return cli.UsageError{Err: errors.New("--out goes with --append: without it the line would be lost")}
	}
	if err := g.write(secret, line); err != nil {
		return err
	}
	switch {
	case g.out != "":
		return nil
	case g.output == "json":
		return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{"name": g.name, "bearer_token": secret, "line": line})
	case g.add != "":
		_, err := fmt.Fprintln(cmd.OutOrStdout(), secret)
		return err
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "The bearer token of %s, shown this once:\n\n  %s\n\nIts line for FENCELOCK_ACCESS_FILE, before the last line, end:\n\n  %s\n\nCallers send it as Authorization: Bearer flk_…\n", g.name, secret, line)
	return err
}

// write writes the requested files, both or none.
func (g *grant) write(secret, line string) (err error) {
	if g.add == "" {
		return nil
	}
	if g.out == "" {
		return addLine(g.add, g.name, line)
	}
	file, err := os.OpenFile(g.out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: it may be a token that is in use; name another file, or remove it first", g.out)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, secret)
	if err = errors.Join(err, file.Close()); err == nil {
		err = addLine(g.add, g.name, line)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(g.out))
	}
	return err
}

// line formats the line for the access file. Parsing the file checks the line's content.
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

// encodePrefix encodes the spaces of a prefix; * is not changed.
func encodePrefix(prefix string) string {
	if prefix == "*" {
		return prefix
	}
	return strings.ReplaceAll(url.PathEscape(prefix), "%2F", "/")
}

// addLine adds a line to a file if the result is valid. It creates the file if necessary.
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
	// Written under another name and then renamed, so that a reader sees either the old or the new content.
	temporary := path + ".new"
	if err := os.WriteFile(temporary, []byte(text), mode); err != nil { //nolint:gosec // the operator names the file
		return err
	}
	return os.Rename(temporary, path)
}
