package secrecy

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
)

// window is how many characters of a secret in a row are a find. Shorter ones would be found by chance.
const window = 12

// Secret is a value that must not be found, in whatever form it may have been written.
type Secret struct {
	Name    string
	needles []string
}

// NewSecret prepares the search for a value. A signing key is searched for as it is written in a Secret, and decoded.
func NewSecret(name, value string) Secret {
	s := Secret{Name: name}
	s.add([]byte(value))
	if encoded, ok := strings.CutPrefix(value, "whsec_"); ok {
		if key, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			s.add(key)
		}
	}
	return s
}

// add covers the bytes as text, in hex, in base64 at each of its three alignments, in a URL and as Go prints a slice.
func (s *Secret) add(raw []byte) {
	s.windows(string(raw))
	s.windows(url.QueryEscape(string(raw)))
	s.windows(hex.EncodeToString(raw))
	for shift := range 3 {
		if shift >= len(raw) {
			break
		}
		s.windows(base64.RawStdEncoding.EncodeToString(raw[shift:]))
		s.windows(base64.RawURLEncoding.EncodeToString(raw[shift:]))
	}
	decimal := strings.Trim(fmt.Sprint(raw), "[]")
	if fields := strings.Fields(decimal); len(fields) >= window {
		s.needles = append(s.needles, strings.Join(fields[:window], " "), strings.Join(fields[len(fields)-window:], " "))
	}
}

// windows takes pieces from a text, beginning, end and in between, so that a secret that was cut or broken is found.
func (s *Secret) windows(text string) {
	for i := 0; i+window <= len(text); i += window / 2 {
		s.needles = append(s.needles, text[i:i+window])
	}
	if len(text) >= window {
		s.needles = append(s.needles, text[len(text)-window:])
	}
}

// FoundIn returns a place where the secret stands in a text, with what is around it but for the secret.
func (s *Secret) FoundIn(text string) (around string, found bool) {
	for _, needle := range s.needles {
		if i := strings.Index(text, needle); i >= 0 {
			return text[max(0, i-60):i] + "<" + s.Name + ">" + text[min(len(text), i+len(needle)):min(len(text), i+len(needle)+30)], true
		}
	}
	return "", false
}
