package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	leasePoll     = time.Minute
	leasePatience = 10 * time.Second
)

// leaseOwner has the Lease of the leader's election go with the ServiceAccount that we run as, so that nothing is left of an
// installation that was removed. Helm removes the right to make another Lease before the account. Of all owners it is the one
// that we know without asking for more rights; where we run as somebody else, the Lease stays.
type leaseOwner struct {
	client          kubernetes.Interface
	namespace, name string
	poll            time.Duration
	log             *slog.Logger
}

// Start looks after the Lease until the context ends. It is no part of leading: what fails is tried again.
func (l *leaseOwner) Start(ctx context.Context) error {
	tick := time.NewTicker(l.poll)
	defer tick.Stop()
	var told string
	for {
		if err := l.own(ctx); err != nil && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			l.log.Debug("the Lease will stay when this installation is removed", "reason", told)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (l *leaseOwner) NeedLeaderElection() bool { return true }

// own names the account as an owner of the Lease, where it is not yet. Again and again: after a reinstallation the Lease is
// first one of an account that is gone, then removed, and made anew by the elector, which knows no owners.
func (l *leaseOwner) own(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leasePatience)
	defer cancel()
	leases := l.client.CoordinationV1().Leases(l.namespace)
	lease, err := leases.Get(ctx, l.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // between two leaders
	}
	if err != nil {
		return fmt.Errorf("read the Lease: %w", err)
	}
	owner, err := l.account(ctx)
	if err != nil {
		return err
	}
	if owner.UID == "" || slices.ContainsFunc(lease.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner.UID }) {
		return nil
	}
	// Merged by uid: owners that others named stay. The elector's next update meets a newer version, and reads it first.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{owner}}})
	if err == nil {
		_, err = leases.Patch(ctx, l.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("name the owner of the Lease: %w", err)
	}
	return nil
}

// account asks the API server who we are. The zero reference: no ServiceAccount of the Lease's namespace.
func (l *leaseOwner) account(ctx context.Context) (metav1.OwnerReference, error) {
	review, err := l.client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return metav1.OwnerReference{}, fmt.Errorf("ask who we are: %w", err)
	}
	user := review.Status.UserInfo
	name, found := strings.CutPrefix(user.Username, "system:serviceaccount:"+l.namespace+":")
	if !found || user.UID == "" {
		return metav1.OwnerReference{}, nil
	}
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ServiceAccount", Name: name, UID: types.UID(user.UID)}, nil
}
