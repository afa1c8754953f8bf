// Package console is the page at /console: HTML, CSS and JavaScript that are served unchanged, without a build
// step and without resources from other hosts. It uses the public API like any client, and shows only what the
// API returns.
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"path"
)

//go:embed static
var static embed.FS

// Page is the name of the page itself; it loads the other files.
const Page = "index.html"

// Policy is the Content-Security-Policy of every file. It permits only files of this server, and no inline
// script or style, no plug-ins, no frames, no forms.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; " +
	"manifest-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// File is a file of the console.
type File struct {
	Body []byte
	Type string // its media type
	ETag string // strong, quoted
}

// Files reads all files, by name. It panics if one is of an unknown kind, which a test would find.
func Files() map[string]File {
	types := map[string]string{
		".html": "text/html; charset=utf-8",
		".css":  "text/css; charset=utf-8",
		".js":   "text/javascript; charset=utf-8",
		".svg":  "image/svg+xml",
	}
	entries, err := fs.ReadDir(static, "static")
	if err != nil {
		panic("console: " + err.Error())
	}
	files := make(map[string]File, len(entries))
	for _, entry := range entries {
		name := entry.Name()
		body, err := static.ReadFile("static/" + name)
		kind, ok := types[path.Ext(name)]
		if err != nil || !ok {
			panic(fmt.Sprintf("console: %s cannot be served: %v", name, err))
		}
		sum := sha256.Sum256(body)
		files[name] = File{Body: body, Type: kind, ETag: `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
	}
	return files
}
