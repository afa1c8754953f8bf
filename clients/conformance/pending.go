package conformance

import "strings"

// pending lists the rows that are not played with a language's client yet, with the reason. Remove a
// line to have its row played and judged; Client.Pending plays all of them. The table shows the rows
// that are still pending. A release has no pending rows.
//
// The key is the first word of a client's name, as for -only.
var pending = map[string]map[string]string{
	"go":         pendingGo,
	"python":     pendingPython,
	"typescript": pendingTypeScript,
	"java":       pendingJava,
}

// pending returns why the scenario is not played with this client; "" if it is played.
func (c Client) pending(scenario string) string {
	if c.Pending {
		return ""
	}
	first, _, _ := strings.Cut(c.Name, " ")
	return pending[strings.TrimSuffix(first, ",")][scenario]
}

var pendingGo = map[string]string{}

var pendingPython = map[string]string{}

var pendingTypeScript = map[string]string{}

var pendingJava = map[string]string{}
