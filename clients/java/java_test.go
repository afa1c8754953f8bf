// Package java_test runs the tests of the Java client.
package java_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/clients/faults"
	"github.com/fencelock/fencelock/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var runFor = flag.Duration("for", 25*time.Second, "how long TestSoakFaults takes")

// libraries are the jar that the client needs (jackson-core), and those that only its tests need, each with its Debian package.
var libraries = map[string]string{
	"jackson-core": "libjackson2-core-java",

	"junit-jupiter-api": "junit5", "junit-jupiter-engine": "junit5", "junit-platform-commons": "junit5", "junit-platform-engine": "junit5", "junit-platform-launcher": "junit5",
	"junit-platform-console": "junit5", "junit-platform-reporting": "junit5", "opentest4j": "libopentest4j-java", "opentest4j-reporting-events": "libopentest4j-reporting-java",
	"opentest4j-reporting-schema": "libopentest4j-reporting-java", "picocli": "libpicocli-java", "apiguardian-api": "libapiguardian-java",

	"postgresql": "libpostgresql-jdbc-java", "mariadb-java-client": "libmariadb-java",

	"spring3-core": "libspring-core-java", "spring3-beans": "libspring-beans-java", "spring3-aop": "libspring-aop-java", "spring3-transaction": "libspring-transaction-java",
	"spring3-jdbc": "libspring-jdbc-java", "commons-logging": "libcommons-logging-java",
}

