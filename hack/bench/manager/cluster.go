package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/testenv"
)

const (
	namespace = "default"
	user      = "default"
	// clients create Conversations at once.
	clients = 8
	// patience is how long a manager may take to be ready, or a Conversation to get on.
	patience = 3 * time.Minute
	glance   = 50 * time.Millisecond
)

// bench is an API server, and a manager beside it.
type bench struct {
	env     *testenv.Env
	dir     string
	manager *exec.Cmd
	ended   chan struct{}
	// endKubelet ends what says that pods run.
	endKubelet func() error
}

// roomy lets etcd hold every version of every Conversation.
func roomy(e *envtest.Environment) {
	e.ControlPlane.Etcd = &envtest.Etcd{}
	e.ControlPlane.Etcd.Configure().Set("quota-backend-bytes", fmt.Sprint(int64(8<<30)))
}

func start() (*bench, error) {
	dir, err := os.MkdirTemp("", "parley-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{dir: dir}
	if b.env, err = testenv.Start(testenv.WithWebhooks, roomy); err != nil {
		return nil, errors.Join(err, b.stop())
	}
	ctx, cancel := context.WithCancel(context.Background())
	kubelet := make(chan error, 1)
	go func() { kubelet <- b.runPods(ctx) }()
	b.endKubelet = func() error {
		cancel()
		return <-kubelet
	}
	err = os.WriteFile(b.kubeconfig(), b.env.KubeConfig, 0o600)
	if err == nil {
		err = b.createCertificate()
	}
	if err != nil {
		return nil, errors.Join(err, b.stop())
	}
	return b, nil
}

// createCertificate gives the webhook one that the API server trusts, where the manager looks for it.
func (b *bench) createCertificate() error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "parley-webhook-cert"}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{},
	}
	for _, file := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		text, err := os.ReadFile(filepath.Join(b.env.WebhookInstallOptions.LocalServingCertDir, file))
		if err != nil {
			return err
		}
		secret.Data[file] = text
	}
	return b.env.Client.Create(context.Background(), secret)
}

func (b *bench) kubeconfig() string { return filepath.Join(b.dir, "kubeconfig") }

func (b *bench) stop() (err error) {
	if b.manager != nil {
		err = b.stopManager()
	}
	if b.endKubelet != nil {
		err = errors.Join(err, b.endKubelet())
	}
	if b.env != nil {
		err = errors.Join(err, b.env.Stop())
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// startManager starts one and waits until it is ready.
func (b *bench) startManager(ctx context.Context, program string) error {
	health, err := freeAddress()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(b.dir, "manager.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	webhook := b.env.WebhookInstallOptions
	b.manager = exec.Command(program, "--kubeconfig="+b.kubeconfig(), "--namespace="+namespace, "--runtime-image=parley:bench", "--leader-elect=false",
		"--metrics-bind-address=0", "--health-probe-bind-address="+health, "--webhook-cert-rotation=false", "--webhook-cert-dir="+b.dir,
		fmt.Sprintf("--webhook-bind-address=%s:%d", webhook.LocalServingHost, webhook.LocalServingPort))
	b.manager.Stdout, b.manager.Stderr = log, log
	if err := b.manager.Start(); err != nil {
		return err
	}
	manager, ended := b.manager, make(chan struct{})
	b.ended = ended
	go func() {
		defer close(ended)
		_ = manager.Wait()
	}()
	return poll(ctx, func(context.Context) error {
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("the manager ended: %s", text)
		default:
		}
		answer, err := http.Get("http://" + health + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the manager is not ready: %s", answer.Status)
		}
		return nil
	})
}

func (b *bench) stopManager() error {
	err := b.manager.Process.Signal(syscall.SIGTERM)
	<-b.ended
	b.manager = nil
	return err
}

// fill makes the Conversations and waits until each is where it is to be.
func (b *bench) fill(ctx context.Context, count int, spec v1alpha1.ConversationSpec) error {
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user}}
	if err := b.env.Client.Create(ctx, settings); err != nil {
		return err
	}
	want := v1alpha1.StateRunning
	if spec.Suspend {
		want = v1alpha1.StateStopped
	}
	group, creating := errgroup.WithContext(ctx)
	group.SetLimit(clients)
	for i := range count {
		c := &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("c-%d", i)}, Spec: spec}
		group.Go(func() error { return b.env.Client.Create(creating, c) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i := range count {
		c := &v1alpha1.Conversation{}
		if err := poll(ctx, func(ctx context.Context) error {
			if err := b.env.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: fmt.Sprintf("c-%d", i)}, c); err != nil {
				return err
			}
			if c.Status.State != want {
				return fmt.Errorf("%s is %s, %s: %s", c.Name, c.Status.State, c.Status.Reason, c.Status.Message)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// runPods says of every pod that it runs and is ready.
func (b *bench) runPods(ctx context.Context) error {
	pods, err := b.env.Client.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace))
	if err != nil {
		return err
	}
	defer pods.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-pods.ResultChan():
			if !open {
				return nil
			}
			pod, isPod := event.Object.(*corev1.Pod)
			if !isPod || pod.Status.Phase == corev1.PodRunning || pod.DeletionTimestamp != nil {
				continue
			}
			now := metav1.Now()
			pod.Status = corev1.PodStatus{
				Phase: corev1.PodRunning, StartTime: &now, PodIP: "127.0.0.1",
				ContainerStatuses: []corev1.ContainerStatus{{
					Name: pod.Spec.Containers[0].Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
				}},
			}
			for _, condition := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.PodReady} {
				pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now})
			}
			if err := b.env.Client.Status().Update(ctx, pod); err != nil && ctx.Err() == nil {
				return fmt.Errorf("run pod %s: %w", pod.Name, err)
			}
		}
	}
}

func poll(ctx context.Context, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, glance, patience, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
