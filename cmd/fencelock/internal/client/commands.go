// Package client has the commands that call a running server over HTTP. They take locks, and show the server's
// state.
package client

import "github.com/spf13/cobra"

// LockCommands returns the commands that take, extend and end leases.
func LockCommands() []*cobra.Command {
	return []*cobra.Command{runCommand(), electCommand(), acquireCommand(), extendCommand(), releaseCommand(), breakCommand()}
}

// StateCommands returns the commands that show a server's state.
func StateCommands() []*cobra.Command {
	return []*cobra.Command{listCommand(), getCommand(), whyCommand(), eventsCommand(), historyCommand(), whoAmICommand(), nodesCommand(), healthcheckCommand()}
}
