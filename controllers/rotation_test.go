package controllers

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// testKey makes a key that one letter names.
func testKey(t testing.TB, letter string) signature.Key {
	t.Helper()
	if letter == "" {
		return signature.Key{}
	}
	key, err := signature.ParseKey([]byte(strings.Repeat(letter, 32)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// heldKeys reads keys from a text such as "B A@13:00": newest first, with an end where there is one.
func heldKeys(t testing.TB, text string) []heldKey {
	t.Helper()
	var held []heldKey
	for word := range strings.FieldsSeq(text) {
		letter, end, ends := strings.Cut(word, "@")
		k := heldKey{key: testKey(t, letter)}
		k.Sealed, k.Fingerprint = []byte(letter), k.key.Fingerprint()
		if ends {
			k.ExpiresAt = clockTime(t, end)
		}
		held = append(held, k)
	}
	return held
}

func clockTime(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.TimeOnly, text)
	if err != nil {
		t.Fatal(err)
	}
	return noon.Truncate(24 * time.Hour).Add(time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute + time.Duration(at.Second())*time.Second)
}

// keysText is the reverse of heldKeys; a key that is not sealed yet has a + before it.
func keysText(t testing.TB, keys []heldKey) string {
	t.Helper()
	var words []string
	for _, k := range keys {
		letter := "?"
		for _, l := range "ABCDEFGHIJKLMN" {
			if k.key.Equal(testKey(t, string(l))) {
				letter = string(l)
			}
		}
		if k.Sealed == nil {
			letter = "+" + letter
		}
		if !k.ExpiresAt.IsZero() {
			letter += "@" + k.ExpiresAt.Format(time.TimeOnly)
		}
		words = append(words, letter)
	}
	return strings.Join(words, " ")
}

func TestRotate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		held    string
		present string
		window  time.Duration
		at      string
		want    string
	}{
		{"the first key", "", "A", time.Hour, "12:00:00", "+A"},
		{"the same key", "A", "A", time.Hour, "12:00:00", "A"},
		{"a new key starts the window of the old one", "A", "B", time.Hour, "12:00:00", "+B A@13:00:00"},
		{"changed twice: each old one keeps its own end", "B A@13:00:00", "C", time.Hour, "12:30:00", "+C B@13:30:00 A@13:00:00"},
		{"an old key ends", "C B@13:30:00 A@13:00:00", "C", time.Hour, "13:00:00", "C B@13:30:00"},
		{"not a moment before", "C B@13:30:00 A@13:00:00", "C", time.Hour, "12:59:59", "C B@13:30:00 A@13:00:00"},
		{"a window of 0s drops the old key at once", "A", "B", 0, "12:00:00", "+B"},
		{"a window of 0s drops all old keys", "C B@13:30:00 A@13:00:00", "C", 0, "12:00:00", "C"},
		{"a key that comes back moves to the front", "B A@13:00:00", "A", time.Hour, "12:30:00", "A B@13:30:00"},
		{"and keeps the others' ends", "C B@13:20:00 A@13:00:00", "A", time.Hour, "12:30:00", "A C@13:30:00 B@13:20:00"},
		{"a shorter window ends old keys sooner", "B A@23:00:00", "B", time.Hour, "12:00:00", "B A@13:00:00"},
		{"and does not prolong them later", "B A@13:00:00", "B", time.Hour, "12:30:00", "B A@13:00:00"},
		{"a longer window gives nothing back", "B A@13:00:00", "B", 24 * time.Hour, "12:30:00", "B A@13:00:00"},
		{"without a present key the last one stays", "B A@13:00:00", "", time.Hour, "12:00:00", "B A@13:00:00"},
		{"and only ends are kept", "B A@13:00:00", "", time.Hour, "14:00:00", "B"},
		{"a shorter window without a present key changes nothing", "B A@13:00:00", "", 0, "12:00:00", "B A@13:00:00"},
		{"nothing of nothing", "", "", time.Hour, "12:00:00", ""},
		{
			"of more than ten the oldest goes",
			"J I@20:09:00 H@20:08:00 G@20:07:00 F@20:06:00 E@20:05:00 D@20:04:00 C@20:03:00 B@20:02:00 A@20:01:00", "K", 9 * time.Hour, "12:00:00",
			"+K J@21:00:00 I@20:09:00 H@20:08:00 G@20:07:00 F@20:06:00 E@20:05:00 D@20:04:00 C@20:03:00 B@20:02:00",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			held := heldKeys(t, test.held)
			before := slices.Clone(held)
			now := clockTime(t, test.at)
			got := rotate(held, testKey(t, test.present), test.window, now)
			if text := keysText(t, got); text != test.want {
				t.Errorf("rotate(%q, %s, %s) at %s\n got %q\nwant %q", test.held, test.present, test.window, test.at, text, test.want)
			}
			if !slices.EqualFunc(held, before, func(a, b heldKey) bool { return a.ExpiresAt.Equal(b.ExpiresAt) }) {
				t.Error("the caller's keys were changed")
			}
			again := rotate(got, testKey(t, test.present), test.window, now.Add(300*time.Millisecond))
			if a, b := keysText(t, again), keysText(t, got); a != b {
				t.Errorf("a second call changes something: %q, after %q", a, b)
			}
		})
	}
}

// TestEndsAreWholeSeconds keeps the row equal to what the status can show, and rotate at rest within a second.
func TestEndsAreWholeSeconds(t *testing.T) {
	t.Parallel()
	got := rotate(heldKeys(t, "A"), testKey(t, "B"), time.Hour, noon.Add(700*time.Millisecond))
	if want := noon.Add(time.Hour); !got[1].ExpiresAt.Equal(want) {
		t.Errorf("end: got %s, want %s", got[1].ExpiresAt, want)
	}
}

func TestNextEndIsTheFirst(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "A": "", "B A@13:00:00": "13:00:00", "C B@12:30:00 A@13:00:00": "12:30:00", "C B@13:30:00 A@13:00:00": "13:00:00"} {
		var keys []store.SealedKey
		for _, k := range heldKeys(t, text) {
			keys = append(keys, k.SealedKey)
		}
		got := ""
		if end := nextEnd(keys); !end.IsZero() {
			got = end.Format(time.TimeOnly)
		}
		if got != want {
			t.Errorf("nextEnd(%q): got %q, want %q", text, got, want)
		}
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	row := func(change func(*store.Endpoint)) *store.Endpoint {
		e := &store.Endpoint{ID: 1, UID: "object", NamespaceUID: "namespace"}
		change(e)
		return e
	}
	tests := []struct {
		name string
		row  *store.Endpoint
		want identity
	}{
		{"no row", nil, unheard},
		{"its own row", row(func(*store.Endpoint) {}), current},
		{"its own row, though adoptable", row(func(e *store.Endpoint) { e.Adoptable = true }), current},
		{"an earlier object in the same namespace", row(func(e *store.Endpoint) { e.UID = "earlier" }), adopts},
		{"an earlier object in an earlier namespace", row(func(e *store.Endpoint) { e.UID, e.NamespaceUID = "earlier", "earlier" }), replaces},
		{"one of an installation that was taken over", row(func(e *store.Endpoint) { e.UID, e.NamespaceUID, e.Adoptable = "earlier", "earlier", true }), adopts},
	}
	for _, test := range tests {
		if got := identify(test.row, "object", "namespace"); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}
