package objects

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

const (
	// sessionUser is both the user ID and the group ID of sessions. It is higher than the IDs of
	// system users in images.
	sessionUser int64 = 1000
	// supervisorProgram is the first process of a session, and starts runtimeProgram. If a pod does
	// not use Parley's image, both programs are in binVolume: an init container copies them there,
	// or the class mounts Parley's image as this volume.
	supervisorProgram = "/supervisor"
	runtimeProgram    = "/runtime"
	binVolume         = "bin"

	attemptVariable, ranAttemptVariable = "PARLEY_ATTEMPT", "PARLEY_RAN_ATTEMPT"
)

// Start holds the values that are needed to start a session.
type Start struct {
	Settings *v1alpha1.UserSettingsSpec
	// Requested are the settings without the defaults of the class.
	Requested *v1alpha1.UserSettingsSpec
	Agent     *session.Agent
	Class     Class
	// Workspace is the kind of volume that holds the session's files.
	Workspace v1alpha1.WorkspaceKind
	// WorkspaceClaim is the name of the existing PersistentVolumeClaim, if it was created with a
	// warm pod. Empty means the default name.
	WorkspaceClaim string
	// Secret is the session's Secret, existing or to be created.
	Secret *corev1.Secret
	// AttemptToken tells the archive the number of the current attempt. It is set if the Secret is
	// from an earlier attempt. The archive accepts this token only together with the token in the
	// Secret.
	AttemptToken string
}

// Pod returns the pod of a session. It relies on two defaults of Kubernetes: a grace period of 30
// seconds, and a termination message that is read from its file only. A fallback to the logs would
// copy arbitrary output of the agent into the status.
func Pod(c *v1alpha1.Conversation, start *Start, runtimeImage string) *corev1.Pod {
	class, settings := start.Class, start.Settings
	placement := ptr.Deref(class.Spec.Placement, v1alpha1.SessionPlacement{})
	labels := maps.Clone(placement.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, attemptLabels(c)) // Parley's labels take precedence
	labels[v1alpha1.LabelSessionClass], labels[v1alpha1.LabelWorkspace] = class.Name, string(start.Workspace)
	addSecretLabels(labels, start.Secret)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name), Labels: labels, Annotations: placement.Annotations,
			OwnerReferences: sessionOwner(c),
		},
		Spec: corev1.PodSpec{
			// A session that ends by itself exits with 0. Any other exit is a crash, and the
			// kubelet restarts the process.
			RestartPolicy:                corev1.RestartPolicyOnFailure,
			Hostname:                     c.Name,
			Subdomain:                    lifecycle.ServiceName,
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			NodeSelector:                 placement.NodeSelector,
			Tolerations:                  placement.Tolerations,
			RuntimeClassName:             placement.RuntimeClassName,
			PriorityClassName:            ptr.Deref(placement.PriorityClassName, ""),
			SecurityContext:              podSecurity(class, start.Workspace),
			Volumes:                      volumes(c, start),
		},
	}
	main := sessionContainer(c, start)
	images := ptr.Deref(class.Spec.Images, v1alpha1.SessionImages{})
	for _, secret := range images.PullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret.Name})
	}
	userNamed := settings.SandboxRuntimeContainerImage != nil || settings.SandboxBaseContainerImage != nil
	if settings.SandboxRuntimeContainerImage != nil {
		// This image starts its own runtime, so the container has no command and no probe.
		main.Image = *settings.SandboxRuntimeContainerImage
		setSessionPaths(pod, &main, class)
	} else {
		main.Image = runtimeImage
		switch {
		case settings.SandboxBaseContainerImage != nil:
			main.Image = *settings.SandboxBaseContainerImage
		case start.Agent != nil && start.Agent.Image != "":
			main.Image = start.Agent.Image
		case images.Default != nil:
			main.Image = *images.Default
		}
		runRuntime(pod, &main, runtimeImage, class)
	}
	main.ImagePullPolicy = class.pullPolicy(userNamed, main.Image)
	limitDisk(&main, pod.Spec.Volumes)
	pod.Spec.Containers = []corev1.Container{main}
	return pod
}

