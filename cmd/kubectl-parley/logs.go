package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const sessionContainer = "session"

type logs struct {
	follow, previous, timestamps bool
	tail                         int64
	since                        time.Duration
}

func newLogs(p *plugin) *cobra.Command {
	l := &logs{}
	cmd := p.named(&cobra.Command{
		Use:   "logs NAME",
		Short: "Print the log of a session; -f follows it across restarts",
		Long: `Print the log of a session.

With -f, the command waits until the session has a log, and prints new lines until the session
stops. If the session restarts or its pod is replaced, it continues with the log of the new process.`,
	}, l.run)
	f := cmd.Flags()
	f.BoolVarP(&l.follow, "follow", "f", false, "Stream new lines until the session stops.")
	f.BoolVarP(&l.previous, "previous", "p", false, "Print the log of the previous process.")
	f.BoolVar(&l.timestamps, "timestamps", false, "Start each line with its timestamp.")
	f.Int64Var(&l.tail, "tail", -1, "The number of recent lines to print; -1 prints all.")
	f.DurationVar(&l.since, "since", 0, "Only print lines newer than this duration, such as 5s or 3h.")
	return cmd
}

func (l *logs) run(ctx context.Context, c *cluster, name string) error {
	if !l.follow {
		conv, process, err := c.process(ctx, name)
		if err == nil && process == "" {
			err = fmt.Errorf("%s has no log yet: %s", name, summary(conv))
		}
		if err != nil {
			return err
		}
		return l.print(ctx, c, name)
	}
	p, last := newProgress(c.ErrOut), ""
	for {
		process, err := c.awaitProcess(ctx, p, name, last)
		if err != nil || process == "" {
			return err
		}
		if err := l.print(ctx, c, name); err != nil {
			return err
		}
		last = process
		// Print the whole log of the next process.
		l.tail, l.since = -1, 0
	}
}

// awaitProcess waits until the session has a process whose ID is not the argument last, and returns
// the ID. It returns an empty string if the session has stopped.
func (c *cluster) awaitProcess(ctx context.Context, p *progress, name, last string) (process string, err error) {
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		conv, found, err := c.process(ctx, name)
		switch {
		case err != nil:
			return false, err
		case found != "" && found != last:
			process = found
			return true, nil
		}
		p.show(conv)
		return observed(conv) && conv.Status.State == v1alpha1.StateStopped, nil
	})
	if interrupted(ctx) {
		return "", nil
	}
	return process, err
}

// process returns the Conversation, and an ID of its current process; the ID is empty if the pod
// has not started a process.
func (c *cluster) process(ctx context.Context, name string) (*v1alpha1.Conversation, string, error) {
	conv, err := c.conversation(ctx, name)
	if err != nil {
		return nil, "", err
	}
	pod := &corev1.Pod{}
	if err := c.Get(ctx, c.key(conv.PodName()), pod); client.IgnoreNotFound(err) != nil {
		return nil, "", err
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == sessionContainer && (status.State.Running != nil || status.State.Terminated != nil) {
			return conv, fmt.Sprintf("%s %s", pod.UID, status.ContainerID), nil
		}
	}
	return conv, "", nil
}

func (l *logs) print(ctx context.Context, c *cluster, name string) error {
	options := &corev1.PodLogOptions{Container: sessionContainer, Follow: l.follow, Previous: l.previous,
		Timestamps: l.timestamps}
	if l.tail >= 0 {
		options.TailLines = &l.tail
	}
	if l.since > 0 {
		options.SinceSeconds = ptr.To(int64(l.since.Seconds()))
	}
	conv, err := c.conversation(ctx, name)
	if err != nil {
		return err
	}
	stream, err := c.core.CoreV1().Pods(c.namespace).GetLogs(conv.PodName(), options).Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	out := c.Out
	if isTerminal(c.Out) {
		out = &printer{out: c.Out}
	}
	_, err = io.Copy(out, stream)
	if interrupted(ctx) {
		return nil
	}
	return err
}
