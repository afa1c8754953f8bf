package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagError describes the error of a flag in words.
func FlagError(cmd *cobra.Command, err error) error {
	unknown, isUnknown := errors.AsType[*pflag.NotExistError](err)
	missing, isMissing := errors.AsType[*pflag.ValueRequiredError](err)
	invalid, isInvalid := errors.AsType[*pflag.InvalidValueError](err)
	switch {
	case isUnknown:
		name := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			name = "-" + unknown.GetSpecifiedName()
		}
		err = fmt.Errorf("%s has no flag %s: %s --help lists them", cmd.CommandPath(), name, cmd.CommandPath())
	case isMissing:
		err = fmt.Errorf("--%s needs a value: %s", missing.GetFlag().Name, missing.GetFlag().Usage)
	case isInvalid:
		err = fmt.Errorf("--%s %s: %s", invalid.GetFlag().Name, invalid.GetValue(), wanted(invalid.GetFlag().Value.Type(), invalid.GetValue()))
	}
	return UsageError{Err: err}
}

// wanted describes the values that a flag accepts.
func wanted(kind, value string) string {
	switch {
	case kind == "duration" && value != "" && strings.Trim(value, "0123456789.") == "":
		return fmt.Sprintf("a duration needs a unit: write %ss for seconds, %sm for minutes, %sms for milliseconds", value, value, value)
	case kind == "duration":
		return "must be a duration such as 500ms, 30s, 5m or 1h30m"
	case kind == "int":
		return "must be a whole number"
	case kind == "bool":
		return "must be true or false, or have no value"
	}
	return "must be a " + kind
}

// NoArgs refuses arguments, and names of commands that do not exist.
func NoArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasSubCommands():
		return UsageError{Err: fmt.Errorf("%s takes no arguments, and got %q", cmd.CommandPath(), args[0])}
	}
	text := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), args[0])
	cmd.SuggestionsMinimumDistance = 2
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return UsageError{Err: fmt.Errorf("%s: did you mean %s?", text, strings.Join(similar, " or "))}
	}
	return UsageError{Err: fmt.Errorf("%s: %s --help lists them", text, cmd.CommandPath())}
}

// argumentsError says how a command is called.
func argumentsError(cmd *cobra.Command, args []string, names string) error {
	if len(args) == 0 {
		return UsageError{Err: fmt.Errorf("an argument is missing: use %s %s", cmd.CommandPath(), names)}
	}
	return UsageError{Err: fmt.Errorf("too many arguments (%d): use %s %s", len(args), cmd.CommandPath(), names)}
}

// ExactArgs accepts exactly n arguments. The error lists their names.
func ExactArgs(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return argumentsError(cmd, args, names)
		}
		return nil
	}
}

// MaxArgs accepts at most n arguments. The error lists their names.
func MaxArgs(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return argumentsError(cmd, args, "["+names+"]")
		}
		return nil
	}
}
