package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What must not happen while pods are replaced is found, whatever happens besides.
func TestPodsAreJudgedByWhatWasSeen(t *testing.T) {
	t.Parallel()
	ready := func(part, image string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: part + "-" + image, Labels: map[string]string{"app.kubernetes.io/component": part}, UID: types.UID(part + image)},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Image: image}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	both := []corev1.Pod{ready("postgres", "15")}
	for _, part := range parts {
		both = append(both, ready(part, "old"), ready(part, "new"))
	}
	with := func(alter func(pods []corev1.Pod) []corev1.Pod) []corev1.Pod {
		pods := make([]corev1.Pod, len(both))
		for i := range both {
			both[i].DeepCopyInto(&pods[i])
		}
		return alter(pods)
	}
	for _, c := range []struct {
		name  string
		looks [][]corev1.Pod
		want  string // in the error; empty: there is none
	}{
		{"side by side", [][]corev1.Pod{both}, ""},
		{"the old one was going already", [][]corev1.Pod{with(func(pods []corev1.Pod) []corev1.Pod {
			pods[3].DeletionTimestamp = &metav1.Time{}
			return pods
		})}, "pod of the dispatcher were never seen"},
		{"the new one came after the old one had gone", [][]corev1.Pod{
			with(func(pods []corev1.Pod) []corev1.Pod { return append(pods[:5], pods[6:]...) }),
			with(func(pods []corev1.Pod) []corev1.Pod { return append(pods[:6], pods[7:]...) }),
		}, "pod of the ingest were never seen"},
		{"a container was started again", [][]corev1.Pod{both, with(func(pods []corev1.Pod) []corev1.Pod {
			pods[1].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "controller", RestartCount: 2}}
			return pods
		}), both}, "controller-old a container was started again: controller × 2"},
		{"an init container was started again", [][]corev1.Pod{with(func(pods []corev1.Pod) []corev1.Pod {
			pods[2].Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "migrate", RestartCount: 1}}
			return pods
		})}, "migrate × 1"},
		{"Postgres was replaced", [][]corev1.Pod{both, with(func(pods []corev1.Pod) []corev1.Pod {
			pods[0].UID = "another"
			return pods
		})}, "2 pods of Postgres"},
	} {
		s := newSight()
		for _, pods := range c.looks {
			s.look(pods)
		}
		err := s.judge()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}
