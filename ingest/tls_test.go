package ingest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificate writes a self-signed one for 127.0.0.1 and returns a pool that trusts it.
func certificate(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "ingest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	// The key first, and both by renaming, as a kubelet swaps them.
	for _, file := range []struct {
		name string
		text []byte
	}{{keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})}, {certFile, cert}} {
		if err := os.WriteFile(file.name+".new", file.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file.name+".new", file.name); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool
}

func TestCertificatesAreReloadedWhenTheyChange(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	certFile, keyFile := filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	trusted := certificate(t, certFile, keyFile)
	r := start(t, options{store: &double{}, config: func(c *Config) { c.TLSCertFile, c.TLSKeyFile = certFile, keyFile }})
	get := func(trusted *x509.CertPool) (protocol int, err error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.Addr().String()+"/openapi.json", nil)
		if err != nil {
			return 0, err
		}
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			return 0, err
		}
		return response.ProtoMajor, response.Body.Close()
	}
	protocol, err := get(trusted)
	if err != nil {
		t.Fatal(err)
	}
	if protocol != 2 {
		t.Errorf("spoke HTTP/%d, want HTTP/2", protocol)
	}
	trusted = certificate(t, certFile, keyFile)
	eventually(t, "serving the new certificate", func() bool {
		_, err := get(trusted)
		return err == nil
	})
}

func TestACertificateThatIsMissingStopsTheStart(t *testing.T) {
	t.Parallel()
	config := DefaultConfig()
	config.Address, config.InsecureNoAuth = "127.0.0.1:0", true
	config.TLSCertFile, config.TLSKeyFile = "/nowhere/tls.crt", "/nowhere/tls.key"
	s, err := New(config, partsOf(&double{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("it started")
	}
}
