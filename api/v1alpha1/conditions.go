package v1alpha1

// The conditions of a WebhookEndpoint. They follow kstatus, so that kubectl wait, Flux and Helm understand them.
const (
	// ConditionReady is True when the store matches this generation and signing works.
	ConditionReady = "Ready"
	// ConditionDelivering is True when the last attempts succeeded or there were none.
	ConditionDelivering = "Delivering"
	// ConditionReconciling is present, and then True, while the status is on its way to this generation.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is present, and then True, while no retry can help until the spec changes.
	ConditionStalled = "Stalled"
)

// The reasons of Ready.
const (
	// ReasonSynced (True): the store matches this generation.
	ReasonSynced = "Synced"
	// ReasonSecretNotFound (False): the Secret of signing.secretRef does not exist.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonSecretKeyMissing (False): the Secret has no entry signing.secretRef.key.
	ReasonSecretKeyMissing = "SecretKeyMissing"
	// ReasonInvalidSigningKey (False): what the Secret holds is no signing key.
	ReasonInvalidSigningKey = "InvalidSigningKey"
	// ReasonURLNotAllowed (False): the installation's policy forbids the url.
	ReasonURLNotAllowed = "URLNotAllowed"
	// ReasonLimitExceeded (False): a value is above the installation's ceiling.
	ReasonLimitExceeded = "LimitExceeded"
	// ReasonInvalidSpec (False): the spec contradicts itself in a way that the API server could not see.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonGone (False): the receiver answered 410; nothing is sent until the spec changes.
	ReasonGone = "Gone"
	// ReasonAutoDisabled (False): Postrider disabled the endpoint because nothing got through.
	ReasonAutoDisabled = "AutoDisabled"
	// ReasonStoreUnavailable (Unknown): the store cannot be reached.
	ReasonStoreUnavailable = "StoreUnavailable"
)

// The reasons of Delivering.
const (
	// ReasonSucceeding (True): the last attempts succeeded.
	ReasonSucceeding = "Succeeding"
	// ReasonNoAttempts (True): there were no attempts yet.
	ReasonNoAttempts = "NoAttempts"
	// ReasonFailing (False): the last attempts failed.
	ReasonFailing = "Failing"
	// ReasonCircuitOpen (False): so many attempts failed that nothing but a probe is sent.
	ReasonCircuitOpen = "CircuitOpen"
	// ReasonPaused (False): the spec says state: Paused, or an operator has paused the namespace or the whole installation.
	// The message says who, since when and why, and how to resume.
	ReasonPaused = "Paused"
	// ReasonDisabled (False): the spec says state: Disabled.
	ReasonDisabled = "Disabled"
)

// ReasonProgressing is the reason of Reconciling. Stalled carries the reason of Ready.
const ReasonProgressing = "Progressing"
