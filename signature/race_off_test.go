//go:build !race

package signature_test

const raceFactor = 0
