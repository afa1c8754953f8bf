package testenv

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Nginx is an nginx of a test's own, which it may freeze, end and restart.
type Nginx struct{ webProxy }

// StartNginx starts an nginx. http is what stands inside its http block, where LISTEN is
// replaced by the address that it listens on. It is one that is installed or, on Debian
// as root, one that it installs. Without one the test fails and says what to do; it is
// skipped only under -short.
func StartNginx(t testing.TB, http string) *Nginx {
	t.Helper()
	return &Nginx{startWebProxy(t, webProgram{
		name: "nginx", pkg: "nginx-light", file: "nginx.conf",
		args:   func(dir string) []string { return []string{"-p", dir, "-c", "nginx.conf", "-e", "stderr"} },
		config: func(dir string) string { return nginxFile(dir, http) },
		taken:  "Address already in use",
	})}
}

// nginxFile has everything in the folder, and one process: a killed master would leave
// its workers behind.
func nginxFile(dir, http string) string {
	var text strings.Builder
	text.WriteString("daemon off;\nmaster_process off;\nerror_log stderr notice;\npid nginx.pid;\nevents {}\nhttp {\naccess_log access.log;\n")
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&text, "%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
	}
	return text.String() + http + "\n}\n"
}
