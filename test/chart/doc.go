// Package chart tests charts/postrider by rendering it with Helm's own engine, without a cluster: what is made for which
// values, that every pod passes Pod Security "restricted", and that the chart, config/ and the flags of the binary agree. Objects
// of operators are held against the CRDs of those that operators/go.mod pins.
//
// It is a module of its own, since Helm's dependencies must not become the product's. Start reading at render_test.go.
package chart
