package controllers

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// terse is a client that says no more than it must in the three writes of each start, and has the
// API server answer with metadata: an object that was just written need not come back, to be
// encoded there and decoded here. All else it does as the client that it wraps.
type terse struct {
	client.Client
	core, own rest.Interface
}

func newTerse(mgr ctrl.Manager) (*terse, error) {
	codecs := serializer.NewCodecFactory(mgr.GetScheme())
	talk := func(version schema.GroupVersion, kind string) (rest.Interface, error) {
		return apiutil.RESTClientForGVK(version.WithKind(kind), false, false, mgr.GetConfig(), codecs, mgr.GetHTTPClient())
	}
	core, err := talk(corev1.SchemeGroupVersion, "Pod")
	if err != nil {
		return nil, fmt.Errorf("make a client for pods and Secrets: %w", err)
	}
	own, err := talk(v1alpha1.SchemeGroupVersion, "Conversation")
	if err != nil {
		return nil, fmt.Errorf("make a client for Conversations: %w", err)
	}
	return &terse{mgr.GetClient(), core, own}, nil
}

// What answers may be, the rest where somebody between us and the API server knows of no parts.
const (
	metadataAsProtobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, " +
		"application/json"
	metadataAsJSON = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"
)

// Create leaves a pod or Secret as it was sent.
func (t *terse) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	var resource string
	switch o.(type) {
	case *corev1.Pod:
		resource = "pods"
	case *corev1.Secret:
		resource = "secrets"
	}
	if resource == "" || len(options) > 0 {
		return t.Client.Create(ctx, o, options...)
	}
	return t.core.Post().Namespace(o.GetNamespace()).Resource(resource).
		VersionedParams(&metav1.CreateOptions{FieldManager: FieldOwner}, metav1.ParameterCodec).
		SetHeader("Accept", metadataAsProtobuf).Body(o).Do(ctx).Error()
}

func (t *terse) Status() client.SubResourceWriter { return terseStatus{t.Client.Status(), t.own} }

type terseStatus struct {
	client.SubResourceWriter
	own rest.Interface
}

// Update writes the status of a Conversation, without its spec, of which the API server would take
// nothing. Of what comes back, the object gets its resourceVersion.
func (s terseStatus) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	c, isConversation := o.(*v1alpha1.Conversation)
	if !isConversation || len(options) > 0 {
		return s.SubResourceWriter.Update(ctx, o, options...)
	}
	result := s.own.Put().Namespace(c.Namespace).Resource("conversations").Name(c.Name).SubResource("status").
		VersionedParams(&metav1.UpdateOptions{FieldManager: FieldOwner}, metav1.ParameterCodec).
		SetHeader("Accept", metadataAsJSON).
		Body(&v1alpha1.Conversation{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion},
			Status:     c.Status,
		}).Do(ctx)
	// Raw would give the error without what the API server said.
	if err := result.Error(); err != nil {
		return err
	}
	answer, err := result.Raw()
	if err != nil {
		return err
	}
	var written metav1.PartialObjectMetadata
	if err := json.Unmarshal(answer, &written); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	c.ResourceVersion = written.ResourceVersion
	return nil
}
