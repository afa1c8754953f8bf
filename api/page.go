package api

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/fencelock/fencelock/api/console"
)

// consoleRoutes serve the console's files, which hold no data: the page gets what it
// shows from the API, with the rights of its user.
func (s *Server) consoleRoutes() {
	files := map[string]console.File{}
	if s.Console {
		files = console.Files()
	}
	serve := func(name string, w http.ResponseWriter, r *http.Request) error {
		file, ok := files[name]
		if !ok {
			return errUnknownPath
		}
		return writeFile(w, r, file)
	}
	s.get("/", s.root)
	s.get("/console/", func(w http.ResponseWriter, _ *http.Request) error { return redirect(w, "../console") })
	s.get("/console", func(w http.ResponseWriter, r *http.Request) error { return serve(console.Page, w, r) })
	s.get("/console/{file}", func(w http.ResponseWriter, r *http.Request) error { return serve(chi.URLParam(r, "file"), w, r) })
}

// root is GET /: a browser gets to the console, and a program to the contract.
func (s *Server) root(w http.ResponseWriter, r *http.Request) error {
	if s.Console && strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/html") {
		return redirect(w, "console")
	}
	return redirect(w, "openapi.yaml")
}

// redirect sends the caller to a path relative to the request's, since a proxy may
// serve all of this below a prefix.
func redirect(w http.ResponseWriter, to string) error {
	w.Header().Set("Location", to)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusFound)
	return nil
}

// writeFile lets a browser keep the file, and ask whether it is still the same.
func writeFile(w http.ResponseWriter, r *http.Request, file console.File) error {
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", file.ETag)
	h.Set("Content-Security-Policy", console.Policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Embedder-Policy", "require-corp")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
	h.Set("Content-Type", file.Type)
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(file.Body))
	return nil
}
