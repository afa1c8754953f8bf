package redlock

import "crypto/cipher"

// SealMessage encrypts what this server tells the other servers of the cluster, so that
// nobody else reads it or makes one like it; it says nothing of when that was, or how
// often it has come. It reports false while the server does not know the cluster's secret.
func (l *Locker) SealMessage(text string) (sealed string, ok bool) {
	for _, s := range l.sets {
		if keys := s.keysNow(); keys != nil {
			return keys.keys[0].encrypt(keys.keys[0].messages, "", text), true
		}
	}
	return "", false
}

// OpenMessage reports false for what SealMessage did not make under a secret that this
// server knows.
func (l *Locker) OpenMessage(sealed string) (text string, ok bool) {
	for _, s := range l.sets {
		if keys := s.keysNow(); keys != nil {
			if text, ok = keys.decrypt(func(key *key) cipher.AEAD { return key.messages }, "", sealed); ok {
				return text, true
			}
		}
	}
	return "", false
}
