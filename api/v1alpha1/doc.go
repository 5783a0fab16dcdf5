// Package v1alpha1 is the Kubernetes API of Postrider, group webhooks.postrider.dev, version v1alpha1.
//
// It holds the types, the markers that controller-gen turns into the CRD, and the names (conditions, reasons, states)
// that other packages share. It holds no logic: what a field means is carried out by controllers, ingest and dispatcher.
// It imports k8s.io/apimachinery alone, so that anybody can import it cheaply.
//
// Start at WebhookEndpointSpec in webhookendpoint_types.go, then WebhookEndpointStatus in webhookendpoint_status.go.
// The rules are CEL, run by the API server; validation_test.go says for each of them what is refused and with which words.
//
// +kubebuilder:object:generate=true
// +groupName=webhooks.postrider.dev
package v1alpha1
