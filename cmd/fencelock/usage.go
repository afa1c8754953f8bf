package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/client"
)

// The groups of commands, in the order of the help.
const (
	groupLocks  = "locks"
	groupState  = "state"
	groupServer = "server"
	groupGuard  = "guard"
)

// grouped adds the commands to the root, under the heading of a group.
func grouped(root *cobra.Command, id, heading string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: heading})
	for _, cmd := range commands {
		cmd.GroupID = id
	}
	root.AddCommand(commands...)
}

// isConnection reports whether a flag names the server or the caller. The help describes these flags
// once, under the topic connection.
func isConnection(f *pflag.Flag) bool {
	return slices.Contains([]string{"url", "bearer-token-file", "ca-file", "client-cert-file", "client-key-file"}, f.Name)
}

// usage prints how a command is called.
func usage(cmd *cobra.Command) error {
	var b strings.Builder
	if cmd.Runnable() {
		line := cmd.UseLine()
		if cmd.HasAvailableSubCommands() {
			line = cmd.CommandPath() + " COMMAND"
		}
		section(&b, "Usage", "  "+line)
	}
	section(&b, "Examples", cmd.Example)
	for _, group := range cmd.Groups() {
		section(&b, group.Title, commandList(cmd, group.ID))
	}
	if cmd.HasAvailableSubCommands() {
		heading := "Commands"
		if len(cmd.Groups()) > 0 {
			heading = "Other commands"
		}
		section(&b, heading, commandList(cmd, ""))
	}
	var own, connection pflag.FlagSet
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if isConnection(f) {
			connection.AddFlag(f)
		} else {
			own.AddFlag(f)
		}
	})
	section(&b, "Flags", own.FlagUsages())
	if connection.HasFlags() {
		section(&b, "The server and the caller", "  --url and the other flags for these: fencelock help "+client.ConnectionTopic)
	}
	if cmd.HasAvailableSubCommands() {
		section(&b, "More", "  "+cmd.CommandPath()+" COMMAND --help")
	}
	_, err := io.WriteString(cmd.OutOrStderr(), b.String())
	return err
}

func section(b *strings.Builder, heading, text string) {
	if text = strings.TrimRight(text, "\n "); text == "" {
		return
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	fmt.Fprintf(b, "%s:\n%s\n", heading, text)
}

// commandList returns one line for each command of the group.
func commandList(cmd *cobra.Command, group string) string {
	var b strings.Builder
	for _, c := range cmd.Commands() {
		if (c.IsAvailableCommand() || c.Name() == "help" || c.Name() == client.ConnectionTopic) && c.GroupID == group {
			fmt.Fprintf(&b, "  %-*s %s\n", cmd.NamePadding(), c.Name(), c.Short)
		}
	}
	return b.String()
}
