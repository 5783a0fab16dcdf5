package ingest

import "net/http"

// traceparent returns the W3C Trace Context header of a request, or "" where it is absent or not valid: the
// specification (section 3.2) has a receiver go on as if there were none. Of a later version than 00, the part that
// version 00 knows is kept, as 00.
func traceparent(header http.Header) string {
	values := header.Values("Traceparent")
	if len(values) != 1 {
		return ""
	}
	const size = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	text := values[0]
	if len(text) < size || text[2] != '-' || text[35] != '-' || text[52] != '-' {
		return ""
	}
	version, trace, parent, flags := text[:2], text[3:35], text[36:52], text[53:55]
	switch {
	case !isLowerHex(version) || version == "ff",
		version == "00" && len(text) != size,
		len(text) > size && text[size] != '-',
		!isLowerHex(trace) || isZeros(trace),
		!isLowerHex(parent) || isZeros(parent),
		!isLowerHex(flags):
		return ""
	}
	return "00" + text[2:size]
}

func isLowerHex(text string) bool {
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isZeros(text string) bool {
	for _, c := range []byte(text) {
		if c != '0' {
			return false
		}
	}
	return true
}
