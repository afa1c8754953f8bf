// Package java_test runs the tests of the Java client.
package java_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/clients/faults"
	"github.com/fencelock/fencelock/internal/testenv"
)

var runFor = flag.Duration("for", 25*time.Second, "how long TestSoakFaults takes")

// libraries are what the client needs (jackson-core alone), and what its tests need besides, each with its Debian package.
var libraries = map[string]string{
	"jackson-core": "libjackson2-core-java",

	"junit-jupiter-api": "junit5", "junit-jupiter-engine": "junit5", "junit-platform-commons": "junit5", "junit-platform-engine": "junit5", "junit-platform-launcher": "junit5",
	"junit-platform-console": "junit5", "junit-platform-reporting": "junit5", "opentest4j": "libopentest4j-java", "opentest4j-reporting-events": "libopentest4j-reporting-java",
	"opentest4j-reporting-schema": "libopentest4j-reporting-java", "picocli": "libpicocli-java", "apiguardian-api": "libapiguardian-java",

	"postgresql": "libpostgresql-jdbc-java", "mariadb-java-client": "libmariadb-java",

	"spring3-core": "libspring-core-java", "spring3-beans": "libspring-beans-java", "spring3-aop": "libspring-aop-java", "spring3-transaction": "libspring-transaction-java",
	"spring3-jdbc": "libspring-jdbc-java", "commons-logging": "libcommons-logging-java",
}

// The client's own tests: against a service in their process, a real one, and the guards in Postgres and MariaDB,
// also in transactions of Spring; and tests as an application writes them, with the extension of JUnit. The Java of README.md runs as it is there.
func TestJava(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	classPath := compiled(t, dir)
	env := []string{"FENCELOCK_URL=http://" + faults.Start(t).Address(), "DATABASE_URL=" + faults.Accounts(t), "MARIADB_URL=" + faults.MariaAccounts(t)}
	t.Run("unit", func(t *testing.T) {
		args := []string{"-XX:TieredStopAtLevel=1", "-Dfencelock.program=" + testenv.Program(t), "-cp", classPath, "org.junit.platform.console.ConsoleLauncher", "--disable-banner", "--disable-ansi-colors", "--details=tree", "--fail-if-no-tests"}
		t.Log(run(t, env, "java", append(args, "--select-package=io.github.fencelock")...))
	})
	t.Run("readme", func(t *testing.T) {
		file := filepath.Join(dir, "ReadmeProgram.java")
		if err := os.WriteFile(file, []byte(readme(t)), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, nil, "javac", "-cp", classPath, "-d", filepath.Join(dir, "tests"), file)
		if said := run(t, env, "java", "-XX:TieredStopAtLevel=1", "-cp", classPath, "io.github.fencelock.ReadmeProgram"); strings.TrimSpace(said) != "10" {
			t.Errorf("it printed %q, want 10", said)
		}
	})
}

// Maven makes of pom.xml what Central asks for, without a network: from what Debian has of its plugins. Its jackson-core says no
// module's name, as that of Central does.
func TestSoakMaven(t *testing.T) {
	testenv.Java(t, libraries)
	maven, dir := testenv.Maven(t), t.TempDir()
	repository, module := filepath.Join(dir, "repository"), filepath.Join(dir, "module")
	if err := os.WriteFile(module, []byte("Automatic-Module-Name: com.fasterxml.jackson.core\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "cp", "-r", ".", filepath.Join(dir, "source"))
	run(t, nil, "cp", "-rsL", testenv.MavenRepository, repository)
	jars, err := filepath.Glob(repository + "/com/fasterxml/jackson/core/jackson-core/2.[0-9]*/*.jar")
	if err != nil || len(jars) != 1 {
		t.Fatalf("%q (%v), want one version", jars, err)
	}
	run(t, nil, "cp", "--remove-destination", "/usr/share/java/jackson-core.jar", jars[0])
	run(t, nil, "jar", "--update", "--file", jars[0], "--manifest", module)
	version := filepath.Base(filepath.Dir(jars[0]))
	run(t, nil, maven, "-f", filepath.Join(dir, "source"), "-o", "-q", "-B", "-Dmaven.repo.local="+repository, "-Djackson.version="+version, "-P", "release", "package")
	for _, name := range []string{"fencelock-client-0.1.0.jar", "fencelock-client-0.1.0-sources.jar", "fencelock-client-0.1.0-javadoc.jar"} {
		if _, err := os.Stat(filepath.Join(dir, "source", "target", name)); err != nil {
			t.Error(err)
		}
	}
	modules := filepath.Join(dir, "source", "target", "fencelock-client-0.1.0.jar") + ":" + jars[0]
	if said := run(t, nil, "java", "-p", modules, "--describe-module", "io.github.fencelock"); !strings.Contains(said, "exports io.github.fencelock") {
		t.Error(said)
	}
}

// A pair, and a withLock, take at most 1.3 times as long as a pair of a bare loop over java.net.http, in one run.
func TestSoakSpeed(t *testing.T) {
	testenv.NeedsServer(t)
	faults.Speed(t, 1.3, "java", "-cp", compiled(t, t.TempDir()), "io.github.fencelock.Speed")
}

// The client under faults of everything, see clients/faults.
func TestSoakFaults(t *testing.T) {
	worker := []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", compiled(t, t.TempDir()), "io.github.fencelock.Faults"}
	faults.Run(t, *runFor, [][]string{worker, worker, worker})
}

// readme is a program of the Java of README.md.
func readme(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var program strings.Builder
	program.WriteString("package io.github.fencelock;\nimport java.time.Duration;\nimport java.util.List;\nclass ReadmeProgram extends Readme {\npublic static void main(String[] args) throws Exception {\n")
	program.WriteString("javax.sql.DataSource dataSource = Databases.of(\"DATABASE_URL\");\n")
	for _, block := range strings.Split(string(page), "```java\n")[1:] {
		code, _, _ := strings.Cut(block, "```")
		program.WriteString(code)
	}
	program.WriteString("System.out.println(select(dataSource.getConnection(), \"SELECT balance FROM accounts WHERE id = 1\"));\nclient.close();\n}\n}\n")
	return strings.ReplaceAll(program.String(), `"http://127.0.0.1:8080"`, `System.getenv("FENCELOCK_URL")`)
}

// compiled compiles the client, the extension of JUnit and all tests into a folder. It is the class path of all.
func compiled(t *testing.T, dir string) (classPath string) {
	t.Helper()
	classPath = strings.Join([]string{filepath.Join(dir, "tests"), filepath.Join(dir, "classes"), testenv.Java(t, libraries)}, ":")
	run(t, nil, "./build.sh", dir)
	tests := strings.Fields(run(t, nil, "find", "junit/src/main/java", "src/test/java", "-name", "*.java"))
	run(t, nil, "javac", append([]string{"-Xlint:all,-serial,-path", "-Werror", "-cp", classPath, "-d", filepath.Join(dir, "tests")}, tests...)...)
	return classPath
}

// run runs a command, and returns what it wrote to its standard output.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, stderr.String())
	}
	return string(out)
}
