// A conversation's state in words, and whether it needs attention.
import { get, pathOf } from './api.js';
import { h } from './render.js';

const failures = new Set(['Failed', 'Lost', 'StartDeadlineExceeded', 'SettingsMissing', 'MaxDuration']);
const refusals = new Set(['ClassNotFound', 'NotAllowed', 'NoStorageClass', 'ForeignObject', 'Rejected', 'SettingsNotReady']);

const agentWords = {
  loading: ['Starting', 'busy'], running: ['Working', 'busy'], user_confirmed: ['Working', 'busy'], user_rejected: ['Working', 'busy'],
  awaiting_user_input: ['Your turn', 'idle'], awaiting_user_confirmation: ['Needs approval', 'alert'],
  paused: ['Paused', 'idle'], finished: ['Finished', 'idle'], error: ['Failed', 'alert'], stopped: ['Stopped', 'off'],
};

const turnWords = { NeedsApproval: 'Needs approval', Failed: 'Failed' };

// stateOf returns a word for the state, its kind, and whether the user is needed.
export function stateOf(item, agent) {
  if (item.status === 'STOPPED') {
    if (failures.has(item.reason)) return { word: 'Failed', kind: 'alert', attention: true };
    return item.turn && item.reason !== 'Suspended' ? ofTurn(item.turn) : { word: 'Stopped', kind: 'off' };
  }
  if (item.status === 'STARTING') {
    return refusals.has(item.reason) ? { word: 'Cannot start', kind: 'alert', attention: true } : { word: 'Starting', kind: 'busy' };
  }
  // The agent's own state is newer than the turn that the cluster knows.
  if (!agentWords[agent] && item.turn) return ofTurn(item.turn);
  const [word, kind] = agentWords[agent] || ['Running', 'busy'];
  return { word, kind, attention: kind === 'alert' };
}

function ofTurn(turn) {
  return { word: turnWords[turn.state] || turn.state, kind: 'alert', attention: true };
}

// whyOf explains a state that needs attention.
export function whyOf(item) {
  if (item.status === 'STARTING' || failures.has(item.reason)) return item.message;
  return item.turn?.message;
}

export function badge(state) {
  return h('span', { class: `badge ${state.kind}` }, state.word);
}

// agentOf returns the last state of a running session's agent. If the agent waits, its last events
// contain the state.
export async function agentOf(item, signal) {
  if (item.status !== 'RUNNING') return null;
  try {
    const page = await get(pathOf(item.conversation_id, '/events?reverse=true&limit=10'), signal);
    return page.events.find((event) => event.observation === 'agent_state_changed')?.extras.agent_state || null;
  } catch {
    return null; // it may be stopping; the list shows its own state
  }
}
