// Package version says which version of the program runs.
package version

import "runtime/debug"

// What a release's build says of itself, by -ldflags -X: a workspace has no version, and Go
// puts no commit into what it builds there. Empty otherwise.
var releaseVersion, releaseCommit, releaseDate string

// String is the release's or the module's, or the commit of a build from a checkout.
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

// Commit is what was built and when it was committed (RFC 3339, UTC), or empty: a module
// that go install fetched has a version, and no commit.
func Commit() (id, date string) {
	if releaseCommit != "" {
		return releaseCommit, releaseDate
	}
	return vcs("revision"), vcs("time")
}

// vcs is what the build knows of its commit: its revision or time, or "".
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
