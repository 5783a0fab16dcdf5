package dispatcher

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/postrider/postrider/destination"
)

// maxMessage bounds a failure's message, in bytes; the status field takes as many characters.
const maxMessage = 256

// failure is why there was no answer, for programs and for people. The message is made of our own words, the host and
// what names no request: never of the URL's path or query, a header value, or a text that the receiver chose.
type failure struct {
	reason  Reason
	message string
}

// failureOf names an error of the transport, or of reading the answer.
//
// It looks at types where there are some. net/http keeps its HTTP/2 errors and those of parsing to itself, so these are
// told by their text; the tests make each of them with a real server, and would notice other words.
func failureOf(err error, host string) failure {
	var (
		notAllowed  *destination.NotAllowedError
		lookup      *net.DNSError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		op          *net.OpError
		timeout     net.Error
	)
	text := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return failure{Timeout, "no whole answer within the endpoint's timeout"}
	case errors.As(err, &notAllowed):
		return failure{DestinationNotAllowed, clean(notAllowed.Error())}
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return failure{DNSNotFound, clean("host " + host + " does not exist")}
	case errors.As(err, &lookup):
		return failure{DNSFailure, clean("host " + host + " could not be looked up")}
	case errors.As(err, &certificate):
		return failure{TLSFailure, clean("the certificate of " + host + " was not accepted: " + certificate.Err.Error())}
	case errors.As(err, &record):
		return failure{TLSFailure, clean(host + " does not speak TLS at this port")}
	case errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"):
		return failure{TLSFailure, clean("the TLS handshake with " + host + " failed: " + op.Err.Error())}
	case strings.Contains(text, "tls: "):
		return failure{TLSFailure, clean("the TLS handshake with " + host + " failed")}
	case strings.Contains(text, "GOAWAY"):
		return failure{GoAway, clean(host + " ended the HTTP/2 connection (GOAWAY)")}
	case errors.Is(err, syscall.ECONNREFUSED):
		return failure{ConnectionRefused, clean(host + " refused the connection")}
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return failure{HostUnreachable, clean("there is no way to " + host)}
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), strings.Contains(text, "stream error: stream ID"):
		return failure{ConnectionReset, clean(host + " reset the connection")}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return failure{TruncatedResponse, clean("the answer of " + host + " ended in its middle")}
	case errors.Is(err, io.EOF), strings.Contains(text, "server closed idle connection"):
		return failure{ConnectionClosed, clean(host + " closed the connection without an answer")}
	case errors.As(err, &timeout) && timeout.Timeout():
		return failure{Timeout, clean("no connection to " + host + " in time")}
	case errors.As(err, &op):
		return failure{ConnectionFailed, clean("the connection to " + host + " failed")}
	}
	return failure{InvalidResponse, clean("the answer of " + host + " is not valid HTTP")}
}

// statusMessage tells of an answer that is no success. Of a redirect it names the host only.
func statusMessage(status int, location string) string {
	message := fmt.Sprintf("%d %s", status, http.StatusText(status))
	if location == "" || status < 300 || status > 399 {
		return clean(message)
	}
	if target, err := url.Parse(location); err == nil && target.Host != "" {
		return clean(message + " to host " + target.Host + ", not followed")
	}
	return clean(message + " on the same host, not followed")
}

// clean makes one line of printable text of at most maxMessage bytes.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.TrimSpace(text))
	return prefix(text, maxMessage)
}

// prefix cuts valid UTF-8 to at most n bytes, and no rune in two.
func prefix(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
