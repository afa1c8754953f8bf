// Package version returns the version of the running program.
package version

import "runtime/debug"

// A release sets these variables with -ldflags -X, because Go records the commit only in a clone (not in
// a Git worktree), and the version only from a tag. They are empty in other builds.
var releaseVersion, releaseCommit, releaseDate string

// String returns the version of the release or module, or the commit of a build from a checkout.
func String() string {
	if releaseVersion != "" {
		return releaseVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if id, _ := Commit(); id != "" {
		return id[:min(12, len(id))]
	}
	return "devel"
}

// Commit returns the commit and its date (RFC 3339, UTC). Both are empty for a module that go install
// fetched, which has a version but no commit.
func Commit() (id, date string) {
	if releaseCommit != "" {
		return releaseCommit, releaseDate
	}
	return vcs("revision"), vcs("time")
}

// vcs returns a value that the build recorded about its commit: its revision or time; "" if it recorded none.
func vcs(what string) string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs."+what {
			return setting.Value
		}
	}
	return ""
}