// addSecretLabels adds the labels of a session's pod that follow from the session's Secret.
func addSecretLabels(labels map[string]string, secret *corev1.Secret) {
	if revision := secret.Labels[v1alpha1.LabelModel]; revision != "" {
		labels[v1alpha1.LabelModel] = revision
	}
	labels[v1alpha1.LabelProtocol] = v1alpha1.ProtocolHTTP
	if len(secret.Data[session.ServerCertificateFile]) > 0 {
		labels[v1alpha1.LabelProtocol] = v1alpha1.ProtocolHTTPS
	}
}

// podSecurity satisfies the restricted Pod Security Standard, with the user ID of the class. The
// volume of a PersistentVolumeClaim gets the group of this user. Scratch space needs no group,
// because all users in the pod may write to it.
func podSecurity(class Class, workspace v1alpha1.WorkspaceKind) *corev1.PodSecurityContext {
	security := &corev1.PodSecurityContext{
		RunAsNonRoot:   ptr.To(true),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	user := sessionUser
	if class.Spec.Images != nil && class.Spec.Images.RunAsUser != nil {
		user = *class.Spec.Images.RunAsUser
	}
	if user != 0 {
		security.RunAsUser, security.RunAsGroup = &user, &user
		if workspace != v1alpha1.WorkspaceScratch {
			security.FSGroup, security.FSGroupChangePolicy = &user, ptr.To(corev1.FSGroupChangeOnRootMismatch)
		}
	}
	return security
}

func runRuntime(pod *corev1.Pod, main *corev1.Container, runtimeImage string, class Class) {
	main.Command = []string{supervisorProgram}
	if main.Image == runtimeImage { // this image contains the programs, which write only to volumes
		main.SecurityContext.ReadOnlyRootFilesystem = ptr.To(true)
		addScratch(pod, main, "tmp", "/tmp", class)
	} else {
		pull := class.pullPolicy(false, runtimeImage)
		if class.Spec.Images != nil && class.Spec.Images.Runtime == v1alpha1.RuntimeMount {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: binVolume, VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: runtimeImage, PullPolicy: pull},
			}})
		} else {
			installRuntime(pod, runtimeImage, pull)
		}
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: binVolume, MountPath: session.BinDir,
			ReadOnly: true})
		main.Command = []string{session.BinDir + supervisorProgram}
	}
	// The arguments of the supervisor are the names of the environment variables that the operator
	// sets, except those with values of a Secret, which have a reserved prefix. The supervisor ignores
	// all other variables except PATH, because the image may have set them.
	for _, variable := range main.Env {
		if variable.ValueFrom == nil {
			main.Command = append(main.Command, variable.Name)
		}
	}
	// A startup probe is not needed, because the runtime listens within milliseconds. It would
	// delay readiness, because the kubelet begins the readiness probe only after the startup probe
	// has succeeded. A liveness probe is not needed, because the supervisor checks the runtime.
	main.ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: session.AwaitReadyPath,
			Port: intstr.FromInt32(session.Port)}},
		PeriodSeconds:  1,
		TimeoutSeconds: 5,
	}
}

// setSessionPaths gives a third-party runtime a home directory and the session's paths as
// environment variables. Parley's own runtime knows the paths and uses a home in the workspace.
func setSessionPaths(pod *corev1.Pod, main *corev1.Container, class Class) {
	addScratch(pod, main, "home", session.HomeDir, class)
	main.Env = append(main.Env,
		corev1.EnvVar{Name: "HOME", Value: session.HomeDir},
		corev1.EnvVar{Name: "PARLEY_SESSION_DIR", Value: session.Dir},
		corev1.EnvVar{Name: "PARLEY_WORKSPACE", Value: session.WorkspaceDir},
	)
}

