package controllers

import (
	"errors"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/postrider/postrider/api/v1alpha1"
)

func TestMoreThanATenthIsTooMany(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		gone, rows int
		want       bool
	}{
		{0, 0, false},
		{1, 1, false},
		{5, 5, false},
		{6, 6, true},
		{6, 59, true},
		{6, 60, false},
		{100, 1000, false},
		{101, 1000, true},
		{1000, 1000, true},
	} {
		if got := tooMany(test.gone, test.rows); got != test.want {
			t.Errorf("%d of %d: got %v, want %v", test.gone, test.rows, got, test.want)
		}
	}
}

// TestOnlyTheObjectsOwnNotFoundCounts: with its CRD away an object answers 404 too, and is not gone for good.
func TestOnlyTheObjectsOwnNotFoundCounts(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "webhookendpoints"}
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"the object":        {apierrors.NewNotFound(resource, "ledger"), true},
		"another object":    {apierrors.NewNotFound(resource, "other"), false},
		"the resource":      {apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", resource, "ledger", "404 page not found", 0, true), false},
		"forbidden":         {apierrors.NewForbidden(resource, "ledger", errors.New("no")), false},
		"something else":    {errors.New("not found"), false},
		"nothing, actually": {nil, false},
	} {
		if got := objectNotFound(test.err, "ledger"); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
