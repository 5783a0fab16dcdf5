package sink

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A body begins with the Unix nanoseconds at which its event was meant to be posted, always of the same length.
const (
	bodyHead  = `{"at":"`
	bodyDigit = 19
	bodyRest  = `","data":"`
	bodyTail  = `"}`
)

// Body makes a JSON document of size bytes. intended is the Unix time in nanoseconds from which latency counts; 0: none is
// measured.
func Body(size int, intended int64) []byte {
	fill := max(0, size-len(bodyHead)-bodyDigit-len(bodyRest)-len(bodyTail))
	return fmt.Appendf(nil, "%s%0*d%s%s%s", bodyHead, bodyDigit, intended, bodyRest, strings.Repeat("x", fill), bodyTail)
}

// readBody reads a body to its end and returns the intended time that it carries, 0 where it carries none.
func readBody(body io.Reader) (int64, error) {
	var head [len(bodyHead) + bodyDigit]byte
	if _, err := io.ReadFull(body, head[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, nil
		}
		return 0, err
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return 0, err
	}
	intended, err := strconv.ParseInt(string(head[len(bodyHead):]), 10, 64)
	if err != nil {
		return 0, nil //nolint:nilerr // the body is somebody else's
	}
	return intended, nil
}
