// Package access asks the Kubernetes API whose a bearer token is and what its owner may do, by a TokenReview and a
// SubjectAccessReview.
//
// A verdict and an outage are told apart: [ErrRefused] is what the API said, any other error means that it could not be
// asked. Nothing is remembered but by [Guard], which stands before an HTTP handler.
//
// Kubernetes' own library for this, in k8s.io/apiserver, is not used: it brings cel-go, gRPC and an OTLP exporter along,
// 41 MB of a binary of 98, and returns refusals and outages alike.
//
// It may import Kubernetes' clients, and nothing of ours. Start at [New], then [API.Whose] and [API.May].
package access
