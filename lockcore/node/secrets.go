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

// MinSecretBytes is the length of a generated secret. KeyIDBytes is the length of the public id of the key
// that is derived from it.
const (
	MinSecretBytes = 32
	KeyIDBytes     = 4
)

// MaxEpoch is the largest epoch that a server believes. Epochs above it remain unused, so that a broken node
// that reports a huge epoch cannot use them up.
const MaxEpoch = Epoch(fencing.MaxToken) - 1<<40

// Secrets are a cluster's secrets as its nodes keep them in the admission record: a text, opaque to the node,
// with the newest secret first; "" if there is none. Every bootstrap generates a secret. 'fencelock secret
// rotate' generates another one, which seals new lease ids, while the previous one still opens existing ids.
// Secrets print as the ids of their keys, which are public.
type Secrets string

// KeptSecrets is how many secrets a node keeps: the present one and the previous one.
const KeptSecrets = 2

// Secret is one secret. Of two secrets, the one with the larger epoch is newer. The epoch is made from the
// clock and random bits, like that of a bootstrap, so that no two secrets share one.
type Secret struct {
	Epoch Epoch
	Raw   [MinSecretBytes]byte
}

// NewSecrets returns the secrets of a node that bootstraps itself in epoch: a single secret, made of these
// random bytes.
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

// List parses the text. It skips entries that cannot be parsed.
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

// MergeSecrets returns the newest KeptSecrets secrets of all arguments. The result does not depend on the
// order of the arguments, or on repetitions.
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

// Has reports whether s contains this secret.
func (s Secrets) Has(one Secret) bool {
	return slices.ContainsFunc(s.List(), func(other Secret) bool {
		return other.Epoch == one.Epoch && hmac.Equal(other.Raw[:], one.Raw[:])
	})
}

// Subkey derives a key for one use from a secret, so that a value made for one use is
// worthless for another.
func Subkey(secret []byte, use string) []byte {
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte("fencelock " + use + " v1")) // never fails (hash.Hash)
	return mac.Sum(nil)
}