// installRuntime adds an init container that copies Parley's programs into a pod whose image is not
// Parley's own.
func installRuntime(pod *corev1.Pod, runtimeImage string, pull corev1.PullPolicy) {
	bin := corev1.VolumeMount{Name: binVolume, MountPath: session.BinDir}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: bin.Name,
		VolumeSource: scratch(resource.MustParse("256Mi"))})
	pod.Spec.InitContainers = []corev1.Container{{
		Name:            lifecycle.InstallContainer,
		Image:           runtimeImage,
		ImagePullPolicy: pull,
		Command:         []string{runtimeProgram, "install", session.BinDir},
		Resources: corev1.ResourceRequirements{
			Requests: resources("10m", "16Mi"),
			// The CPU limit is high, so that the copy is fast. It is not added to the limit of the
			// session's container: the init container runs first, so Kubernetes counts only the
			// larger of the two limits.
			Limits: resources("1", "64Mi"),
		},
		SecurityContext: restricted(),
		VolumeMounts:    []corev1.VolumeMount{bin},
	}}
	pod.Spec.InitContainers[0].SecurityContext.ReadOnlyRootFilesystem = ptr.To(true)
}

func sessionContainer(c *v1alpha1.Conversation, start *Start) corev1.Container {
	factor := int64(ptr.Deref(start.Settings.RemoteRuntimeResourceFactor, 1))
	class := ptr.Deref(start.Class.Spec.Resources, v1alpha1.SessionResources{})
	requests, limits := resources("250m", "512Mi"), resources("1", "2Gi")
	maps.Copy(requests, class.Requests)
	maps.Copy(limits, class.Limits)
	container := corev1.Container{
		Name:       lifecycle.SessionContainer,
		WorkingDir: session.WorkspaceDir,
		Resources: corev1.ResourceRequirements{
			Requests: scaled(requests, factor),
			Limits:   scaled(limits, factor),
		},
		SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: sessionVolume, MountPath: session.Dir, ReadOnly: true},
			{Name: lifecycle.WorkspaceVolume, MountPath: session.WorkspaceDir},
		},
	}
	container.Env = []corev1.EnvVar{{Name: session.DocumentDigestVariable,
		Value: session.DocumentDigest(start.Secret.Data[session.DocumentFile])}}
	if attempt := lifecycle.Attempt(c.Status); attempt > 1 {
		container.Env = append(container.Env, corev1.EnvVar{Name: attemptVariable, Value: strconv.Itoa(int(attempt))})
	}
	if ran := c.Status.RanAttempt; ran > 0 {
		container.Env = append(container.Env, corev1.EnvVar{Name: ranAttemptVariable, Value: strconv.Itoa(int(ran))})
	}
	container.Env = append(container.Env, proxyVariables(start.Class.Spec.Network)...)
	container.Env = append(container.Env, secretVariables(start.Secret)...)
	if start.AttemptToken != "" {
		container.Env = append(container.Env, corev1.EnvVar{Name: session.SecretVariable(session.AttemptTokenFile),
			Value: start.AttemptToken})
	}
	if c.Spec.ReplayJSONRef != nil {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "replay",
			MountPath: session.ReplayDir, ReadOnly: true})
	}
	if len(imageSources(c)) > 0 {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "images",
			MountPath: session.ImagesDir, ReadOnly: true})
	}
	return container
}

// secretVariables returns environment variables that pass the secrets to the session. The agent has
// the same Unix user as the runtime, so it could read files with secrets. It cannot read the
// environment of Parley's runtime.
func secretVariables(secret *corev1.Secret) (variables []corev1.EnvVar) {
	for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
		if key == session.DocumentFile {
			continue
		}
		variables = append(variables, corev1.EnvVar{Name: session.SecretVariable(key), ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret.Name},
				Key: key},
		}})
	}
	return variables
}

