package localstack

import (
	"crypto/x509"
	"net"
)

// Authority is a certificate authority for a control plane that somebody else runs, such as test/cluster.
type Authority struct{ own *authority }

// NewAuthority makes one with a key of its own.
func NewAuthority() (*Authority, error) {
	own, err := newAuthority()
	return &Authority{own}, err
}

// Certificate returns the authority's own certificate, in PEM.
func (a *Authority) Certificate() []byte { return a.own.certPEM }

// Issue returns a certificate and its key, in PEM, for a client with this user name and these groups that is also a server
// of these hosts, names or addresses.
func (a *Authority) Issue(user string, groups []string, hosts ...string) (certificatePEM, keyPEM []byte, err error) {
	template := certificate(user)
	template.Subject.Organization = groups
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	issued, err := a.own.sign(template)
	return issued.cert, issued.key, err
}

// NewKey returns a fresh private key in PEM, for ServiceAccount tokens.
func NewKey() ([]byte, error) {
	_, key, err := newKey()
	return key, err
}
