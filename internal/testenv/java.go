package testenv

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	// jars is where Debian has the libraries of Java.
	jars = "/usr/share/java"
	// MavenRepository is where it has what Maven needs, in the form of a local repository.
	MavenRepository = "/usr/share/maven-repo"
)

// Maven is the path of Maven, beside a repository of what it needs to make a library from a pom.xml without a network. If it
// cannot be installed, the test is skipped and says so; it fails if CI is set.
func Maven(t testing.TB) (path string) {
	t.Helper()
	packages := []string{"libmaven-install-plugin-java", "libsurefire-java"}
	var plugins []string
	for _, name := range []string{"compiler", "resources", "jar", "source", "javadoc"} {
		packages = append(packages, "libmaven-"+name+"-plugin-java")
		plugins = append(plugins, MavenRepository+"/org/apache/maven/plugins/maven-"+name+"-plugin")
	}
	path = Installed(t, "mvn", "maven")
	if there := allThere(plugins); !there() {
		if err := aptInstall(packages, there); err != nil {
			notRun(t, fmt.Sprintf("Maven has no plugins here (Debian: apt-get install %s): %v", strings.Join(packages, " "), err))
		}
	}
	return path
}

// allThere says whether files exist.
func allThere(files []string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(files, func(file string) bool {
			_, err := os.Stat(file)
			return err != nil
		})
	}
}

// Java is a class path of the named libraries ("postgresql" for postgresql.jar), each with its Debian package, beside a Java
// Development Kit in PATH. Both are installed if that is possible. If it is not, the test is skipped and says so; it
// fails if CI is set.
func Java(t testing.TB, libraries map[string]string) (classPath string) {
	t.Helper()
	NeedsServer(t) // compilers and virtual machines take longer than make check has
	Installed(t, "javac", "default-jdk-headless")
	var files []string
	for _, name := range slices.Sorted(maps.Keys(libraries)) {
		files = append(files, filepath.Join(jars, name+".jar"))
	}
	if there := allThere(files); !there() {
		packages := slices.Sorted(maps.Values(libraries))
		if err := aptInstall(slices.Compact(packages), there); err != nil {
			notRun(t, fmt.Sprintf("there is no %s here (Debian: apt-get install %s): %v", strings.Join(files, ", "), strings.Join(packages, " "), err))
		}
	}
	return strings.Join(files, ":")
}
