package objects

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// AnnotationInputs holds a hash of the inputs of a session's Secret, without the secret values.
const AnnotationInputs = "parley.dev/inputs"

// archiveTokenTTL is the validity of a session's archive token. The token must outlast its attempt:
// the longest maxDuration is 365 days, and the pod may first wait for a node.
const archiveTokenTTL = 395 * 24 * time.Hour

func sessionLabels(c *v1alpha1.Conversation) map[string]string {
	return map[string]string{
		v1alpha1.LabelManagedBy:    v1alpha1.ManagedBy,
		v1alpha1.LabelComponent:    v1alpha1.ComponentSession,
		v1alpha1.LabelConversation: c.Name,
		v1alpha1.LabelUserSettings: c.Spec.UserSettingsName,
	}
}

func attemptLabels(c *v1alpha1.Conversation) map[string]string {
	labels := sessionLabels(c)
	labels[v1alpha1.LabelAttempt] = strconv.Itoa(int(lifecycle.Attempt(c.Status)))
	return labels
}

func sessionOwner(c *v1alpha1.Conversation) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(c, v1alpha1.SchemeGroupVersion.WithKind("Conversation"))}
}

// SecretInputs are the inputs of a session's Secret.
type SecretInputs struct {
	Document session.Document
	Files    []SecretFile
	// Sources are the Secrets that the files refer to, keyed by name.
	Sources map[string]*corev1.Secret
	// Key is the session's own API key.
	Key string
	// SigningKeys sign the session's archive token.
	SigningKeys []ed25519.PrivateKey
	// Spend is a part of the signed archive token. It names the person and the namespace that pay
	// for the session, and their limits.
	Spend *session.SpendClaims
	// Authority signs the session's certificate; nil means that the session has none.
	Authority *Authority
	// SnapshotSecrets are the current and the previous secret of the manager; they may be empty. The
	// session's snapshot keys and the key of the Secret's MAC are derived from them.
	SnapshotSecrets [][]byte
}

// Secret returns the Secret of a session: its document, its own key and the secret values it needs.
// The Secret is immutable, because a running session keeps the settings with which it started. Only
// a changed model reaches the running session, through the archive.
func Secret(c *v1alpha1.Conversation, in SecretInputs, now time.Time) (*corev1.Secret, error) {
	document, err := json.Marshal(in.Document)
	if err != nil {
		return nil, fmt.Errorf("encode the session document: %w", err)
	}
	data := map[string][]byte{session.DocumentFile: document, session.KeyFile: []byte(in.Key)}
	for _, f := range in.Files {
		data[f.Key] = in.Sources[f.Ref.Ref.Name].Data[f.Ref.Ref.Key]
	}
	if in.Document.ArchiveURL != "" {
		claims := archiveClaims(session.AudienceArchive, c, now)
		claims.Spend = in.Spend
		token, err := session.SignTokens(in.SigningKeys, claims)
		if err != nil {
			return nil, err
		}
		data[session.ArchiveTokenFile] = []byte(token)
	}
	if err := addSnapshotKeys(data, &in.Document, in.SnapshotSecrets...); err != nil {
		return nil, err
	}
	// Only Parley's runtime uses the certificate. In a SandboxRuntimeContainerImage, the image's
	// own entry point replaces the runtime.
	if in.Authority != nil && in.Document.Settings.SandboxRuntimeContainerImage == nil {
		if err := in.Authority.addServerCertificate(data, in.Document.UID, now); err != nil {
			return nil, err
		}
	}
	labels := attemptLabels(c)
	if in.Document.CanChangeModel() {
		labels[v1alpha1.LabelModel] = in.modelRevision()
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name), Labels: labels,
			OwnerReferences: sessionOwner(c),
			Annotations:     map[string]string{AnnotationInputs: inputsHash(labels, document, in)},
		},
		Type:      v1alpha1.SecretTypeSession,
		Immutable: ptr.To(true),
		Data:      data,
	}
	return secret, sign(secret, c.UID, in.SnapshotSecrets...)
}

func (in *SecretInputs) modelRevision() string {
	settings, key := &in.Document.Settings, &corev1.Secret{}
	if settings.LLMAPIKeyRef != nil {
		key = in.Sources[settings.LLMAPIKeyRef.Name]
	}
	return ModelRevision(settings, key)
}

// ModelRevision returns a hash that identifies the model in the settings: its name, its endpoint,
// and the version of the Secret with its key.
func ModelRevision(settings *v1alpha1.UserSettingsSpec, key metav1.Object) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %q\n", ptr.Deref(settings.LLMModel, ""), ptr.Deref(settings.LLMBaseURL, ""))
	if ref := settings.LLMAPIKeyRef; ref != nil {
		fmt.Fprintln(hash, key.GetUID(), key.GetResourceVersion(), ref.Key)
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}

