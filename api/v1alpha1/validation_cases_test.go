package v1alpha1_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// specCase is a spec, and what the API server must say to it.
type specCase struct {
	name string
	// spec is a YAML merge patch over baseSpec: null takes a field away.
	spec string
	// at and says are the field and the words of the refusal; both empty: the spec is accepted.
	at, says string
}

const baseSpec = `
url: https://hooks.example.com/invoices
eventTypes: [invoice.*]
signing: {secretRef: {name: ledger-signing}}
`

// acceptedSpecs hold, beside the ordinary, each bound at its last allowed value.
func acceptedSpecs() []specCase {
	cases := []specCase{
		{name: "the required fields alone", spec: ``},
		{name: "every field", spec: everyField},
		{name: "the least of every number", spec: leastNumbers},
		{name: "the most of every number", spec: mostNumbers},
		{name: "retry without backoff and schedule", spec: `retry: {maxAttempts: 3}`},
		{name: "empty retry, backoff and circuitBreaker", spec: "retry: {backoff: {}}\ncircuitBreaker: {}"},
		{name: "one attempt", spec: `retry: {maxDuration: 0s}`},
		{name: "base equal to cap, written differently", spec: `retry: {backoff: {base: 60m, cap: 1h}}`},
		{name: "base alone, above the default cap", spec: `retry: {backoff: {base: 12h}}`},
		{name: "cooldown equal to maxCooldown, written differently", spec: `circuitBreaker: {cooldown: 60s, maxCooldown: 1m}`},
		{name: "99 retries by schedule", spec: "retry: {schedule: " + list(99, func(int) string { return "1s" }) + "}"},
		{name: "64 event types", spec: "eventTypes: " + list(64, func(i int) string { return fmt.Sprintf("invoice.v%d", i) })},
		{name: "32 headers", spec: "headers: " + list(32, func(i int) string { return fmt.Sprintf("{name: X-%d, value: v}", i) })},
		{name: "a header's name and value as long as may be", spec: fmt.Sprintf("headers: [{name: %s, value: %s}]", long("X-", 128), long("v", 2048))},
		{name: "a Secret's name and entry as long as may be", spec: fmt.Sprintf("signing: {secretRef: {name: %s, key: %s}}", long("s", 253), long("k", 253))},
		{name: "url as long as may be", spec: "url: " + long("https://hooks.example.com/", 2048)},
	}
	for _, state := range []string{"Enabled", "Paused", "Disabled"} {
		cases = append(cases, specCase{name: "state " + state, spec: "state: " + state})
	}
	for _, ordering := range []string{"None", "Key"} {
		cases = append(cases, specCase{name: "ordering " + ordering, spec: "ordering: " + ordering})
	}
	for _, url := range []string{
		"http://receiver.postrider-samples.svc:8080/kirana/ledger", "HTTPS://HOOKS.EXAMPLE.COM/", "https://hooks.example.com",
		"https://hooks.example.com?at=sign@example.com", "https://hooks.example.com/@team/a:b@c", "http://192.0.2.1:65535/",
		"http://[2001:db8::1]:8080/", "https://hooks.example.com:1/%40", "https://münchen.example/überweisung",
	} {
		cases = append(cases, specCase{name: "url " + url, spec: "url: " + quoted(url)})
	}
	for _, pattern := range []string{
		"*", "invoice", "invoice.paid", "invoice.*", "*.paid", "invoice.*.failed", "*.*", "Invoice_2.paid-out", "-._", long("a", 128),
	} {
		cases = append(cases, specCase{name: "event type " + pattern, spec: "eventTypes: [" + quoted(pattern) + "]"})
	}
	for _, name := range []string{
		"X-Team", "x_team", "Authorization", "Webhook-Tenant", "webhook", "Accept", "Idempotency-Key", "Hostname", "Terms", "Postrider", "X-Postrider-Tenant", "!#$%&'*+-.^_`|~0a",
	} {
		cases = append(cases, specCase{name: "header " + name, spec: "headers: [{name: " + quoted(name) + ", value: v}]"})
	}
	for _, value := range []string{"!", "~", "a b\tc", `Bearer "sample" \ <x>`} {
		cases = append(cases, specCase{name: "header value " + value, spec: "headers: [{name: X-Team, value: " + quoted(value) + "}]"})
	}
	for _, d := range durations {
		for _, value := range append([]string{d.least, d.most}, d.between...) {
			cases = append(cases, specCase{name: d.at + " of " + value, spec: fmt.Sprintf(d.spec, quoted(value))})
		}
	}
	return cases
}

