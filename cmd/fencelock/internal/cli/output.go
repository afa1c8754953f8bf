package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/screen"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/supervise"
)

// OutputFlag adds -o, table or json, to a command.
func OutputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "table or json")
	complete := cobra.FixedCompletions([]cobra.Completion{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("output", complete) // the flag is there
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *output != "table" && *output != "json" {
			return UsageError{Err: fmt.Errorf("-o %s: must be table or json", *output)}
		}
		return nil
	}
}

// Confirm asks whoever sits at the terminal to type a word.
func Confirm(cmd *cobra.Command, word string) error {
	if !IsTerminal(cmd.InOrStdin()) {
		return UsageError{Err: errors.New("this needs a confirmation, and stdin is not a terminal: add --yes")}
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Type %q to continue: ", word)
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // no answer is no
	if strings.TrimSpace(answer) != word {
		return errors.New("nothing was done")
	}
	return nil
}

// PrintJSON writes JSON in which a terminal finds nothing to obey.
func PrintJSON(w io.Writer, v any) error {
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

// OrDash is the text, or a dash in place of an empty one.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// IsTerminal reports whether a person sees what is written to w, or types what
// is read from it.
func IsTerminal(w any) bool {
	file, ok := w.(*os.File)
	return ok && supervise.IsTerminal(file)
}
