package signature_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/signature"
)

func headers(id, timestamp, signatures string) http.Header {
	h := http.Header{}
	h.Set(signature.HeaderID, id)
	h.Set(signature.HeaderTimestamp, timestamp)
	h.Set(signature.HeaderSignature, signatures)
	return h
}

func TestVerifyAcceptsWhatIsSignedAndFresh(t *testing.T) {
	t.Parallel()
	key, previous := mustKey(t, knownSecret), mustKey(t, whsec(32))
	sign := func(keys ...signature.Key) string {
		return signature.Sign(knownID, knownTime, []byte(knownBody), keys...)
	}
	for name, tc := range map[string]struct {
		keys       []signature.Key
		signatures string
		now        time.Duration // after knownTime
		tolerance  time.Duration
	}{
		"the known answer":                    {keys: []signature.Key{key}, signatures: knownSum},
		"signed with two keys, first one":     {keys: []signature.Key{key}, signatures: sign(key, previous)},
		"signed with two keys, second one":    {keys: []signature.Key{previous}, signatures: sign(key, previous)},
		"verified with two keys, second one":  {keys: []signature.Key{previous, key}, signatures: knownSum},
		"verified with a zero key beside":     {keys: []signature.Key{{}, key}, signatures: knownSum},
		"unknown versions before and behind":  {keys: []signature.Key{key}, signatures: "v1a,abc= " + knownSum + " v2,xyz"},
		"garbage before":                      {keys: []signature.Key{key}, signatures: ", v1 v1, , " + knownSum},
		"the last one looked at":              {keys: []signature.Key{key}, signatures: strings.Repeat("v9,x ", signature.MaxSignatures-1) + knownSum},
		"exactly as old as tolerated":         {keys: []signature.Key{key}, signatures: knownSum, now: 5 * time.Minute},
		"exactly as far ahead as tolerated":   {keys: []signature.Key{key}, signatures: knownSum, now: -5 * time.Minute},
		"six minutes with a tolerance of ten": {keys: []signature.Key{key}, signatures: knownSum, now: 6 * time.Minute, tolerance: 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := &signature.Verifier{Keys: tc.keys, Tolerance: tc.tolerance, Now: func() time.Time { return knownTime.Add(tc.now) }}
			if err := v.Verify(headers(knownID, "1614265330", tc.signatures), []byte(knownBody)); err != nil {
				t.Errorf("got %v, want nil", err)
			}
		})
	}
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	key := mustKey(t, knownSecret)
	type request struct {
		header http.Header
		body   string
		keys   []signature.Key
		now    time.Time
	}
	for name, tc := range map[string]struct {
		change func(*request)
		want   error
	}{
		"altered body":               {func(r *request) { r.body = `{"test": 2432232315}` }, signature.ErrNoMatch},
		"body cut short":             {func(r *request) { r.body = r.body[1:] }, signature.ErrNoMatch},
		"body with a newline more":   {func(r *request) { r.body += "\n" }, signature.ErrNoMatch},
		"empty body":                 {func(r *request) { r.body = "" }, signature.ErrNoMatch},
		"another id":                 {func(r *request) { r.header.Set("webhook-id", "msg_other") }, signature.ErrNoMatch},
		"another timestamp":          {func(r *request) { r.header.Set("webhook-timestamp", "1614265331") }, signature.ErrNoMatch},
		"another key":                {func(r *request) { r.keys = []signature.Key{mustKey(t, whsec(32))} }, signature.ErrNoMatch},
		"altered signature":          {func(r *request) { r.header.Set("webhook-signature", "v1,h"+knownSum[4:]) }, signature.ErrNoMatch},
		"signature cut short":        {func(r *request) { r.header.Set("webhook-signature", knownSum[:len(knownSum)-1]) }, signature.ErrNoMatch},
		"empty signature":            {func(r *request) { r.header.Set("webhook-signature", "v1,") }, signature.ErrNoMatch},
		"unknown version":            {func(r *request) { r.header.Set("webhook-signature", "v2"+knownSum[2:]) }, signature.ErrNoMatch},
		"asymmetric version":         {func(r *request) { r.header.Set("webhook-signature", "v1a"+knownSum[2:]) }, signature.ErrNoMatch},
		"version without a comma":    {func(r *request) { r.header.Set("webhook-signature", "v1"+knownSum[3:]) }, signature.ErrNoMatch},
		"signatures without a space": {func(r *request) { r.header.Set("webhook-signature", knownSum+","+knownSum) }, signature.ErrNoMatch},
		"behind too many signatures": {func(r *request) {
			r.header.Set("webhook-signature", strings.Repeat("v9,x ", signature.MaxSignatures)+knownSum)
		}, signature.ErrNoMatch},
		"six minutes old":                {func(r *request) { r.now = knownTime.Add(6 * time.Minute) }, signature.ErrTooOld},
		"a second too old":               {func(r *request) { r.now = knownTime.Add(5*time.Minute + time.Second) }, signature.ErrTooOld},
		"six minutes ahead":              {func(r *request) { r.now = knownTime.Add(-6 * time.Minute) }, signature.ErrTooNew},
		"no id":                          {func(r *request) { r.header.Del("webhook-id") }, signature.ErrMissingHeader},
		"no timestamp":                   {func(r *request) { r.header.Del("webhook-timestamp") }, signature.ErrMissingHeader},
		"no signature":                   {func(r *request) { r.header.Del("webhook-signature") }, signature.ErrMissingHeader},
		"empty id":                       {func(r *request) { r.header.Set("webhook-id", "") }, signature.ErrMissingHeader},
		"two ids":                        {func(r *request) { r.header.Add("webhook-id", "msg_other") }, signature.ErrInvalidHeader},
		"two signature headers":          {func(r *request) { r.header.Add("webhook-signature", knownSum) }, signature.ErrInvalidHeader},
		"an id with a full stop":         {func(r *request) { r.header.Set("webhook-id", "msg.1") }, signature.ErrInvalidHeader},
		"an id of 2 KiB":                 {func(r *request) { r.header.Set("webhook-id", strings.Repeat("m", 2048)) }, signature.ErrInvalidHeader},
		"timestamp with a plus":          {func(r *request) { r.header.Set("webhook-timestamp", "+1614265330") }, signature.ErrInvalidHeader},
		"timestamp with a leading zero":  {func(r *request) { r.header.Set("webhook-timestamp", "01614265330") }, signature.ErrInvalidHeader},
		"timestamp with a fraction":      {func(r *request) { r.header.Set("webhook-timestamp", "1614265330.5") }, signature.ErrInvalidHeader},
		"timestamp in words":             {func(r *request) { r.header.Set("webhook-timestamp", "now") }, signature.ErrInvalidHeader},
		"timestamp before the epoch":     {func(r *request) { r.header.Set("webhook-timestamp", "-1614265330") }, signature.ErrInvalidHeader},
		"timestamp beyond all years":     {func(r *request) { r.header.Set("webhook-timestamp", "9223372036854775807") }, signature.ErrInvalidHeader},
		"timestamp beyond 64 bits":       {func(r *request) { r.header.Set("webhook-timestamp", "92233720368547758070") }, signature.ErrInvalidHeader},
		"timestamp in milliseconds":      {func(r *request) { r.header.Set("webhook-timestamp", "1614265330000") }, signature.ErrInvalidHeader},
		"no key":                         {func(r *request) { r.keys = nil }, signature.ErrNoKey},
		"a zero key only":                {func(r *request) { r.keys = []signature.Key{{}} }, signature.ErrNoKey},
		"no key, though nothing is sent": {func(r *request) { r.keys, r.header = nil, nil }, signature.ErrNoKey},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := request{headers(knownID, "1614265330", knownSum), knownBody, []signature.Key{key}, knownTime}
			tc.change(&r)
			v := &signature.Verifier{Keys: r.keys, Now: func() time.Time { return r.now }}
			err := v.Verify(r.header, []byte(r.body))
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if strings.Contains(err.Error(), "g0hM9") {
				t.Errorf("message %q shows the expected signature", err)
			}
		})
	}
}

