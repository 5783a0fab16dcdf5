package keyring

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

const (
	// KeyBytes is the length of every key: AES-256.
	KeyBytes = 32

	// MaxNameBytes bounds a key's name. It is shorter than 32 bytes are in hex
	// or base64, so that a key put where the name belongs is no name and can
	// never be shown as one.
	MaxNameBytes = 32

	// MaxKeys bounds the keys of a keyring file.
	MaxKeys = 64

	// MaxFileBytes bounds its length.
	MaxFileBytes = 64 << 10
)

// Parse reads a keyring file: one "name:base64" a line, where the base64
// (standard, padded) is of exactly [KeyBytes] bytes. The first key encrypts.
// Empty lines and lines that begin with "#" are passed over, and white space
// around a line is.
//
// All problems are reported at once, each with its line number and its remedy
// and without a byte of the line. A file without a key is an error, since there
// is no default key.
func Parse(file []byte) (*Keyring, error) {
	if len(file) > MaxFileBytes {
		return nil, fmt.Errorf("keyring: %d bytes long, at most %d are read; is this the right file?", len(file), MaxFileBytes)
	}
	p := parser{}
	defer p.forget()
	number := 0
	for line := range bytes.Lines(file) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if len(p.entries) == MaxKeys {
			p.problem(number, fmt.Sprintf("more than %d keys; remove those that nothing is encrypted with", MaxKeys))
			break
		}
		p.line(number, line)
	}
	if len(p.entries) == 0 && len(p.problems) == 0 {
		p.problems = append(p.problems, errors.New("keyring: the file holds no key, and there is no default one; "+
			"add a line name:base64 with 32 random bytes (openssl rand -base64 32)"))
	}
	if len(p.problems) > 0 {
		return nil, errors.Join(p.problems...)
	}
	return p.keyring()
}

// parser collects keys and problems line by line.
type parser struct {
	entries  []entry
	problems []error
}

type entry struct {
	line int
	name string
	key  []byte
}

func (p *parser) problem(line int, text string) {
	p.problems = append(p.problems, fmt.Errorf("keyring line %d: %s", line, text))
}

// line reads one line. Problems speak of line numbers alone: a name is shown
// nowhere, because in a broken line it may well be the key.
func (p *parser) line(number int, line []byte) {
	name, encoded, ok := bytes.Cut(line, []byte(":"))
	if !ok {
		p.problem(number, "there is no colon; write name:base64")
		return
	}
	if !validName(string(name)) {
		p.problem(number, fmt.Sprintf("what stands before the colon is no name; "+
			"use 1 to %d letters, digits, dots, dashes and underscores, a letter or digit first", MaxNameBytes))
		return
	}
	// Strict, and no line breaks by construction: one key has one spelling.
	key, err := base64.StdEncoding.Strict().AppendDecode(nil, encoded)
	switch {
	case err != nil || bytes.ContainsAny(encoded, "\r\n"):
		clear(key)
		p.problem(number, "what follows the colon is not standard base64 with padding; make a key with: openssl rand -base64 32")
		return
	case len(key) != KeyBytes:
		clear(key)
		p.problem(number, fmt.Sprintf("the key is %d bytes long, exactly %d are needed; make one with: openssl rand -base64 32",
			len(key), KeyBytes))
		return
	case subtle.ConstantTimeCompare(key, bytes.Repeat(key[:1], KeyBytes)) == 1:
		clear(key)
		p.problem(number, "the key is one byte repeated, a placeholder; make a real one with: openssl rand -base64 32")
		return
	}
	for _, e := range p.entries {
		if e.name == string(name) {
			p.problem(number, fmt.Sprintf("the name is that of line %d already; give each key its own", e.line))
		}
		if subtle.ConstantTimeCompare(e.key, key) == 1 {
			p.problem(number, fmt.Sprintf("the key is that of line %d already; a new name needs a new key", e.line))
		}
	}
	p.entries = append(p.entries, entry{line: number, name: string(name), key: key})
}

func (p *parser) keyring() (*Keyring, error) {
	k := &Keyring{keys: make([]namedKey, 0, len(p.entries))}
	for _, e := range p.entries {
		block, err := aes.NewCipher(e.key)
		if err != nil {
			return nil, fmt.Errorf("keyring line %d: preparing the cipher: %w", e.line, err)
		}
		// This form draws the nonce itself: no caller can repeat one.
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, fmt.Errorf("keyring line %d: preparing the cipher: %w", e.line, err)
		}
		k.keys = append(k.keys, namedKey{name: e.name, aead: func() cipher.AEAD { return aead }})
	}
	return k, nil
}

// forget overwrites the keys once the ciphers are made. The runtime may hold
// copies elsewhere; this only shortens their list.
func (p *parser) forget() {
	for _, e := range p.entries {
		clear(e.key)
	}
}

// Generate makes a new random key and returns its line of a keyring file,
// newline included. The line is a secret. It fails only for a name that [Parse]
// would refuse.
func Generate(name string) (line string, err error) {
	if !validName(name) {
		return "", fmt.Errorf("keyring: invalid key name %q; "+
			"use 1 to %d letters, digits, dots, dashes and underscores, a letter or digit first", name, MaxNameBytes)
	}
	key := make([]byte, KeyBytes)
	_, _ = rand.Read(key) // never fails: it ends the program instead
	return name + ":" + base64.StdEncoding.EncodeToString(key) + "\n", nil
}

func validName(name string) bool {
	if name == "" || len(name) > MaxNameBytes || strings.ContainsRune("._-", rune(name[0])) {
		return false
	}
	for _, c := range []byte(name) {
		letterOrDigit := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letterOrDigit && !strings.ContainsRune("._-", rune(c)) {
			return false
		}
	}
	return true
}