const everyField = `
url: https://hooks.example.com/invoices
eventTypes: ["invoice.*", refund.created]
state: Enabled
signing: {secretRef: {name: ledger-signing, key: signing-key}, rotationWindow: 24h, scheme: StandardWebhooks}
timeout: 10s
maxConcurrency: 16
rateLimit: {requests: 5, per: 1s, burst: 5}
ordering: None
payload: Raw
headers: [{name: X-Team, value: billing}]
retry: {maxAttempts: 12, maxDuration: 24h, backoff: {base: 10s, factor: 2, cap: 6h}}
circuitBreaker: {failureThreshold: 10, cooldown: 30s, maxCooldown: 10m}
`

const leastNumbers = `
maxConcurrency: 1
rateLimit: {requests: 1, burst: 1}
retry: {maxAttempts: 1, backoff: {factor: 1}}
circuitBreaker: {failureThreshold: 1}
`

const mostNumbers = `
maxConcurrency: 1000
rateLimit: {requests: 10000, burst: 10000}
retry: {maxAttempts: 100, backoff: {factor: 10}}
circuitBreaker: {failureThreshold: 1000}
`

// refusedSpecs hold at least one case for each rule and each limit of the CRD's spec: TestEveryRuleHasARefusedCase.
func refusedSpecs() []specCase {
	cases := []specCase{
		{"no spec", `null`, "spec", "Required value"},
		{"no url", `url: null`, "spec.url", "Required value"},
		{"no eventTypes", `eventTypes: null`, "spec.eventTypes", "Required value"},
		{"no signing", `signing: null`, "spec.signing", "Required value"},
		{"no secretRef", `signing: {secretRef: null}`, "spec.signing.secretRef", "Required value"},
		{"no Secret name", `signing: {secretRef: {name: null, key: a}}`, "spec.signing.secretRef.name", "Required value"},
		{"no requests", `rateLimit: {per: 1s}`, "spec.rateLimit.requests", "Required value"},
		{"no header name", `headers: [{value: v}]`, "spec.headers[0].name", "Required value"},
		{"no header value", `headers: [{name: X-Team}]`, "spec.headers[0].value", "Required value"},

		{"url too long", "url: " + long("https://hooks.example.com/", 2049), "spec.url", "Too long: may not be more than 2048"},
		{"event type too long", "eventTypes: [" + long("a", 129) + "]", "spec.eventTypes[0]", "Too long: may not be more than 128"},
		{"Secret name too long", "signing: {secretRef: {name: " + long("s", 254) + "}}", "spec.signing.secretRef.name", "Too long: may not be more than 253"},
		{"Secret entry too long", "signing: {secretRef: {key: " + long("k", 254) + "}}", "spec.signing.secretRef.key", "Too long: may not be more than 253"},
		{"header name too long", "headers: [{name: " + long("X-", 129) + ", value: v}]", "spec.headers[0].name", "Too long: may not be more than 128"},
		{"header value too long", "headers: [{name: X-Team, value: " + long("v", 2049) + "}]", "spec.headers[0].value", "Too long: may not be more than 2048"},

		{"no event type", `eventTypes: []`, "spec.eventTypes", "should have at least 1 items"},
		{"65 event types", "eventTypes: " + list(65, func(i int) string { return fmt.Sprintf("invoice.v%d", i) }), "spec.eventTypes", "Too many: 65: must have at most 64 items"},
		{"an event type twice", `eventTypes: [a, b, a]`, "spec.eventTypes[2]", `Duplicate value: "a"`},
		{"33 headers", "headers: " + list(33, func(i int) string { return fmt.Sprintf("{name: X-%d, value: v}", i) }), "spec.headers", "Too many: 33: must have at most 32 items"},
		{"a header twice", `headers: [{name: X-Team, value: a}, {name: X-Team, value: b}]`, "spec.headers[1]", "Duplicate value"},
		{"an empty schedule", `retry: {schedule: []}`, "spec.retry.schedule", "should have at least 1 items"},
		{"100 retries by schedule", "retry: {schedule: " + list(100, func(int) string { return "1s" }) + "}", "spec.retry.schedule", "Too many: 100: must have at most 99 items"},

		{"state On", `state: "On"`, "spec.state", `Unsupported value: "On": supported values: "Enabled", "Paused", "Disabled"`},
		{"state empty", `state: ""`, "spec.state", "Unsupported value"},
		{"ordering key", `ordering: key`, "spec.ordering", `Unsupported value: "key": supported values: "None", "Key"`},
		{"payload CloudEventsBinary", `payload: CloudEventsBinary`, "spec.payload", `supported values: "Raw"`},
		{"scheme Stripe", `signing: {scheme: Stripe}`, "spec.signing.scheme", `supported values: "StandardWebhooks"`},
		{"a fractional factor", `retry: {backoff: {factor: 1.5}}`, "spec.retry.backoff.factor", "must be of type int32"},
		{"a duration without quotes and unit", `timeout: 10`, "spec.timeout", "must be of type string"},

		{"a header twice in different case", `headers: [{name: X-Team, value: a}, {name: x-team, value: b}]`, "spec.headers", "must not name a header twice, in whatever case: keep one of them"},
		{"backoff and schedule", `retry: {backoff: {base: 1s}, schedule: [1s]}`, "spec.retry", "has both backoff and schedule: keep one of them and remove the other"},
		{"an empty backoff and schedule", `retry: {backoff: {}, schedule: [1s]}`, "spec.retry", "has both backoff and schedule: keep one of them and remove the other"},
		{"base above cap", `retry: {backoff: {base: 61m, cap: 1h}}`, "spec.retry.backoff", "has a base above its cap: lower base or raise cap"},
		{"cooldown above maxCooldown", `circuitBreaker: {cooldown: 61s, maxCooldown: 1m}`, "spec.circuitBreaker", "has a cooldown above its maxCooldown: lower cooldown or raise maxCooldown"},
	}

	for _, n := range []struct {
		at, spec    string
		least, most int
	}{
		{"spec.maxConcurrency", `maxConcurrency: %d`, 1, 1000},
		{"spec.rateLimit.requests", `rateLimit: {requests: %d}`, 1, 10000},
		{"spec.rateLimit.burst", `rateLimit: {requests: 5, burst: %d}`, 1, 10000},
		{"spec.retry.maxAttempts", `retry: {maxAttempts: %d}`, 1, 100},
		{"spec.retry.backoff.factor", `retry: {backoff: {factor: %d}}`, 1, 10},
		{"spec.circuitBreaker.failureThreshold", `circuitBreaker: {failureThreshold: %d}`, 1, 1000},
	} {
		cases = append(cases,
			specCase{n.at + " too small", fmt.Sprintf(n.spec, n.least-1), n.at, fmt.Sprintf("should be greater than or equal to %d", n.least)},
			specCase{n.at + " too great", fmt.Sprintf(n.spec, n.most+1), n.at, fmt.Sprintf("should be less than or equal to %d", n.most)})
	}

	const notAbsolute = "must be an absolute http or https URL with a host, such as https://hooks.example.com/invoices"
	const userinfo = "must not carry a user or password: remove what stands before the @, receivers authenticate requests by their signature"
	const fragment = "must not carry a fragment, which is never sent: remove the # and what follows it"
	const port = "must have a port from 1 to 65535, or none for the one of its scheme"
	for _, u := range []struct{ url, says string }{
		{"", notAbsolute},
		{"hooks.example.com/invoices", notAbsolute},
		{"/invoices", notAbsolute},
		{"//hooks.example.com/invoices", notAbsolute},
		{"ftp://hooks.example.com/", notAbsolute},
		{"file:///etc/passwd", notAbsolute},
		{"javascript:alert(1)", notAbsolute},
		{"https:", notAbsolute},
		{"https://", notAbsolute},
		{"https:///invoices", notAbsolute},
		{"https://:8443/invoices", notAbsolute},
		{"https:hooks.example.com", notAbsolute},
		{"https:/hooks.example.com", notAbsolute},
		{`https:\\hooks.example.com\invoices`, notAbsolute},
		{" https://hooks.example.com/", notAbsolute},
		{"https://hooks.example.com/\n", notAbsolute},
		{"https://hooks example.com/", notAbsolute},
		{"https://hooks.example.com/%zz", notAbsolute},
		{"https://[2001:db8::1/", notAbsolute},
		{"https://hooks.example.com:https/", notAbsolute},
		{"https://ledger@hooks.example.com/", userinfo},
		{"https://ledger:sample@hooks.example.com/", userinfo},
		{"https://@hooks.example.com/", userinfo},
		{"https://led%40ger@hooks.example.com/", userinfo},
		{"https://a@b@hooks.example.com/", userinfo},
		{"https://hooks.example.com#paid", fragment},
		{"https://hooks.example.com/invoices#", fragment},
		{"https://hooks.example.com:8443#paid", fragment},
		{"https://hooks.example.com/#/@a", fragment},
		{"https://hooks.example.com:0/", port},
		{"https://hooks.example.com:65536/", port},
		{"https://hooks.example.com:99999999999999999999/", port},
		{"https://[2001:db8::1]:70000/", port},
	} {
		cases = append(cases, specCase{"url " + u.url, "url: " + quoted(u.url), "spec.url", u.says})
	}

	for _, pattern := range []string{
		"", ".", "invoice.", ".paid", "invoice..paid", "invoice*", "*invoice", "invoice.p*", "**", "invoice.**", "invoice paid",
		"invoice/paid", "rechnung.bezahlt.ä", "invoice.paid\n", "invoice.?", "invoice.*\u200b",
	} {
		cases = append(cases, specCase{
			"event type " + pattern, "eventTypes: [refund.created, " + quoted(pattern) + "]", "spec.eventTypes[1]",
			"must be segments of letters, digits, _ and - joined by dots, where * stands for a whole segment: invoice.paid, invoice.*, or * for every type",
		})
	}

	for _, name := range []string{"", "Ledger", "ledger_signing", "-ledger", "ledger-", "ledger..signing", "billing/ledger"} {
		cases = append(cases, specCase{
			"Secret name " + name, "signing: {secretRef: {name: " + quoted(name) + "}}", "spec.signing.secretRef.name",
			"must be the name of a Secret in this namespace: lower-case letters, digits, - and ., beginning and ending with a letter or digit",
		})
	}
	for _, key := range []string{"", "signing key", "a/b", "schlüssel"} {
		cases = append(cases, specCase{
			"Secret entry " + key, "signing: {secretRef: {key: " + quoted(key) + "}}", "spec.signing.secretRef.key",
			"must be an entry of the Secret: letters, digits, -, _ and .; leave it out for signing-key",
		})
	}

	for _, name := range []string{"", "X Team", "X-Team:", "X-Team\n", "X-Tëam", "X-Team\x00", "(X)", "X-Team,"} {
		cases = append(cases, specCase{
			"header " + name, "headers: [{name: " + quoted(name) + ", value: v}]", "spec.headers[0].name",
			"must be a header name: letters, digits and - without spaces or colons, such as X-Team",
		})
	}
	for _, name := range []string{
		"webhook-id", "webhook-timestamp", "Webhook-Signature", "postrider-event-type", "Postrider-Attempt", "POSTRIDER-", "traceparent", "Tracestate",
		"User-Agent", "Content-Type", "Content-Encoding", "content-length", "Accept-Encoding", "HOST", "Transfer-Encoding", "Connection", "Keep-Alive", "TE", "te", "Trailer", "Upgrade", "Expect",
		"HTTP2-Settings", "Proxy-Authorization", "proxy-connection", "Proxy-",
	} {
		cases = append(cases, specCase{
			"header " + name, "headers: [{name: X-Team, value: a}, {name: " + quoted(name) + ", value: v}]", "spec.headers[1].name",
			"is set by Postrider or by HTTP itself and cannot be given: remove it or choose another name, such as one beginning with X-",
		})
	}
	for _, value := range []string{"", " ", "a\nb", "a\r\nHost: b", "a\x00", "a\x7f", " a", "a ", "\ta", "a\t", "ä", "🚚", "a\n"} {
		cases = append(cases, specCase{
			"header value " + value, "headers: [{name: X-Team, value: " + quoted(value) + "}]", "spec.headers[0].value",
			"must be printable ASCII without line breaks, control characters or spaces around it: encode anything else, for instance with base64",
		})
	}

	for _, d := range durations {
		for _, value := range slices.Concat(notDurations, d.outside) {
			cases = append(cases, specCase{d.at + " of " + value, fmt.Sprintf(d.spec, quoted(value)), d.at, d.says})
		}
		cases = append(cases, specCase{d.at + " too long", fmt.Sprintf(d.spec, "00000000000000010s"), d.at, "Too long: may not be more than 16"})
	}
	return cases
}

