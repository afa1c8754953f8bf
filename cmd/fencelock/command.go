package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
)

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
		return usageError{errors.New("this needs a confirmation, and stdin is not a terminal: add --yes")}
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Type %q to continue: ", word)
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // no answer is no
	if strings.TrimSpace(answer) != word {
		return errors.New("nothing was done")
	}
	return nil
}

// printJSON writes JSON in which a terminal finds nothing to obey.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(screen.JSON(b.Bytes()))
	return err
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
