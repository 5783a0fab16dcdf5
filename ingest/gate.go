package ingest

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/access"
)

// A gate says who may do what where.
type gate interface {
	// admit returns the caller and the namespace that its request is about, or a *problem: 401, 403, 422 or 503.
	admit(r *http.Request, verb string) (caller, error)
	close()
}

// caller is an admitted request's origin.
type caller struct {
	name      string // as Kubernetes names it
	namespace string // that the request is about
}

// clusterGate lets in whom the Kubernetes API authenticates and authorises.
type clusterGate struct {
	server      *apiServer
	api         *access.API
	tokens      *verdicts[identity]
	permissions *verdicts[permission]
}

func newClusterGate(kubernetes *rest.Config, config ReviewConfig, m *metrics, log reviewLog) (*clusterGate, error) {
	api, err := access.New(kubernetes, config.Timeout)
	if err != nil {
		return nil, err
	}
	server := newAPIServer(config, m, log)
	return &clusterGate{
		server: server, api: api,
		tokens:      newVerdicts[identity](config, server, "token"),
		permissions: newVerdicts[permission](config, server, "access"),
	}, nil
}

func (g *clusterGate) close() {
	g.server.close()
	g.api.Close()
}

func (g *clusterGate) admit(r *http.Request, verb string) (caller, error) {
	token, p := bearerToken(r.Header)
	if p != nil {
		return caller{}, p
	}
	who, err := g.tokens.judge(tokenDigest(token), whose(g.api, token))
	switch {
	case errors.Is(err, errRefused):
		return caller{}, unauthenticated("The token is not valid, has expired, or is not meant for the audience "+
			Audience+": ask for one with kubectl create token --audience="+Audience+
			" or a projected serviceAccountToken volume.", true)
	case err != nil:
		return caller{}, cannotReview(err)
	}
	namespace, p := namespaceOf(r.URL, who.namespace)
	if p != nil {
		return caller{}, p
	}
	_, err = g.permissions.judge(who.digest(verb, namespace), may(g.api, who, verb, namespace))
	switch {
	case errors.Is(err, errRefused):
		return caller{name: who.Name, namespace: namespace}, forbidden("The credential is good, but its user may not " + verb + " " +
			resource + "/" + subresource + "." + group + " in the namespace " + namespace +
			": bind it a role that allows this, such as postrider-producer.")
	case err != nil:
		return caller{}, cannotReview(err)
	}
	return caller{name: who.Name, namespace: namespace}, nil
}

func cannotReview(err error) *problem {
	reason := "reviews-away"
	if errors.Is(err, errBusy) {
		reason = "reviews-busy"
	}
	return unavailable(reason, "The credential cannot be reviewed at the moment.", err)
}

// watchedGate lets nobody post to namespaces that this installation does not serve: nobody would deliver.
type watchedGate struct {
	gate
	namespaces []string
}

func (g watchedGate) admit(r *http.Request, verb string) (caller, error) {
	from, err := g.gate.admit(r, verb)
	if err == nil && !slices.Contains(g.namespaces, from.namespace) {
		return from, forbidden("The credential is good, but this installation does not serve the namespace " + from.namespace + ".")
	}
	return from, err
}

// openGate lets everybody in, for development.
type openGate struct{}

func (openGate) close() {}

func (openGate) admit(r *http.Request, _ string) (caller, error) {
	namespace, p := namespaceOf(r.URL, "")
	if p != nil {
		return caller{}, p
	}
	return caller{name: "anonymous", namespace: namespace}, nil
}

// maxToken bounds what is hashed and sent on; ServiceAccount tokens have about 1 KiB.
const maxToken = 16 << 10

func bearerToken(header http.Header) (string, *problem) {
	values := header.Values("Authorization")
	if len(values) == 0 {
		return "", unauthenticated("Send a ServiceAccount token of the audience "+Audience+
			" as Authorization: Bearer.", false)
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(values[0]), " ")
	token = strings.TrimSpace(token)
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken ||
		strings.ContainsAny(token, " \t,") {
		return "", unauthenticated("The Authorization header must be one bearer token.", true)
	}
	return token, nil
}

// namespaceOf is the credential's namespace, unless ?namespace= names another.
func namespaceOf(u *url.URL, own string) (string, *problem) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", malformed("The query of the URL cannot be read.")
	}
	values, given := query["namespace"]
	switch {
	case !given && own == "":
		return "", invalid(fieldError{"namespace", "is required in the query, as ?namespace=NAME: the credential belongs to none"})
	case !given:
		return own, nil
	case len(values) > 1:
		return "", invalid(fieldError{"namespace", "must be given once in the query"})
	case len(validation.IsDNS1123Label(values[0])) > 0:
		return "", invalid(fieldError{"namespace", "must be the name of a namespace: 1 to 63 characters of a-z, 0-9 and -, beginning and ending with a letter or digit"})
	}
	return values[0], nil
}

// permission is the value of an allowing answer to an access review: there is nothing more to it.
type permission struct{}

func (permission) validUntil() time.Time { return time.Time{} }