// The client's own tests: against a service in their process (with interruptions, callbacks that throw, and options that no server accepts), against a
// real service, and against the guards in Postgres and MariaDB, also in transactions of Spring. Others are tests as an application writes them, with the
// extension of JUnit. The Java code of README.md runs as it is written there.
func TestJava(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	classPath := compiled(t, dir)
	env := []string{"FENCELOCK_URL=" + testenv.StartFencelock(t).URL(), "DATABASE_URL=" + faults.Accounts(t), "MARIADB_URL=" + faults.MariaAccounts(t)}
	t.Run("unit", func(t *testing.T) { junit(t, classPath, env, "--exclude-tag=long") })
	t.Run("long", func(t *testing.T) {
		testenv.Long(t, "a pause at one packet of many after which the rows stay locked")
		junit(t, classPath, env, "--include-tag=long")
	})
	t.Run("first call", func(t *testing.T) {
		testFirstCall(t, run(t, nil, "java", "-XX:TieredStopAtLevel=1", "-cp", classPath, "io.github.fencelock.FirstCall", strings.TrimPrefix(env[0], "FENCELOCK_URL=")))
	})
	t.Run("the same bytes in another folder", func(t *testing.T) {
		testenv.Long(t, "a jar that differs from build to build")
		elsewhere := t.TempDir()
		run(t, nil, "cp", "-r", "src", "pom.xml", "build.sh", elsewhere)
		run(t, nil, filepath.Join(elsewhere, "build.sh"), filepath.Join(elsewhere, "out"))
		run(t, nil, "cmp", filepath.Join(testenv.JavaClient(t), "fencelock-client.jar"), filepath.Join(elsewhere, "out", "fencelock-client.jar"))
	})
	t.Run("javadoc", func(t *testing.T) {
		testenv.Long(t, "a public method without the documentation of a parameter")
		sources := strings.Fields(run(t, nil, "find", "src/main/java/io", "junit/src/main/java", "-name", "*.java"))
		run(t, nil, "javadoc", append([]string{"-Xdoclint:all", "-Werror", "-quiet", "-d", filepath.Join(dir, "javadoc"), "-cp", classPath}, sources...)...)
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

// junit runs the test classes of this package. It runs the classes in parallel, because they mostly wait.
func junit(t *testing.T, classPath string, env []string, selection string) {
	t.Helper()
	args := []string{"-XX:TieredStopAtLevel=1", "-Dfencelock.program=" + testenv.Program(t), "-cp", classPath, "org.junit.platform.console.ConsoleLauncher", "--disable-banner", "--disable-ansi-colors", "--details=tree", "--fail-if-no-tests"}
	for _, parallel := range []string{"enabled=true", "mode.classes.default=concurrent", "config.strategy=fixed", "config.fixed.parallelism=8"} {
		args = append(args, "--config=junit.jupiter.execution.parallel."+parallel)
	}
	t.Log(run(t, env, "java", append(args, "--select-package=io.github.fencelock", selection)...))
}

// The first call of a process takes as long as the second, because the builder of the client has loaded the 500 classes that a
// call needs. A busy machine takes two seconds for that. The time depends on the machine, so the test counts the classes.
func testFirstCall(t *testing.T, said string) {
	t.Helper()
	classes := map[string]int{}
	for line := range strings.Lines(said) {
		var call string
		var loaded, milliseconds int
		if _, err := fmt.Sscan(line, &call, &loaded, &milliseconds); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		classes[call] = loaded
	}
	if len(classes) != 2 || classes["first"] > 50 {
		t.Errorf("classes that the first and the second call loaded: %v, want 50 at most", classes)
	}
	t.Log(said)
}

// From pom.xml, Maven builds all files that Maven Central requires, without a network, with the plugins that Debian has. A build in another folder
// makes the same bytes.
func TestSoakMaven(t *testing.T) {
	testenv.Soak(t, "that Maven cannot build the package, or not twice the same")
	testenv.Java(t, libraries)
	var builds [2]map[string]string
	for i, name := range []string{"one", "another"} {
		builds[i] = mavenBuild(t, filepath.Join(t.TempDir(), name))
	}
	for _, artifact := range []string{"fencelock-client", "fencelock-junit"} {
		for _, kind := range []string{"", "-sources", "-javadoc"} {
			name := artifact + "-0.1.0" + kind + ".jar"
			if one, another := builds[0][name], builds[1][name]; one == "" || one != another {
				t.Errorf("%s: sums %q and %q, want one", name, one, another)
			}
		}
	}
}

// mavenBuild builds both packages below a folder, and returns the SHA-256 of each jar.
func mavenBuild(t *testing.T, dir string) map[string]string {
	t.Helper()
	maven, source := testenv.Maven(t), filepath.Join(dir, "source")
	run(t, nil, "mkdir", dir)
	run(t, nil, "cp", "-r", ".", source)
	repository, jar := mavenRepository(t, dir)
	arguments := []string{"-o", "-q", "-B", "-Dmaven.repo.local=" + repository, "-Djackson.version=" + filepath.Base(filepath.Dir(jar)), "-P", "release"}
	run(t, nil, maven, append(arguments, "-f", source, "install")...)
	run(t, nil, maven, append(arguments, "-f", filepath.Join(source, "junit"), "-Djunit.version="+mavenVersion(t, repository, "org/junit/jupiter/junit-jupiter-api"), "package")...)
	modules := filepath.Join(source, "target", "fencelock-client-0.1.0.jar") + ":" + jar
	if said := run(t, nil, "java", "-p", modules, "--describe-module", "io.github.fencelock"); !strings.Contains(said, "exports io.github.fencelock") {
		t.Error(said)
	}
	sums := map[string]string{}
	for line := range strings.Lines(run(t, nil, "find", source, "-name", "*.jar", "-exec", "sha256sum", "{}", "+")) {
		sum, file, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[filepath.Base(file)] = sum
	}
	return sums
}

// mavenRepository makes a copy of Debian's Maven repository, with a jackson-core that names its module, as Maven Central's does.
func mavenRepository(t *testing.T, dir string) (repository, jackson string) {
	t.Helper()
	repository, module := filepath.Join(dir, "repository"), filepath.Join(dir, "module")
	if err := os.WriteFile(module, []byte("Automatic-Module-Name: com.fasterxml.jackson.core\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "cp", "-rsL", testenv.MavenRepository, repository)
	const artifact = "com/fasterxml/jackson/core/jackson-core"
	version := mavenVersion(t, repository, artifact)
	jackson = filepath.Join(repository, artifact, version, "jackson-core-"+version+".jar")
	run(t, nil, "cp", "--remove-destination", "/usr/share/java/jackson-core.jar", jackson)
	run(t, nil, "jar", "--update", "--file", jackson, "--manifest", module)
	return repository, jackson
}

// mavenVersion returns the only version of an artifact in a repository.
func mavenVersion(t *testing.T, repository, artifact string) string {
	t.Helper()
	jars, err := filepath.Glob(filepath.Join(repository, artifact, "[0-9]*.[0-9]*", "*.jar"))
	if err != nil || len(jars) != 1 {
		t.Fatalf("%s: %q (%v), want one version", artifact, jars, err)
	}
	return filepath.Base(filepath.Dir(jars[0]))
}

// An acquire with its release, and a withLock, take at most 1.3 times as long as in a bare loop over java.net.http, measured in the same run.
func TestSoakSpeed(t *testing.T) {
	testenv.Soak(t, "a Java client that became slow")
	testenv.NeedsServer(t)
	faults.Speed(t, 1.3, "java", "-cp", compiled(t, t.TempDir()), "io.github.fencelock.Speed")
}

// For a minute a thread is interrupted at random instants, and notices each interruption.
func TestSoakInterrupts(t *testing.T) {
	testenv.Soak(t, "an interruption at a random instant that gets lost")
	classPath := compiled(t, t.TempDir())
	run(t, nil, "java", "-XX:TieredStopAtLevel=1", "-Dfencelock.interrupts.seconds=60", "-cp", classPath, "org.junit.platform.console.ConsoleLauncher", "--disable-banner", "--disable-ansi-colors",
		"--fail-if-no-tests", "--select-method=io.github.fencelock.ThreadsTest#noInterruptionGetsLost")
}

// The client while servers and connections fail, see clients/faults.
func TestSoakFaults(t *testing.T) {
	testenv.Soak(t, "a Java client that works late, or leaks, under faults")
	worker := []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", compiled(t, t.TempDir()), "io.github.fencelock.Faults"}
	faults.Run(t, *runFor, [][]string{worker, worker, worker})
}

// readme returns a program made of the Java code in README.md.
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

// compiled compiles the extension of JUnit and all tests into a folder. It returns a class path with these and the client.
func compiled(t *testing.T, dir string) (classPath string) {
	t.Helper()
	classPath = strings.Join([]string{filepath.Join(dir, "tests"), filepath.Join(testenv.JavaClient(t), "classes"), testenv.Java(t, libraries)}, ":")
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
