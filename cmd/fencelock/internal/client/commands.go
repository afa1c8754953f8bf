// Package client has the commands that ask a running server, over HTTP: they take locks, and show what the server knows.
package client

import "github.com/spf13/cobra"

// LockCommands take, extend and end leases.
func LockCommands() []*cobra.Command {
	return []*cobra.Command{runCommand(), electCommand(), acquireCommand(), extendCommand(), releaseCommand(), breakCommand()}
}

// StateCommands show what a server knows.
func StateCommands() []*cobra.Command {
	return []*cobra.Command{listCommand(), getCommand(), eventsCommand(), historyCommand(), whoAmICommand(), nodesCommand(), healthcheckCommand()}
}
