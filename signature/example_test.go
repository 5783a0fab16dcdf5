package signature_test

import (
	"fmt"
	"time"

	"github.com/postrider/postrider/signature"
)

// A receiver keeps one Verifier and gives it each request's headers and the bytes
// of its body, before parsing them.
func ExampleVerifier() {
	key, err := signature.ParseKey([]byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
	if err != nil {
		fmt.Println(err)
		return
	}
	verifier := signature.Verifier{
		Keys: []signature.Key{key},
		Now:  func() time.Time { return knownTime }, // left out, it is time.Now
	}
	header := headers(knownID, "1614265330", knownSum)

	fmt.Println(verifier.Verify(header, []byte(`{"test": 2432232314}`)))
	fmt.Println(verifier.Verify(header, []byte(`{"test": 1}`)))
	// Output:
	// <nil>
	// no webhook signature matches
}
