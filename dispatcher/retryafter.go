package dispatcher

import (
	"net/http"
	"strings"
	"time"
)

// maxRetryAfter bounds what a receiver may ask for.
const maxRetryAfter = 6 * time.Hour

// parseRetryAfter reads a Retry-After header (RFC 9110, section 10.2.3): a number of seconds, or a date, which is taken
// against the given time. It reports false for what is to be ignored: an unreadable value or a date in the past. The
// delay is from 0 to maxRetryAfter.
func parseRetryAfter(value string, at time.Time) (time.Duration, bool) {
	value = strings.Trim(value, " \t")
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		return seconds(value), true
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	delay := date.Sub(at) // saturates
	if delay < 0 {
		return 0, false
	}
	return min(delay, maxRetryAfter), true
}

// seconds reads digits of any number.
func seconds(digits string) time.Duration {
	const most = int(maxRetryAfter / time.Second)
	n := 0
	for _, digit := range []byte(digits) {
		n = n*10 + int(digit-'0')
		if n >= most {
			return maxRetryAfter
		}
	}
	return time.Duration(n) * time.Second
}
