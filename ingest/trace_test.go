package ingest

import (
	"net/http"
	"testing"
)

func TestTraceparent(t *testing.T) {
	t.Parallel()
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	const good = "00-" + trace + "-" + parent + "-01"
	tests := []struct {
		name   string
		values []string
		want   string
	}{
		{"none", nil, ""},
		{"valid", []string{good}, good},
		{"unknown flags", []string{"00-" + trace + "-" + parent + "-ff"}, "00-" + trace + "-" + parent + "-ff"},
		{"a later version", []string{"42-" + trace + "-" + parent + "-01-more"}, good},
		{"a later version with other text", []string{"42-" + trace + "-" + parent + "-01more"}, ""},
		{"version 00 with more", []string{good + "-more"}, ""},
		{"version ff", []string{"ff-" + trace + "-" + parent + "-01"}, ""},
		{"upper case", []string{"00-0AF7651916CD43DD8448EB211C80319C-" + parent + "-01"}, ""},
		{"trace of zeros", []string{"00-00000000000000000000000000000000-" + parent + "-01"}, ""},
		{"parent of zeros", []string{"00-" + trace + "-0000000000000000-01"}, ""},
		{"short", []string{good[:54]}, ""},
		{"garbage", []string{"x"}, ""},
		{"empty", []string{""}, ""},
		{"twice", []string{good, good}, ""},
		{"other separators", []string{"00_" + trace + "_" + parent + "_01"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := traceparent(http.Header{"Traceparent": tt.values}); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
