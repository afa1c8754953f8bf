package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// noArgs, exactArgs and maxArgs are cobra's as usage errors.
func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usageError{err}
	}
	return nil
}

func exactArgs(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%d arguments: use %s %s", len(args), cmd.CommandPath(), names)}
		}
		return nil
	}
}

func maxArgs(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usageError{fmt.Errorf("%d arguments: use %s [%s]", len(args), cmd.CommandPath(), names)}
		}
		return nil
	}
}

// noFiles keeps a shell from offering file names for flags.
func noFiles(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions) // the flag is there
	}
}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "table or json")
	complete := cobra.FixedCompletions([]cobra.Completion{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("output", complete) // the flag is there
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *output != "table" && *output != "json" {
			return usageError{fmt.Errorf("-o %s: must be table or json", *output)}
		}
		return nil
	}
}

// checkMillis refuses a duration that the service cannot take. 0 leaves it to the service.
func checkMillis(flag string, d time.Duration) error {
	if d < 0 || d%time.Millisecond != 0 {
		return usageError{fmt.Errorf("--%s %s: must be whole milliseconds, and not negative", flag, d)}
	}
	return nil
}

// confirm asks whoever sits at the terminal to type a word.
func confirm(cmd *cobra.Command, word string) error {
	if !isTerminal(cmd.InOrStdin()) {
		return usageError{errors.New("stdin is no terminal to confirm at: use --yes")}
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Type %q to continue: ", word)
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // no answer is no
	if strings.TrimSpace(answer) != word {
		return errors.New("nothing was done")
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// msInWords is a time in milliseconds, from a second on in whole seconds.
func msInWords(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Second {
		d = d.Truncate(time.Second)
	}
	return d.String()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