// notDurations are refused wherever a duration stands, by the message of that field.
var notDurations = []string{
	"", "1d", "1w", "10", "0", "s", "10 s", " 10s", "10s ", "10s\n", "-10s", "+10s", "1.5s", ".5s", "10S", "1us", "1µs", "1ns", "1s1s1s1s1s", "123456s", "PT10S", "ten", "1h-1s",
}

// durations are the fields that hold one, with their bounds.
var durations = []struct {
	at, spec, says string
	least, most    string
	between        []string // each accepted, and kept as written
	outside        []string
}{
	{
		at: "spec.timeout", spec: `timeout: %s`, least: "1s", most: "30s",
		between: []string{"1000ms", "0h0m10s", "1s500ms", "00010s"}, outside: []string{"0s", "999ms", "31s", "30s1ms", "1h", "99999h"},
		says: "must be a duration from 1s to 30s: whole numbers with the units h, m, s or ms, such as 10s or 1s500ms",
	},
	{
		at: "spec.signing.rotationWindow", spec: `signing: {rotationWindow: %s}`, least: "0s", most: "168h",
		between: []string{"1h", "60m", "1h0m0s", "24h"}, outside: []string{"168h1ms", "169h"},
		says: "must be a duration from 0s to 168h: whole numbers with the units h, m, s or ms, such as 24h for a day",
	},
	{
		at: "spec.rateLimit.per", spec: `rateLimit: {requests: 5, per: %s}`, least: "1s", most: "1h",
		between: []string{"60m", "1m"}, outside: []string{"0s", "999ms", "1h1ms", "24h"},
		says: "must be a duration from 1s to 1h: whole numbers with the units h, m, s or ms, such as 1s or 1m",
	},
	{
		at: "spec.retry.maxDuration", spec: `retry: {maxDuration: %s}`, least: "0s", most: "168h",
		between: []string{"1h", "60m", "1h0m0s"}, outside: []string{"168h1ms", "10080m1s"},
		says: "must be a duration from 0s to 168h: whole numbers with the units h, m, s or ms, such as 24h for a day",
	},
	{
		at: "spec.retry.backoff.base", spec: `retry: {backoff: {base: %s}}`, least: "100ms", most: "168h",
		between: []string{"10s"}, outside: []string{"0s", "99ms", "168h1ms"},
		says: "must be a duration from 100ms to 168h: whole numbers with the units h, m, s or ms, such as 10s",
	},
	{
		at: "spec.retry.backoff.cap", spec: `retry: {backoff: {cap: %s}}`, least: "100ms", most: "168h",
		between: []string{"6h"}, outside: []string{"0s", "99ms", "168h1ms"},
		says: "must be a duration from 100ms to 168h: whole numbers with the units h, m, s or ms, such as 6h",
	},
	{
		at: "spec.retry.schedule[1]", spec: `retry: {schedule: [1s, %s]}`, least: "100ms", most: "168h",
		between: []string{"1h", "60m", "1h0m0s"}, outside: []string{"0s", "99ms", "168h1ms"},
		says: "must be a duration from 100ms to 168h: whole numbers with the units h, m, s or ms, such as 5s, or 24h for a day",
	},
	{
		at: "spec.circuitBreaker.cooldown", spec: `circuitBreaker: {cooldown: %s}`, least: "1s", most: "24h",
		between: []string{"30s"}, outside: []string{"0s", "999ms", "24h1ms"},
		says: "must be a duration from 1s to 24h: whole numbers with the units h, m, s or ms, such as 30s",
	},
	{
		at: "spec.circuitBreaker.maxCooldown", spec: `circuitBreaker: {maxCooldown: %s}`, least: "1s", most: "24h",
		between: []string{"10m"}, outside: []string{"0s", "999ms", "24h1ms"},
		says: "must be a duration from 1s to 24h: whole numbers with the units h, m, s or ms, such as 10m",
	},
}

// long stretches a text to so many bytes.
func long(text string, bytes int) string { return text + strings.Repeat("a", bytes-len(text)) }

// quoted writes a text as YAML, whose escapes are a superset of Go's.
func quoted(text string) string { return strconv.QuoteToASCII(text) }

func list(n int, item func(int) string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = item(i)
	}
	return "[" + strings.Join(items, ", ") + "]"
}
