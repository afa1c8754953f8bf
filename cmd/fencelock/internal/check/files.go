package check

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

// expiresSoon is how long before its expiry a certificate is reported.
const expiresSoon = 14 * 24 * time.Hour

// The permission bits that are checked.
const (
	othersRead  = 0o004
	othersWrite = 0o002
)

// files checks the permissions of files that contain secrets or give rights.
func (r *Report) files(cfg config.Config) {
	secrets := [][2]string{
		{"FENCELOCK_TLS_KEY_FILE", cfg.TLSKeyFile}, {"FENCELOCK_PROOF_KEY_FILE", cfg.ProofKeyFile}, {"FENCELOCK_LEASE_KEY_FILE", cfg.LeaseKeyFile},
		{"FENCELOCK_REDIS_ADDRS_FILE", cfg.RedisAddrsFile}, {"FENCELOCK_DATABASE_URL_FILE", cfg.DatabaseURLFile},
		{"FENCELOCK_STORE_FILE", cfg.StoreFile}, {"FENCELOCK_DATA", cfg.Data},
	}
	for _, file := range secrets {
		r.permissions(file[0], file[1], othersRead|othersWrite)
	}
	for _, file := range [][2]string{{"FENCELOCK_ACCESS_FILE", cfg.AccessFile}, {"FENCELOCK_TLS_CERT_FILE", cfg.TLSCertFile}, {"FENCELOCK_TLS_CLIENT_CA_FILE", cfg.TLSClientCAFile}} {
		r.permissions(file[0], file[1], othersWrite)
	}
	if cfg.Data != "" {
		r.folder(cfg.Data)
	}
}

// permissions reports forbidden permissions that other users have on a file. It ignores a file that it
// cannot read, because the file's reader reports that.
func (r *Report) permissions(variable, path string, forbidden os.FileMode) {
	info, err := os.Stat(path)
	if path == "" || err != nil || filepath.Separator == '\\' {
		return
	}
	r.lookedf("%s", variable)
	switch bad := info.Mode().Perm() & forbidden; {
	case bad&othersWrite != 0:
		r.Add(Wrong, variable, fmt.Sprintf("every user of this machine may change %s (mode %04o)", path, info.Mode().Perm()), "chmod o-rwx "+path)
	case bad&othersRead != 0:
		r.Add(Wrong, variable, fmt.Sprintf("every user of this machine may read %s (mode %04o), which holds a secret", path, info.Mode().Perm()), "chmod o-rwx "+path)
	}
}

// folder reports whether the embedded file's folder exists.
func (r *Report) folder(data string) {
	dir := filepath.Dir(data)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		r.Add(Wrong, "FENCELOCK_DATA", "the folder "+dir+" does not exist", "create it, readable only by the user that runs the server")
	}
}

// certificates checks the dates and names of the server's certificates.
func (r *Report) certificates(cfg config.Config, now time.Time) {
	for _, file := range [][2]string{{"FENCELOCK_TLS_CERT_FILE", cfg.TLSCertFile}, {"FENCELOCK_TLS_CLIENT_CA_FILE", cfg.TLSClientCAFile}} {
		if file[1] == "" {
			continue
		}
		text, err := os.ReadFile(file[1])
		if err != nil {
			continue // loading the file reports it
		}
		for i, cert := range parse(text) {
			name := fmt.Sprintf("%s, certificate %d", file[0], i+1)
			r.dates(name, cert, now, "renew it; the server reads the files again")
			if i == 0 && file[1] == cfg.TLSCertFile && len(cert.DNSNames)+len(cert.IPAddresses) == 0 {
				r.Add(Wrong, name, "it names no host: clients compare the names in its extension (SAN), and refuse it", "issue one with the names that clients use")
			}
		}
	}
}

func parse(text []byte) (certs []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			certs = append(certs, cert)
		}
	}
	return certs
}

// dates reports whether a certificate is valid now, and whether it expires soon. renew describes how to
// install another one.
func (r *Report) dates(subject string, cert *x509.Certificate, now time.Time, renew string) {
	r.lookedf("certificate of %s", strings.TrimSuffix(subject, ", certificate 1"))
	switch left := cert.NotAfter.Sub(now); {
	case now.Before(cert.NotBefore):
		r.Add(Wrong, subject, fmt.Sprintf("it is valid only from %s on", cert.NotBefore.Format(time.RFC3339)), "check this machine's clock, or wait")
	case left <= 0:
		r.Add(Wrong, subject, "it expired on "+cert.NotAfter.Format(time.RFC3339)+": clients refuse it", "renew it")
	case left < expiresSoon:
		r.Add(Risky, subject, fmt.Sprintf("it expires on %s, in %d days", cert.NotAfter.Format(time.RFC3339), int(left.Hours()/24)), renew)
	}
}
