package controllers

import "github.com/parley-dev/parley/hack/test/lifecycletest"

type (
	aConversation = lifecycletest.Conversation
	aPod          = lifecycletest.Pod
)

var (
	makeConversation = lifecycletest.MakeConversation
	podOf            = lifecycletest.PodOf
	at               = lifecycletest.At
	metaTime         = lifecycletest.MetaTime
	ref              = lifecycletest.Ref
	everySecret      = lifecycletest.EverySecret
	imageIn          = lifecycletest.ImageIn
	imageAt          = lifecycletest.ImageAt
)
