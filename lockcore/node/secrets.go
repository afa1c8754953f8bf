package node

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/fencing"
)

// MinSecretBytes is the length of a secret that is drawn, KeyIDBytes that of the
// public id of what is made of it.
const (
	MinSecretBytes = 32
	KeyIDBytes     = 4
)

// MaxEpoch leaves room above every epoch, so that a broken node that names a
// huge one cannot use them up.
const MaxEpoch = Epoch(fencing.MaxToken) - 1<<40

// Secrets are a cluster's secrets as its nodes keep them, with the admission
// record: the newest first, "" for none. To a node they are a text. Every
// bootstrap draws a secret, and 'fencelock secret rotate' another one, which
// replaces it while the one before still opens lease ids. What Secrets print
// are the ids of their keys, which are public.
type Secrets string

// KeptSecrets is how many a node keeps: the present one and the one before.
const KeptSecrets = 2

// Secret is one of them. A larger epoch is newer; it is made as an epoch is at
// a bootstrap, of the clock and some chance, so that no two are the same.
type Secret struct {
	Epoch Epoch
	Raw   [MinSecretBytes]byte
}

// NewSecrets are the secrets of a node that bootstraps itself in epoch, of
// MinSecretBytes random bytes.
func NewSecrets(epoch Epoch, random [MinSecretBytes]byte) Secrets {
	return secretsOf([]Secret{{Epoch: epoch, Raw: random}})
}

func secretsOf(list []Secret) Secrets {
	texts := make([]string, len(list))
	for i, s := range list {
		texts[i] = strconv.FormatInt(int64(s.Epoch), 10) + ":" + hex.EncodeToString(s.Raw[:])
	}
	return Secrets(strings.Join(texts, ","))
}

// List reads the text. What is broken in it is no secret.
func (s Secrets) List() (list []Secret) {
	for text := range strings.SplitSeq(string(s), ",") {
		epoch, raw, _ := strings.Cut(text, ":")
		n, err := strconv.ParseInt(epoch, 10, 64)
		bytes, errRaw := hex.DecodeString(raw)
		if err == nil && errRaw == nil && n > 0 && Epoch(n) <= MaxEpoch && len(bytes) == MinSecretBytes {
			list = append(list, Secret{Epoch: Epoch(n), Raw: [MinSecretBytes]byte(bytes)})
		}
	}
	return list
}

// String shows the ids of the keys, and no secret.
func (s Secrets) String() string {
	var ids []string
	for _, one := range s.List() {
		ids = append(ids, hex.EncodeToString(Subkey(one.Raw[:], "key id")[:KeyIDBytes]))
	}
	return "secrets(" + strings.Join(ids, ",") + ")"
}

// GoString is String.
func (s Secrets) GoString() string { return s.String() }

// MarshalText is String, for logs in JSON.
func (s Secrets) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MergeSecrets keeps the newest of all. However often and in whatever order
// nodes' secrets are merged, the same come out.
func MergeSecrets(of ...Secrets) Secrets {
	var all []Secret
	for i, s := range of {
		if !slices.Contains(of[:i], s) { // most nodes have the same
			all = append(all, s.List()...)
		}
	}
	slices.SortFunc(all, func(a, b Secret) int {
		return cmp.Or(-cmp.Compare(a.Epoch, b.Epoch), slices.Compare(b.Raw[:], a.Raw[:]))
	})
	all = slices.Compact(all)
	return secretsOf(all[:min(len(all), KeptSecrets)])
}

// Has reports whether the node that keeps s has this one.
func (s Secrets) Has(one Secret) bool {
	return slices.ContainsFunc(s.List(), func(other Secret) bool {
		return other.Epoch == one.Epoch && hmac.Equal(other.Raw[:], one.Raw[:])
	})
}

// Subkey makes a key of a secret for one use, so that what is made for one is of no
// use for another.
func Subkey(secret []byte, use string) []byte {
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte("fencelock " + use + " v1")) // never fails (hash.Hash)
	return mac.Sum(nil)
}