// archiveClaims returns the claims of an archive token for the current attempt.
func archiveClaims(audience string, c *v1alpha1.Conversation, now time.Time) session.Claims {
	return session.Claims{Audience: audience, UID: string(c.UID), Attempt: int(lifecycle.Attempt(c.Status)),
		Expires: now.Add(archiveTokenTTL).Unix()}
}

// AddAttemptToken adds the token of an attempt that uses the Secret of an earlier attempt.
func (s *Start) AddAttemptToken(c *v1alpha1.Conversation, keys []ed25519.PrivateKey, now time.Time) (err error) {
	s.AttemptToken, err = session.SignTokens(keys, archiveClaims(session.AudienceAttempt, c, now))
	return err
}

// inputsHash returns a hash of the attempt, the document, the spending limits and the versions of
// the source Secrets.
func inputsHash(labels map[string]string, document []byte, in SecretInputs) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s %s\n", labels[v1alpha1.LabelAttempt], document)
	if in.Spend != nil && in.Spend.Lowest() > 0 {
		fmt.Fprintf(hash, "%+v\n", *in.Spend)
	}
	for _, f := range in.Files {
		source := in.Sources[f.Ref.Ref.Name]
		fmt.Fprintln(hash, f.Key, source.UID, source.ResourceVersion, f.Ref.Ref.Key)
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}

func addSnapshotKeys(data map[string][]byte, doc *session.Document, secrets ...[]byte) error {
	if doc.ArchiveURL == "" || !doc.Scratch {
		return nil
	}
	var keys []string
	for _, secret := range secrets {
		if len(secret) == 0 {
			continue
		}
		key, err := session.SnapshotKey(secret, doc.UID)
		if err != nil {
			return fmt.Errorf("derive the snapshot key: %w", err)
		}
		keys = append(keys, base64.StdEncoding.EncodeToString(key))
	}
	if len(keys) > 0 {
		data[session.SnapshotKeyFile] = []byte(strings.Join(keys, " "))
	}
	return nil
}

// MoveToScratch lets a session that lost its volume start on scratch space. The session must then
// take snapshots, so it gets a new Secret with the snapshot keys. If the session already uses
// scratch space, nothing changes.
func (s *Start) MoveToScratch(conversation types.UID, snapshotSecrets ...[]byte) error {
	doc, err := documentIn(s.Secret)
	if err != nil || doc.Scratch {
		return err
	}
	doc.Scratch = true
	secret := s.Secret.DeepCopy()
	secret.ObjectMeta = metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name, Labels: secret.Labels,
		OwnerReferences: secret.OwnerReferences, Annotations: secret.Annotations}
	if secret.Data[session.DocumentFile], err = json.Marshal(doc); err != nil {
		return fmt.Errorf("encode the session document: %w", err)
	}
	// Without the suffix, the hash would equal the hash of the existing Secret, and the manager
	// would reuse that Secret.
	secret.Annotations[AnnotationInputs] += "-scratch"
	s.Secret = secret
	if err := addSnapshotKeys(secret.Data, doc, snapshotSecrets...); err != nil {
		return err
	}
	return sign(secret, conversation, snapshotSecrets...)
}

// StartFromSecret returns a Start with the settings in the session's Secret. The caller must have
// checked that the Secret is authentic.
func StartFromSecret(secret *corev1.Secret) (*Start, error) {
	doc, err := documentIn(secret)
	if err != nil {
		return nil, err
	}
	return &Start{Settings: &doc.Settings, Requested: doc.RequestedSettings(), Agent: doc.Agent, Secret: secret}, nil
}

func documentIn(secret *corev1.Secret) (*session.Document, error) {
	doc := &session.Document{}
	if err := json.Unmarshal(secret.Data[session.DocumentFile], doc); err != nil {
		return nil, fmt.Errorf("read the session document in Secret %s: not valid JSON", secret.Name)
	}
	return doc, nil
}

// SessionKeySecret returns the Secret with a user's session key.
func SessionKeySecret(settings *v1alpha1.UserSettings, key string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: settings.Namespace, Name: v1alpha1.SessionKeySecretName(settings.Name),
			Labels: map[string]string{
				v1alpha1.LabelManagedBy:    v1alpha1.ManagedBy,
				v1alpha1.LabelUserSettings: settings.Name,
			},
			OwnerReferences: SettingsOwner(settings),
		},
		Type: v1alpha1.SecretTypeSessionKey,
		Data: map[string][]byte{v1alpha1.SessionKeySecretKey: []byte(key)},
	}
}

// SettingsOwner returns the owner reference to UserSettings.
func SettingsOwner(settings *v1alpha1.UserSettings) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(settings,
		v1alpha1.SchemeGroupVersion.WithKind("UserSettings"))}
}