// proxyVariables returns the proxy settings as variables in upper and lower case.
func proxyVariables(network *v1alpha1.SessionNetwork) (variables []corev1.EnvVar) {
	if network == nil {
		return nil
	}
	for _, variable := range []corev1.EnvVar{
		{Name: "HTTP_PROXY", Value: network.HTTPProxy}, {Name: "HTTPS_PROXY", Value: network.HTTPSProxy}, {Name: "NO_PROXY",
			Value: network.NoProxy},
	} {
		if variable.Value != "" {
			variables = append(variables, variable, corev1.EnvVar{Name: strings.ToLower(variable.Name), Value: variable.Value})
		}
	}
	return variables
}

func addScratch(pod *corev1.Pod, main *corev1.Container, name, path string, class Class) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: scratch(class.scratchSize())})
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
}

// limitDisk limits the space of a session on its node's disk. The kubelet evicts a pod whose
// scratch volumes, logs and writable layer together exceed the limit. The default limit is
// defaultDisk plus the sizes of all scratch volumes. The default request is small; without it,
// Kubernetes would use the limit as the request.
func limitDisk(main *corev1.Container, volumes []corev1.Volume) {
	requests, limits := main.Resources.Requests, main.Resources.Limits
	request, requested := requests[corev1.ResourceEphemeralStorage]
	limit, limited := limits[corev1.ResourceEphemeralStorage]
	if !limited {
		limit = defaultDisk.DeepCopy()
		for _, volume := range volumes {
			if volume.EmptyDir != nil {
				limit.Add(*volume.EmptyDir.SizeLimit)
			}
		}
		if requested && request.Cmp(limit) > 0 {
			limit = request
		}
		limits[corev1.ResourceEphemeralStorage] = limit
	}
	if !requested {
		request = defaultDiskRequest
		if request.Cmp(limit) > 0 {
			request = limit
		}
		requests[corev1.ResourceEphemeralStorage] = request
	}
}

func scratch(size resource.Quantity) corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}}
}

func volumes(c *v1alpha1.Conversation, start *Start) []corev1.Volume {
	list := []corev1.Volume{
		{Name: sessionVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: v1alpha1.SessionName(c.Name),
			Items:      []corev1.KeyToPath{{Key: session.DocumentFile, Path: session.DocumentFile}},
		}}},
	}
	workspace := corev1.Volume{Name: lifecycle.WorkspaceVolume, VolumeSource: scratch(start.Class.scratchSize())}
	if start.Workspace != v1alpha1.WorkspaceScratch {
		workspace.VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
			ClaimName: cmp.Or(start.WorkspaceClaim, lifecycle.WorkspaceName(c.Name))}}
	}
	list = append(list, workspace)
	if ref := c.Spec.ReplayJSONRef; ref != nil {
		list = append(list, corev1.Volume{Name: "replay",
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name},
				Items:                []corev1.KeyToPath{{Key: ref.Key, Path: session.ReplayFile}},
			}}})
	}
	if sources := imageSources(c); len(sources) > 0 {
		list = append(list, corev1.Volume{Name: "images",
			VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}})
	}
	return list
}

// imageSources makes files of the pictures that the first message references in ConfigMaps. The
// session document contains the names of these files.
func imageSources(c *v1alpha1.Conversation) (sources []corev1.VolumeProjection) {
	for i, image := range c.Spec.Images {
		if ref := image.ConfigMapKeyRef; ref != nil {
			sources = append(sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: ref.Name},
				Items: []corev1.KeyToPath{{Key: ref.Key,
					Path: session.ImageName(i, ptr.Deref(image.MediaType, ""))}},
			}})
		}
	}
	return sources
}

// restricted satisfies the restricted Pod Security Standard for a container.
func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory)}
}

func scaled(list corev1.ResourceList, factor int64) corev1.ResourceList {
	for name, quantity := range list {
		quantity.Mul(factor)
		list[name] = quantity
	}
	return list
}
