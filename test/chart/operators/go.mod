// The operators whose kinds the chart uses: their modules hold their CRDs, which the tests read from the module cache.
// Nothing is built from this module, and nothing of ours requires it.
module github.com/postrider/postrider/test/chart/operators

go 1.26.4

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/cloudnative-pg/cloudnative-pg v1.30.0
	github.com/kedacore/keda/v2 v2.21.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
