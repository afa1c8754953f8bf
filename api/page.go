package api

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/fencelock/fencelock/api/console"
)

// consoleRoutes serve the console's files, which contain no data. The page gets its data from the API, with
// the rights of its user.
func (s *Server) consoleRoutes() {
	files := map[string]console.File{}
	if s.Console {
		files = console.Files()
	}
	serve := func(name string, w *exchange, r *http.Request) error {
		file, ok := files[name]
		if !ok {
			return errUnknownPath
		}
		return writeFile(w, r, file)
	}
	s.get("/", s.root)
	s.get("/console/", func(w *exchange, _ *http.Request) error { return redirect(w, "../console") })
	s.get("/console", func(w *exchange, r *http.Request) error { return serve(console.Page, w, r) })
	s.get("/console/{file}", func(w *exchange, r *http.Request) error { return serve(chi.URLParam(r, "file"), w, r) })
}

// root is GET /: it redirects a browser to the console, and a program to the contract.
func (s *Server) root(w *exchange, r *http.Request) error {
	if s.Console && strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/html") {
		return redirect(w, "console")
	}
	return redirect(w, "openapi.yaml")
}

// redirect sends a path relative to the request's path, because a proxy may serve the API below a prefix.
func redirect(w *exchange, to string) error {
	w.Header().Set("Location", to)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusFound)
	return nil
}

// writeFile sends a file that a browser may cache and revalidate.
func writeFile(w *exchange, r *http.Request, file console.File) error {
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
