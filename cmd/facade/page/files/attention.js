// A conversation's state in words, and whether it needs attention.
import { get, pathOf } from './api.js';
import { h } from './render.js';

// waiting contains the states in which the agent waits for the user.
export const waiting = new Set(['awaiting_user_input', 'awaiting_user_confirmation', 'finished', 'error']);

const agentWords = {
  loading: ['Starting', 'busy'], running: ['Working', 'busy'], user_confirmed: ['Working', 'busy'], user_rejected: ['Working', 'busy'],
  awaiting_user_input: ['Your turn', 'idle'], awaiting_user_confirmation: ['Needs approval', 'alert'],
  paused: ['Paused', 'idle'], finished: ['Finished', 'idle'], error: ['Failed', 'alert'], stopped: ['Stopped', 'off'],
};

const turnWords = { NeedsApproval: 'Needs approval', Failed: 'Failed' };

// turnOf returns the outcome of the last turn if the session runs or has ended normally (Idle,
// Completed). For all other sessions it returns null, so that the page shows why they do not run.
const turnOf = (item) => (item.status === 'RUNNING' || ['Idle', 'Completed'].includes(item.reason) ? item.turn : null);

// stateOf describes the state of a conversation. word is the text of the badge, and kind its style.
// attention is set after a failure and while an approval is pending. turn is set if the user must
// act next. If the agent's current state is known, stateOf ignores item.turn, which may be older.
export function stateOf(item, agent) {
  const last = turnOf(item);
  const wrong = (word) => ({ word, kind: 'alert', attention: true, turn: true });
  if (last && !agentWords[agent]) return wrong(turnWords[last.state] || last.state);
  if (item.status === 'STOPPED') return item.needs_attention ? wrong('Failed') : { word: 'Stopped', kind: 'off' };
  if (item.status === 'STARTING') return item.needs_attention ? wrong('Cannot start') : { word: 'Starting', kind: 'busy' };
  const [word, kind] = agentWords[agent] || ['Running', 'busy'];
  return { word, kind, attention: kind === 'alert', turn: waiting.has(agent) };
}

export const whyOf = (item) => turnOf(item)?.message ?? (item.status === 'RUNNING' ? null : item.message);

export function badge(state) {
  return h('span', { class: `badge ${state.kind}` }, state.word);
}

// agentOf returns the state of a running session's agent, from its last ten events. If the agent
// waits for the user, these events contain its state.
export async function agentOf(item, signal) {
  if (item.status !== 'RUNNING') return null;
  try {
    const page = await get(pathOf(item.conversation_id, '/events?reverse=true&limit=10'), signal);
    return page.events.find((event) => event.observation === 'agent_state_changed')?.extras.agent_state || null;
  } catch {
    return null; // the session may be stopping
  }
}
