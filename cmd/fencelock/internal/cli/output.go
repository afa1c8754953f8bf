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
	_ = cmd.RegisterFlagCompletionFunc("output", complete) // cannot fail: the flag exists
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *output != "table" && *output != "json" {
			return UsageError{Err: fmt.Errorf("-o %s: must be table or json", *output)}
		}
		return nil
	}
}

// Confirm prompts the user at the terminal to type a word.
func Confirm(cmd *cobra.Command, word string) error {
	if !IsTerminal(cmd.InOrStdin()) {
		return UsageError{Err: errors.New("this needs a confirmation, and stdin is not a terminal: add --yes")}
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "Type %q to continue: ", word)
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // without input the answer is no
	if strings.TrimSpace(answer) != word {
		return errors.New("nothing was done")
	}
	return nil
}

// PrintJSON writes JSON without characters that control a terminal.
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

// OrDash returns the text, or a dash if it is empty.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// IsTerminal reports whether w is a terminal, so that a person reads the output or types the input.
func IsTerminal(w any) bool {
	file, ok := w.(*os.File)
	return ok && supervise.IsTerminal(file)
}
