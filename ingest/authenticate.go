package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"
	"time"

	"github.com/postrider/postrider/access"
)

// Audience that a token must have been issued for. A default token, which any pod could pass on, has another one.
const Audience = "postrider"

// identity is whom a token belongs to.
type identity struct {
	access.Identity
	namespace string    // of a ServiceAccount; "" for any other user
	expires   time.Time // of the token; zero: not known
}

func (i identity) validUntil() time.Time { return i.expires }

// whose returns the question whose token it is.
func whose(api *access.API, token string) func(context.Context) (identity, error) {
	return func(ctx context.Context) (identity, error) {
		who, err := api.Whose(ctx, token, Audience)
		if err != nil {
			return identity{}, err
		}
		return identity{Identity: who, namespace: who.Namespace(), expires: expiryOf(token)}, nil
	}
}

// expiryOf reads the exp claim of a JWT without verifying it: the API server has. Zero where there is none.
func expiryOf(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Expires float64 `json:"exp"`
	}
	if json.Unmarshal(text, &claims) != nil || claims.Expires <= 0 || claims.Expires > math.MaxInt32*100 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Expires), 0)
}

func tokenDigest(token string) digest { return sha256.Sum256([]byte(token)) }
