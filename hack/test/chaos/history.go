package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/release/manifests"
)

const (
	historyTimeout = 3 * time.Minute
	maxFrame       = 8 << 20
	endMarkerName  = "chaos-is-over"

	podsPath          = "/api/v1/pods"
	secretsPath       = "/api/v1/secrets"
	conversationsPath = "/apis/parley.dev/v1alpha1/conversations"
)

// version is one change of an object, with the fields that are checked.
type version struct {
	Type   string `json:"type"`
	Object struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			InitialUserMsg string `json:"initialUserMsg"`
		} `json:"spec"`
		Status struct {
			Attempt      int `json:"attempt"`
			FirstAttempt int `json:"firstAttempt"`
		} `json:"status"`
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"object"`
}

// attemptID identifies an attempt of a Conversation.
type attemptID struct {
	conversation types.UID
	name         string // namespace and name of the Conversation
	number       int
}

// attemptOf returns the attempt to which a pod or a Secret of a session belongs.
func attemptOf(object *metav1.ObjectMeta) attemptID {
	number, _ := strconv.Atoi(object.Labels[v1alpha1.LabelAttempt])
	return attemptID{uidOf(object), object.Namespace + "/" + metav1.GetControllerOfNoCopy(object).Name, number}
}

// history collects facts from the versions of all objects.
type history struct {
	report *report
	// podsOf maps each attempt to its pods, and claims to the pods that its Secrets claimed. madeOf maps
	// each first message to its Conversations. The map last contains the number of the last attempt of
	// each Conversation.
	podsOf, claims map[attemptID]map[types.UID]bool
	madeOf         map[string]map[types.UID]bool
	last           map[types.UID]int
	versions       int
	// owners maps the UID of each pod to the UIDs of the Conversations that owned the pod. deleted
	// contains the deleted pods.
	owners  map[types.UID]map[types.UID]bool
	deleted map[types.UID]bool
	// automatic contains the attempts that no user requested.
	automatic map[attemptID]bool
}

// checkHistory checks every version of the objects of Parley and its users, even if an object
// existed only for a moment. It restarts the API server without a watch cache, so that a watch
// reads the old versions from etcd, where nothing was compacted.
func (i *installation) checkHistory(ctx context.Context, r *report) (*history, error) {
	i.apiServer.stop()
	i.plane.APIServerArgs = append(i.plane.APIServerArgs, "--watch-cache=false")
	process, err := i.plane.APIServer()
	if err != nil {
		return nil, err
	}
	if i.apiServer, err = supervise(process, i.logs()); err != nil {
		return nil, err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := i.apiServer.await(starting); err != nil {
		return nil, err
	}
	h := &history{report: r, podsOf: map[attemptID]map[types.UID]bool{}, claims: map[attemptID]map[types.UID]bool{},
		madeOf: map[string]map[types.UID]bool{}, last: map[types.UID]int{}, owners: map[types.UID]map[types.UID]bool{},
		deleted: map[types.UID]bool{}, automatic: map[attemptID]bool{}}
	if err := i.readAll(ctx, h); err != nil {
		return nil, err
	}
	for key, pods := range h.podsOf {
		if len(pods) > 1 {
			r.violation(checkPods, "attempt %d of %s (%s) has had %d pods", key.number, key.name, key.conversation, len(pods))
		}
	}
	for marker, made := range h.madeOf {
		if len(made) > 1 {
			r.violation(checkOnce, "%s was created %d times", marker, len(made))
		}
	}
	r.note(checkPods, "%d attempts of %d conversations", len(h.podsOf), len(h.last))
	r.note(checkOnce, "%d requests, %d versions of all objects", len(h.madeOf), h.versions)
	if len(h.podsOf) == 0 || len(h.madeOf) == 0 {
		return nil, errors.New("the history of pods or Conversations is empty")
	}
	return h, nil
}

// readAll reads all versions of the objects of Parley and its users. Of all other objects, it reads
// only the current version.
func (i *installation) readAll(ctx context.Context, h *history) error {
	config := rest.CopyConfig(i.adminConf)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.NegotiatedSerializer = clientscheme.Codecs.WithoutConversion()
	raw, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return err
	}
	read := map[string]bool{"/apis/events.k8s.io/v1/events": true} // the same objects as in /api/v1/events
	for path, last := range endMarkers() {
		read[path] = true
		if err := i.readHistory(ctx, raw, path, last, h); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	paths, err := i.kinds()
	if err != nil {
		return err
	}
	for _, path := range paths {
		if read[path] {
			continue
		}
		text, err := raw.Get().AbsPath(path).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		h.report.checkForKeys(text, path)
	}
	return nil
}

// endMarkers are objects of the kinds whose history is read. Each marker is created after all other
// changes, so it ends the history of its kind.
func endMarkers() map[string]client.Object {
	named := metav1.ObjectMeta{Namespace: peopleNamespace, Name: endMarkerName}
	return map[string]client.Object{
		podsPath: &corev1.Pod{ObjectMeta: named,
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "none", Image: "none"}}}},
		secretsPath: &corev1.Secret{ObjectMeta: named},
		conversationsPath: &v1alpha1.Conversation{ObjectMeta: named,
			Spec: v1alpha1.ConversationSpec{UserSettingsName: endMarkerName, Suspend: true}},
		"/apis/parley.dev/v1alpha1/usersettings": &v1alpha1.UserSettings{ObjectMeta: named},
		"/api/v1/configmaps":                     &corev1.ConfigMap{ObjectMeta: named},
		"/api/v1/events": &corev1.Event{ObjectMeta: named,
			InvolvedObject: corev1.ObjectReference{Namespace: peopleNamespace}},
		"/api/v1/persistentvolumeclaims": &corev1.PersistentVolumeClaim{ObjectMeta: named,
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}},
		"/apis/coordination.k8s.io/v1/leases": &coordinationv1.Lease{ObjectMeta: named},
	}
}

func (i *installation) kinds() (paths []string, err error) {
	client, err := discovery.NewDiscoveryClientForConfig(i.adminConf)
	if err != nil {
		return nil, err
	}
	lists, err := client.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	for _, list := range lists {
		root := "/apis/" + list.GroupVersion
		if list.GroupVersion == "v1" {
			root = "/api/v1"
		}
		for _, kind := range list.APIResources {
			if slices.Contains(kind.Verbs, "list") {
				paths = append(paths, root+"/"+kind.Name)
			}
		}
	}
	return paths, nil
}

func (i *installation) readHistory(ctx context.Context, raw rest.Interface, path string, last client.Object,
	h *history) error {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	err := manifests.Persist(ctx, func(ctx context.Context) error {
		return client.IgnoreAlreadyExists(i.admin.Create(ctx, last))
	})
	if err != nil {
		return err
	}
	stream, err := raw.Get().AbsPath(path).Param("watch", "1").Param("resourceVersion", "1").Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	return h.read(stream, path)
}

// read reads the stream of a watch up to the end marker.
func (h *history) read(stream io.Reader, path string) error {
	frames := bufio.NewScanner(stream)
	frames.Buffer(nil, maxFrame)
	for frames.Scan() {
		var v version
		if err := json.Unmarshal(frames.Bytes(), &v); err != nil {
			return err
		}
		if v.Type == "ERROR" {
			return errors.New(v.Object.Message)
		}
		if v.Object.Metadata.Name == endMarkerName {
			return nil
		}
		h.take(path, &v, frames.Bytes())
	}
	if err := frames.Err(); err != nil {
		return err
	}
	return errors.New("the history ended before its end marker")
}

func (h *history) take(path string, v *version, text []byte) {
	h.versions++
	m := v.Object.Metadata
	name := path + " " + m.Namespace + "/" + m.Name
	switch path {
	case secretsPath:
		_, pod, isClaim := strings.Cut(m.Annotations[v1alpha1.AnnotationPod], "/")
		if isClaim && uidOf(&m) != "" {
			put(h.claims, attemptOf(&m), types.UID(pod))
		}
		text = withoutData(text)
	case podsPath:
		if owner := uidOf(&m); owner != "" {
			put(h.podsOf, attemptOf(&m), m.UID)
			put(h.owners, m.UID, owner)
		}
		if v.Type == string(watch.Deleted) {
			h.deleted[m.UID] = true
		}
	case conversationsPath:
		put(h.madeOf, m.Namespace+" "+v.Object.Spec.InitialUserMsg, m.UID)
		status := v.Object.Status
		if before := h.last[m.UID]; status.Attempt < before {
			h.report.violation(checkAttempts, "%s went from attempt %d back to %d", name, before, status.Attempt)
		}
		h.last[m.UID] = status.Attempt
		if status.Attempt > max(1, status.FirstAttempt) {
			h.automatic[attemptID{m.UID, m.Namespace + "/" + m.Name, status.Attempt}] = true
		}
	}
	h.report.checkForKeys(text, name)
}

func put[K comparable](sets map[K]map[types.UID]bool, key K, uid types.UID) {
	if sets[key] == nil {
		sets[key] = map[types.UID]bool{}
	}
	sets[key][uid] = true
}

// withoutData returns a Secret without its values, which may contain keys.
func withoutData(text []byte) []byte {
	var whole struct {
		Object map[string]json.RawMessage `json:"object"`
	}
	if json.Unmarshal(text, &whole) != nil {
		return text
	}
	delete(whole.Object, "data")
	rest, err := json.Marshal(whole.Object)
	if err != nil {
		return text
	}
	return bytes.Clone(rest)
}