// TestAShiftedFullStopDoesNotVerify is the attack behind the rule on ids: what
// is signed is one string, and moving its full stops makes another request of it.
func TestAShiftedFullStopDoesNotVerify(t *testing.T) {
	t.Parallel()
	key := mustKey(t, knownSecret)
	fresh := knownTime.Add(24 * time.Hour)
	body := signature.Timestamp(fresh) + ".pay me again"
	stolen := signature.Sign("msg_1", knownTime, []byte(body), key)

	v := &signature.Verifier{Keys: []signature.Key{key}, Now: func() time.Time { return fresh }}
	header := headers("msg_1."+signature.Timestamp(knownTime), signature.Timestamp(fresh), stolen)
	if err := v.Verify(header, []byte("pay me again")); !errors.Is(err, signature.ErrInvalidHeader) {
		t.Errorf("got %v, want %v", err, signature.ErrInvalidHeader)
	}
}

func TestTheZeroVerifierUsesTheRealClock(t *testing.T) {
	t.Parallel()
	key := mustKey(t, knownSecret)
	v := &signature.Verifier{Keys: []signature.Key{key}}
	for age, want := range map[time.Duration]error{
		0: nil, 4 * time.Minute: nil, -4 * time.Minute: nil,
		6 * time.Minute: signature.ErrTooOld, -6 * time.Minute: signature.ErrTooNew,
	} {
		at := time.Now().Add(-age)
		err := v.Verify(headers("msg_1", signature.Timestamp(at), signature.Sign("msg_1", at, nil, key)), nil)
		if !errors.Is(err, want) {
			t.Errorf("age %v: got %v, want %v", age, err, want)
		}
	}
}

