package ingest

import (
	_ "embed"
	"net/http"
	"sync"

	"sigs.k8s.io/yaml"
)

//go:embed openapi.yaml
var openAPIText []byte

// openAPI is the description of the API as JSON. The tests hold the server's answers against it.
var openAPI = sync.OnceValues(func() ([]byte, error) { return yaml.YAMLToJSON(openAPIText) })

// serveOpenAPI answers GET /openapi.json, for anybody: it says nothing of this installation.
func serveOpenAPI(w http.ResponseWriter, r *http.Request) {
	text, err := openAPI()
	if err != nil {
		fail(r, internal(err))
		return
	}
	w.Header().Set("Content-Type", mediaTypeJSON)
	_, _ = w.Write(text) // a client that has gone cannot be told
}
