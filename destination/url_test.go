package destination_test

import (
	"net/url"
	"testing"

	"github.com/postrider/postrider/destination"
)

func TestCheckURL(t *testing.T) {
	t.Parallel()
	strict := destination.Config{}
	withHTTP := destination.Config{AllowHTTP: true}
	local := destination.Config{AllowHTTP: true, AllowedCIDRs: []string{"127.0.0.0/8"}}
	local6 := destination.Config{AllowHTTP: true, AllowedCIDRs: []string{"::1/128"}}
	ports := destination.Config{AllowHTTP: true, AllowedPorts: []int{443, 8443}}
	for name, tc := range map[string]struct {
		config destination.Config
		url    string
		want   destination.Reason // "" for allowed
	}{
		"a name":                   {strict, "https://hooks.example.com/invoices?a=b", ""},
		"a name with a dot":        {strict, "https://hooks.example.com./", ""},
		"a name with a digit":      {strict, "https://hooks.example.2com/", ""},
		"a name like hex":          {strict, "https://hooks.0xbeefy/", ""},
		"an IDN":                   {strict, "https://bücher.example/", ""},
		"a public address":         {strict, "https://8.8.8.8/", ""},
		"a public address, IPv6":   {strict, "https://[2606:4700::1111]:8443/", ""},
		"plain http":               {strict, "http://hooks.example.com/", destination.ReasonScheme},
		"plain http, allowed":      {withHTTP, "http://hooks.example.com/", ""},
		"scheme in capitals":       {strict, "HTTPS://hooks.example.com/", ""},
		"ftp":                      {withHTTP, "ftp://hooks.example.com/", destination.ReasonScheme},
		"file":                     {withHTTP, "file://hooks.example.com/etc", destination.ReasonScheme},
		"gopher":                   {withHTTP, "gopher://hooks.example.com:70/_", destination.ReasonScheme},
		"no scheme":                {withHTTP, "//hooks.example.com/", destination.ReasonScheme},
		"no host":                  {withHTTP, "https:///path", destination.ReasonInvalid},
		"opaque":                   {withHTTP, "https:hooks.example.com", destination.ReasonInvalid},
		"a port only":              {withHTTP, "https://:443/", destination.ReasonInvalid},
		"port 0":                   {withHTTP, "https://hooks.example.com:0/", destination.ReasonInvalid},
		"port 65536":               {withHTTP, "https://hooks.example.com:65536/", destination.ReasonInvalid},
		"an empty port":            {ports, "https://hooks.example.com:/", ""},
		"a listed port":            {ports, "https://hooks.example.com:8443/", ""},
		"another port":             {ports, "https://hooks.example.com:8080/", destination.ReasonPort},
		"the implied port of http": {ports, "http://hooks.example.com/", destination.ReasonPort},

		"loopback":                 {withHTTP, "http://127.0.0.1/", destination.ReasonNotPublic},
		"loopback, opened":         {local, "http://127.0.0.1:8080/", ""},
		"N1: IPv6 loopback":        {withHTTP, "http://[::1]/", destination.ReasonNotPublic},
		"N1: mapped":               {withHTTP, "http://[::ffff:127.0.0.1]/", destination.ReasonNotPublic},
		"N1: mapped in hex":        {withHTTP, "http://[::ffff:a9fe:a9fe]/", destination.ReasonNotPublic},
		"N1: short":                {withHTTP, "http://127.1/", destination.ReasonHostForm},
		"N1: one hex number":       {withHTTP, "http://0x7f000001/", destination.ReasonHostForm},
		"N1: one number":           {withHTTP, "http://2130706433/", destination.ReasonHostForm},
		"N1: octal":                {withHTTP, "http://0177.0.0.1/", destination.ReasonHostForm},
		"N1: trailing dot":         {withHTTP, "http://127.0.0.1./", destination.ReasonHostForm},
		"N1: zone":                 {withHTTP, "http://[fe80::1%25lo]/", destination.ReasonNotPublic},
		"N1: NAT64":                {withHTTP, "http://[64:ff9b::169.254.169.254]/", destination.ReasonNotPublic},
		"N1: 6to4":                 {withHTTP, "http://[2002:a9fe:a9fe::1]/", destination.ReasonNotPublic},
		"two trailing dots":        {withHTTP, "http://127.0.0.1../", destination.ReasonHostForm},
		"dots only":                {withHTTP, "http://../", destination.ReasonHostForm},
		"hex in capitals":          {withHTTP, "http://0X7F000001/", destination.ReasonHostForm},
		"hex parts":                {withHTTP, "http://0x7f.0x0.0x0.0x1/", destination.ReasonHostForm},
		"mixed parts":              {withHTTP, "http://0x7f.1/", destination.ReasonHostForm},
		"hex prefix alone":         {withHTTP, "http://127.0.0.0x/", destination.ReasonHostForm},
		"zero":                     {withHTTP, "http://0/", destination.ReasonHostForm},
		"leading zeros":            {withHTTP, "http://127.000.000.001/", destination.ReasonHostForm},
		"five parts":               {withHTTP, "http://127.0.0.1.1/", destination.ReasonHostForm},
		"over 255":                 {withHTTP, "http://256.0.0.1/", destination.ReasonHostForm},
		"odd form of a public one": {withHTTP, "http://8.8/", destination.ReasonHostForm},
		"short form, opened":       {local, "http://127.1/", destination.ReasonHostForm},
		"userinfo before it":       {withHTTP, "http://hooks.example.com@127.0.0.1/", destination.ReasonNotPublic},

		"localhost":              {withHTTP, "http://localhost/", destination.ReasonNotPublic},
		"localhost with a dot":   {withHTTP, "http://LOCALHOST./", destination.ReasonNotPublic},
		"below localhost":        {withHTTP, "http://a.localhost/", destination.ReasonNotPublic},
		"localhost, opened":      {local, "http://localhost:8080/", ""},
		"localhost, IPv6 opened": {local6, "http://localhost:8080/", ""},
		"not localhost":          {withHTTP, "http://mylocalhost/", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, err := url.Parse(tc.url)
			if err != nil {
				t.Fatal(err)
			}
			err = mustPolicy(t, tc.config).CheckURL(u)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("%s: got %v, want nil", tc.url, err)
			case tc.want != "" && err == nil:
				t.Errorf("%s: got nil, want %s", tc.url, tc.want)
			case tc.want != "":
				if got := detail(t, err).Reason; got != tc.want {
					t.Errorf("%s: got %s (%v), want %s", tc.url, got, err, tc.want)
				}
			}
		})
	}
}