// FuzzVerify looks for a header that verifies without being ours, and for panics.
func FuzzVerify(f *testing.F) {
	for _, seed := range []struct{ id, timestamp, signatures, body string }{
		{knownID, "1614265330", knownSum, knownBody},
		{knownID, "1614265330", "v1a,x v2,y " + knownSum, knownBody},
		{"msg.1", "1614265330", knownSum, knownBody},
		{"", "", "", ""},
		{knownID, "+1614265330", "v1,,v1,", "\x00\xff"},
		{knownID, "9223372036854775807", strings.Repeat(" ", 100), ""},
	} {
		f.Add(seed.id, seed.timestamp, seed.signatures, []byte(seed.body))
	}
	key := mustKey(f, knownSecret)
	v := &signature.Verifier{Keys: []signature.Key{key}, Now: func() time.Time { return knownTime }}
	f.Fuzz(func(t *testing.T, id, timestamp, signatures string, body []byte) {
		if v.Verify(headers(id, timestamp, signatures), body) != nil {
			return
		}
		var seconds int64
		if _, err := fmt.Sscanf(timestamp, "%d", &seconds); err != nil {
			t.Fatalf("verified with the timestamp %q", timestamp)
		}
		if want := signature.Sign(id, time.Unix(seconds, 0), body, key); !strings.Contains(signatures, want) {
			t.Fatalf("verified without our signature: id %q, timestamp %q, signatures %q", id, timestamp, signatures)
		}
	})
}

// FuzzSignThenVerify holds for every body, and never for an altered one.
func FuzzSignThenVerify(f *testing.F) {
	for _, body := range []string{"", knownBody, "\U0001F4EE", "\x00\xff\xfe", "1614265330.{}"} {
		f.Add([]byte(body), uint16(0), byte(1))
	}
	key := mustKey(f, knownSecret)
	v := &signature.Verifier{Keys: []signature.Key{key}, Now: func() time.Time { return knownTime }}
	f.Fuzz(func(t *testing.T, body []byte, at uint16, flip byte) {
		header := headers(knownID, signature.Timestamp(knownTime), signature.Sign(knownID, knownTime, body, key))
		if err := v.Verify(header, body); err != nil {
			t.Fatalf("our own signature: %v", err)
		}
		if len(body) == 0 || flip == 0 {
			return
		}
		body[int(at)%len(body)] ^= flip
		if err := v.Verify(header, body); !errors.Is(err, signature.ErrNoMatch) {
			t.Fatalf("altered body: got %v, want %v", err, signature.ErrNoMatch)
		}
	})
}
