package keyring_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/keyring"
)

func TestParseAccepts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file string
		want []string
	}{
		"one key":                         {line("k", 1), []string{"k"}},
		"no newline at the end":           {strings.TrimSpace(line("k", 1)), []string{"k"}},
		"comments, blanks, white space":   {"# new\n\n  " + line("k", 1) + "\t\n  # old: abc\n" + line("j", 2), []string{"k", "j"}},
		"Windows newlines":                {strings.ReplaceAll(line("k", 1)+line("j", 2), "\n", "\r\n"), []string{"k", "j"}},
		"every character a name may have": {line("Az09._-x", 1), []string{"Az09._-x"}},
		"the longest name":                {line(strings.Repeat("n", keyring.MaxNameBytes), 1), []string{strings.Repeat("n", keyring.MaxNameBytes)}},
		"names that differ in case":       {line("k", 1) + line("K", 2), []string{"k", "K"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := mustParse(t, tc.file).Names(); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestParseAcceptsAsManyKeysAsStated(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	for i := range keyring.MaxKeys {
		file.WriteString(line(fmt.Sprintf("k%d", i), byte(i)))
	}
	if got := len(mustParse(t, file.String()).Names()); got != keyring.MaxKeys {
		t.Errorf("got %d keys, want %d", got, keyring.MaxKeys)
	}
	file.WriteString(line("one-more", 200))
	if _, err := keyring.Parse([]byte(file.String())); err == nil || !strings.Contains(err.Error(), "more than 64 keys") {
		t.Errorf("one more: got %v", err)
	}
}

func TestParseRefusesWithTheLineAndTheRemedy(t *testing.T) {
	t.Parallel()
	encoded := base64.StdEncoding.EncodeToString(keyOf(9))
	for name, tc := range map[string]struct {
		file string
		says []string
	}{
		"nothing":                {"", []string{"no key", "no default", "openssl rand"}},
		"comments only":          {"# later\n\n", []string{"no key"}},
		"no colon":               {encoded + "\n", []string{"line 1", "no colon", "name:base64"}},
		"no name":                {":" + encoded, []string{"line 1", "no name"}},
		"name with a space":      {"my key:" + encoded, []string{"no name", "letters"}},
		"name with a slash":      {"a/b:" + encoded, []string{"no name"}},
		"name begins with a dot": {".a:" + encoded, []string{"no name"}},
		"name too long":          {strings.Repeat("n", keyring.MaxNameBytes+1) + ":" + encoded, []string{"no name", "1 to 32"}},
		"name not ASCII":         {"clé:" + encoded, []string{"no name"}},
		"the wrong way round":    {encoded + ":k", []string{"no name"}},
		"hex for a name":         {hex.EncodeToString(keyOf(9)) + ":" + encoded, []string{"no name"}},
		"no key behind the name": {"k:", []string{"0 bytes", "exactly 32"}},
		"16 bytes":               {"k:" + base64.StdEncoding.EncodeToString(keyOf(9)[:16]), []string{"16 bytes", "exactly 32", "openssl rand"}},
		"33 bytes":               {"k:" + base64.StdEncoding.EncodeToString(append(keyOf(9), 1)), []string{"33 bytes"}},
		"hex":                    {"k:" + hex.EncodeToString(keyOf(9)), []string{"48 bytes"}},
		"unpadded":               {"k:" + strings.TrimRight(encoded, "="), []string{"base64 with padding"}},
		"URL-safe alphabet":      {"k:" + base64.URLEncoding.EncodeToString([]byte(strings.Repeat("\xfb\xff", 16))), []string{"base64"}},
		"loose last bits":        {"k:" + encoded[:42] + "N=", []string{"base64"}},
		"space within":           {"k: " + encoded, []string{"base64"}},
		"carriage return within": {"k:" + encoded[:8] + "\r" + encoded[8:], []string{"base64"}},
		"zeroes":                 {"k:" + base64.StdEncoding.EncodeToString(make([]byte, 32)), []string{"placeholder"}},
		"one byte repeated":      {"k:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("A", 32))), []string{"placeholder"}},
		"a name twice":           {line("k", 1) + "\n" + line("k", 2), []string{"line 3", "name is that of line 1"}},
		"a key twice":            {line("k", 1) + line("j", 1), []string{"line 2", "key is that of line 1"}},
		"too long a file":        {strings.Repeat("#", keyring.MaxFileBytes+1), []string{"at most 65536"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ring, err := keyring.Parse([]byte(tc.file))
			if err == nil {
				t.Fatalf("got %v, want an error", ring)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("message %q does not say %q", err, want)
				}
			}
			showsNothingOf(t, err, tc.file)
		})
	}
}

func TestParseReportsAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := keyring.Parse([]byte("nothing\n# fine\n:x\n" + line("k", 1) + "j:!!\n"))
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{"line 1: there is no colon", "line 3: what stands before the colon", "line 5: what follows the colon"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in:\n%v", want, err)
		}
	}
	if got := strings.Count(err.Error(), "\n") + 1; got != 3 {
		t.Errorf("got %d problems, want 3:\n%v", got, err)
	}
}

// showsNothingOf fails if a message repeats six characters in a row of a file's
// names or keys. Words of the messages themselves are passed over.
func showsNothingOf(t *testing.T, err error, file string) {
	t.Helper()
	for i := 0; i+6 <= len(file) && i < 256; i++ {
		part := file[i : i+6]
		if strings.Trim(part, "#\n ") != "" && strings.Contains(err.Error(), part) {
			t.Fatalf("message %q shows %q of the file", err, part)
		}
	}
}

func TestGenerateMakesALineThatParses(t *testing.T) {
	t.Parallel()
	first, err := keyring.Generate("2026-08")
	if err != nil {
		t.Fatal(err)
	}
	second, err := keyring.Generate("2025-11")
	if err != nil {
		t.Fatal(err)
	}
	if first[len("2026-08:"):] == second[len("2025-11:"):] {
		t.Fatal("two keys are the same")
	}
	ring := mustParse(t, first, second)
	if got, want := ring.Names(), []string{"2026-08", "2025-11"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, name := range []string{"", "a b", "a:b", "a\nb", "-a", strings.Repeat("n", keyring.MaxNameBytes+1)} {
		if got, err := keyring.Generate(name); err == nil || got != "" {
			t.Errorf("Generate(%q): got no error", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		line("k", 1), line("k", 1) + "# c\n\n" + line("j", 2), line("k", 1) + line("k", 1),
		"", "k", "k:", ":", "k:!", "k:" + strings.Repeat("A", 43) + "=", "\xef\xbb\xbf" + line("k", 1), "a:b:c\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		ring, err := keyring.Parse(file)
		if (ring == nil) == (err == nil) {
			t.Fatalf("keyring %v and error %v", ring, err)
		}
		if err != nil {
			return
		}
		if len(ring.Names()) == 0 || ring.Names()[0] != ring.Primary() {
			t.Fatalf("names %q, primary %q", ring.Names(), ring.Primary())
		}
		sealed, err := ring.Seal([]byte("x"), "place")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ring.Open(sealed, "place"); err != nil || string(got) != "x" {
			t.Fatalf("got %q and %v", got, err)
		}
	})
}
