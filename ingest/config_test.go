package ingest

import (
	"strings"
	"testing"
)

func TestDefaultConfigIsValid(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateTellsAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	err := Config{Address: "nowhere", TLSCertFile: "cert.pem", DrainDelay: -1}.Validate()
	if err == nil {
		t.Fatal("no problem was found")
	}
	for _, field := range []string{
		"address", "tls-cert-file", "body-limit", "idempotency-window", "max-in-flight", "max-connections", "body-timeout",
		"database-timeout", "review-timeout", "review-max-in-flight", "review-remember", "drain-delay", "shutdown-timeout",
	} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in:\n%v", field, err)
		}
	}
}

func TestInsecureNoAuthRefusesAnyAddressButLoopback(t *testing.T) {
	t.Parallel()
	for address, allowed := range map[string]bool{
		"127.0.0.1:0": true, "127.1.2.3:80": true, "[::1]:80": true, "localhost:80": true,
		":8080": false, "0.0.0.0:80": false, "[::]:80": false, "192.0.2.1:80": false, "localhost.example.com:80": false, "127.1:80": false,
	} {
		config := DefaultConfig()
		config.Address, config.InsecureNoAuth = address, true
		if err := config.Validate(); (err == nil) != allowed {
			t.Errorf("%s: %v, want allowed: %v", address, err, allowed)
		}
	}
}
