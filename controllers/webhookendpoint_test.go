package controllers

import (
	"testing"
)

func TestAnEndpointBecomesARow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger")
	w.start()
	w.awaitConditions("ledger", ready+" Delivering=True/NoAttempts")
	t.Log(w.get("ledger").Status)
}
