package testenv

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	// jars is the folder in which Debian installs the libraries of Java.
	jars = "/usr/share/java"
	// MavenRepository is the folder in which Debian installs the plug-ins of Maven, in the form of a local
	// repository.
	MavenRepository = "/usr/share/maven-repo"
)

// Maven returns the path of Maven. It makes sure that MavenRepository has everything that Maven needs to make
// a library from a pom.xml without a network. If that cannot be installed, the test is skipped with a
// message; it fails if CI is set.
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

// allThere returns a function that reports whether all the files exist.
func allThere(files []string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(files, func(file string) bool {
			_, err := os.Stat(file)
			return err != nil
		})
	}
}

// Java returns a class path of the named libraries ("postgresql" for postgresql.jar), each given with its
// Debian package, and makes sure that a Java Development Kit is in PATH. It installs what is missing. If that
// is not possible, the test is skipped with a message; it fails if CI is set.
func Java(t testing.TB, libraries map[string]string) (classPath string) {
	t.Helper()
	NeedsServer(t) // compilers and virtual machines take longer than make check may take
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

// JavaClient returns the folder with the compiled Java client, fencelock-client.jar, and the same as classes. It is
// compiled once for all packages, and again after its sources have changed.
func JavaClient(t testing.TB) (dir string) {
	t.Helper()
	Java(t, map[string]string{"jackson-core": "libjackson2-core-java"})
	dir, err := buildAt("clients/java", func(root, dir string) error {
		source, mark := filepath.Join(root, "clients", "java"), filepath.Join(dir, "sources")
		sum, err := sumOf(filepath.Join(source, "build.sh"), filepath.Join(source, "pom.xml"), filepath.Join(source, "src", "main"))
		if err != nil {
			return err
		}
		if built, err := os.ReadFile(mark); err == nil && string(built) == sum {
			return nil
		}
		if err := os.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if out, err := exec.Command(filepath.Join(source, "build.sh"), dir).CombinedOutput(); err != nil {
			return fmt.Errorf("clients/java/build.sh: %w: %s", err, out)
		}
		return os.WriteFile(mark, []byte(sum), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// sumOf returns a sum over the names and contents of files, and of all files below folders.
func sumOf(paths ...string) (string, error) {
	sum := sha256.New()
	for _, path := range paths {
		err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(name)
			_, _ = fmt.Fprintf(sum, "%s %d\n%s", name, len(content), content)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}
