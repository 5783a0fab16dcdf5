// Package signature signs webhooks and verifies them, by the Standard Webhooks
// specification (symmetric scheme, identifier "v1").
//
// What is signed is "{webhook-id}.{webhook-timestamp}.{body}" with HMAC-SHA256;
// the header webhook-signature carries "v1," and the base64 of each signature,
// separated by spaces, one for every active key.
//
// It is public: receivers import it to check what Postrider sends them. It
// depends on the standard library alone and must stay so.
//
// Start at [ParseKey] for the secret, [Sign] for the sender's side and
// [Verifier] for the receiver's.
//
// Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
package signature
