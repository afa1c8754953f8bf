package events

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	mathrand "math/rand/v2"
)

// ids makes the ids with which a reader resumes. An id is the event's number and a random half, encrypted
// under the server's own key. So a reader cannot tell how many events that it may not read lie between two
// of its own. An id of another server, or from before a restart, decrypts to a number that does not exist
// yet.
type ids struct{ block cipher.Block }

func newIDs() ids {
	var key [16]byte
	_, _ = rand.Read(key[:]) // it never fails
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic("events: " + err.Error()) // the key's length is right
	}
	return ids{block: block}
}

const idHalf = aes.BlockSize / 2

func (i ids) seal(number uint64) string {
	var b [aes.BlockSize]byte
	binary.BigEndian.PutUint64(b[:idHalf], number)
	binary.BigEndian.PutUint64(b[idHalf:], mathrand.Uint64()) //nolint:gosec // the cipher hides it
	i.block.Encrypt(b[:], b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func (i ids) open(id string) (number uint64, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if err != nil || len(b) != aes.BlockSize {
		return 0, false
	}
	i.block.Decrypt(b, b)
	return binary.BigEndian.Uint64(b[:idHalf]), true
}
