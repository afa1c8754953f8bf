package testenv

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Nginx is an nginx that belongs to one test, which may freeze, end and restart it.
type Nginx struct{ webProxy }

// StartNginx starts an nginx. http is the content of its http block, in which LISTEN is replaced by the
// address on which nginx listens. StartNginx uses an installed nginx or, on Debian as root, installs one.
// Without nginx the test fails, and the message says what to do. Only -short skips the test.
func StartNginx(t testing.TB, http string) *Nginx {
	t.Helper()
	return &Nginx{startWebProxy(t, webProgram{
		name: "nginx", pkg: "nginx-light", file: "nginx.conf",
		args:   func(dir string) []string { return []string{"-p", dir, "-c", "nginx.conf", "-e", "stderr"} },
		config: func(dir string) string { return nginxFile(dir, http) },
		taken:  "Address already in use",
	})}
}

// nginxFile returns a configuration that keeps all files in the folder and uses a single process, because a
// killed master would leave its workers running.
func nginxFile(dir, http string) string {
	var text strings.Builder
	text.WriteString("daemon off;\nmaster_process off;\nerror_log stderr notice;\npid nginx.pid;\nevents {}\nhttp {\naccess_log access.log;\n")
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&text, "%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
	}
	return text.String() + http + "\n}\n"
}
