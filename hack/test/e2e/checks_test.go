package e2e

import (
	"context"
	"testing"
	"time"
)

// The checks run in this order, each in its own namespace.

func TestASessionOverHTTPClonesARepositoryAndEnds(t *testing.T)           { check(t, conversationOverHTTP) }
func TestInTheDefaultClassTheShippedAgentWorksOnAMessage(t *testing.T)    { check(t, shippedAgent) }
func TestEventsAreReadableOverHTTPAfterThePodIsGone(t *testing.T)         { check(t, readFromArchive) }
func TestSecretsAreNotInTheProcessListOrLogsOrOtherObjects(t *testing.T)  { check(t, secretsStayHidden) }
func TestTheVariablesOfAContainerImageDoNotDivertKeys(t *testing.T)       { check(t, imageVariables) }
func TestAnAgentCannotChangeRecordedCostsByRewritingFiles(t *testing.T)   { check(t, rewriteFiles) }
func TestARestrictedNamespaceRefusesOnlyPrivilegedPods(t *testing.T)      { check(t, restrictedNamespace) }
func TestASessionHasNoServiceAccountToken(t *testing.T)                   { check(t, noToken) }
func TestSessionsGetANetworkPolicyAndAService(t *testing.T)               { check(t, networkObjects) }
func TestASessionWithAMountedRuntimeNeedsNoInitContainer(t *testing.T)    { check(t, runtimeMounted) }
func TestARuntimeKilledWithSIGKILLIsRestarted(t *testing.T)               { check(t, runtimeKilled) }
func TestASessionOutOfMemoryFailsAfterFiveRestarts(t *testing.T)          { check(t, killedForMemory) }
func TestASessionReportsThatItsAgentRanOutOfMemory(t *testing.T)          { check(t, agentKilledForMemory) }
func TestADeletedPodIsRecreatedOnTheSameWorkspace(t *testing.T)           { check(t, podDeleted) }
func TestAPodDeletedDuringWorkIsReplacedAndKeepsItsFiles(t *testing.T)    { check(t, podDeletedAtWork) }
func TestABusySessionWithNoVolumeStopsIfItsPodIsDeleted(t *testing.T)     { check(t, podLostAtWork) }
func TestAnEndedSessionKeepsItsPodAndLogUntilTheTTL(t *testing.T)         { check(t, endedPodKept) }
func TestPodsThatAKubeletRejectsAreReplacedAfterADelay(t *testing.T)      { check(t, podsRejected) }
func TestPodsThatAKubeletEvictsAreReplacedAfterADelay(t *testing.T)       { check(t, podsEvicted) }
func TestASessionEndsIfItFillsTheDiskOfItsNode(t *testing.T)              { check(t, diskFilled) }
func TestPodsLostInANodeShutdownAreReplacedAfterTheShutdown(t *testing.T) { check(t, podsShutDown) }
func TestAnInjectedSidecarDoesNotHideTheEndOfASession(t *testing.T)       { check(t, sidecarInjected) }
func TestASuspendedSessionResumesOnTheSameWorkspace(t *testing.T)         { check(t, suspendAndResume) }
func TestFilesSurviveAStopAndAStartOverHTTP(t *testing.T)                 { check(t, stopAndStartOverHTTP) }
func TestAnIdleSessionStopsByItself(t *testing.T)                         { check(t, idleStop) }
func TestTheStatusReportsAMissingImageAtTheStartDeadline(t *testing.T)    { check(t, startDeadline) }
func TestADeletedConversationLeavesNoObjectsOrFiles(t *testing.T)         { check(t, deletedConversation) }
func TestAPipelineRunsAOneShotConversationOverHTTP(t *testing.T)          { check(t, pipeline) }
func TestTwoHundredPeopleAreOnboardedWithinAMinute(t *testing.T)          { check(t, onboardPeople) }
func TestStartTimesAndMemoryAreMeasured(t *testing.T)                     { check(t, figures) }
func TestAWarmPodHoldsNoSecretAndReachesOnlyAllowedHosts(t *testing.T)    { check(t, warmPodIsolated) }
func TestWarmStartsAreMeasured(t *testing.T)                              { checkFor(t, measureTimeout, warmStarts) }
func TestAHundredIdleSessionsAreMeasured(t *testing.T)                    { checkFor(t, measureTimeout, hundredIdle) }

// These checks install and remove Parley, so they run last.

func TestAnUpgradeDoesNotDisturbRunningSessions(t *testing.T)           { check(t, upgrade) }
func TestRemovingParleyLeavesOnlyCRDsAndObjectsOfUsers(t *testing.T)    { check(t, removal) }
func TestTheHelmChartCanBeInstalledUpgradedAndUninstalled(t *testing.T) { check(t, helmChart) }
func TestTheInstallGuideWorksAsWritten(t *testing.T)                    { check(t, installAsDocumented) }

type t struct {
	*testing.T
	*inside
	ctx       context.Context
	namespace string // the check's namespace, or empty
}

// checkTimeout limits one check. The longest check takes two minutes on a fast machine.
const checkTimeout = 8 * time.Minute

const measureTimeout = time.Hour

func check(test *testing.T, run func(*t)) {
	test.Helper()
	checkFor(test, checkTimeout, run)
}

func checkFor(test *testing.T, timeout time.Duration, run func(*t)) {
	test.Helper()
	if node == nil {
		test.Skip("make e2e runs this test on a node")
	}
	if node.ctx.Err() != nil {
		test.Fatal(context.Cause(node.ctx))
	}
	node.checks++
	ctx, cancel := context.WithTimeout(node.ctx, timeout)
	defer cancel()
	t := &t{T: test, inside: node, ctx: ctx}
	defer t.cleanUp()
	run(t)
}

func (t *t) must(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
