// Package keyring encrypts the few columns of the store that hold secrets:
// signing keys and header values. AES-256-GCM from the standard library, a fresh
// nonce each time.
//
// A keyring holds several named keys. The first encrypts, all decrypt, and the
// name of the key travels with the ciphertext; so a key is replaced by putting a
// new one at the head, sealing anew what [KeyName] says is still under the old
// one, and only then removing that. There is no default key.
//
// Where a ciphertext belongs (endpoint id and column) is authenticated with it:
// copied to another row it does not open.
//
// It imports the standard library alone and knows nothing of the store.
// Start at [Parse] for the file, then [Keyring.Seal] and [Keyring.Open].
package keyring
