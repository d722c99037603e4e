// What happened in a conversation, in order: messages, thoughts, calls of tools.
import { markdown } from './markdown.js';
import { h, show } from './render.js';
import { ToolCall, isToolCall } from './toolcall.js';

const asked = {
  paused: 'You paused the agent', running: 'You let the agent go on', user_confirmed: 'You approved', user_rejected: 'You rejected', stopped: 'You stopped the agent',
};
const named = { agent: 'Agent', user: 'You', environment: 'Session' };

function picture(address) {
  if (address.startsWith('data:image/')) return h('img', { src: address, alt: 'An image that was sent along' });
  return h('p', null, h('a', { href: /^https?:/.test(address) ? address : null, target: '_blank', rel: 'noopener noreferrer' }, address));
}

function message(event, text) {
  const from = event.source === 'user' ? 'user' : 'agent';
  return h('article', { class: `message ${from}`, id: `event-${event.id}`, 'aria-label': `${named[from]} said` },
    h('header', null, named[from], ' ', h('time', { datetime: `${event.timestamp}Z` }, new Date(`${event.timestamp}Z`).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' }))),
    markdown(text || ''), (event.args?.image_urls || []).map(picture));
}

const folded = (event, title, text) => h('details', { class: 'thought', id: `event-${event.id}` }, h('summary', null, title), h('pre', null, text));
const line = (event, kind, text) => h('p', { class: `line ${kind}`, id: `event-${event.id}` }, text);

export class Timeline {
  constructor() {
    this.entries = h('div', { class: 'entries' });
    this.clear();
    this.element = h('div', { class: 'timeline', role: 'log', 'aria-label': 'What happened', 'aria-live': 'polite', tabindex: 0 }, this.entries);
    // Who looks at the end stays there, however late an entry gets its size; who scrolled back is left alone.
    // Between a scroll and its event the entries may have grown, so that only a way up is one away from the end.
    let atEnd = true;
    let top = 0;
    this.element.addEventListener('scroll', () => {
      const { scrollHeight, scrollTop, clientHeight } = this.element;
      if (scrollHeight - scrollTop - clientHeight < 80) atEnd = true;
      else if (scrollTop < top) atEnd = false;
      top = scrollTop;
    });
    const sizes = new ResizeObserver(() => { if (atEnd) this.element.scrollTop = this.element.scrollHeight; });
    sizes.observe(this.entries);
    sizes.observe(this.element);
  }

  clear() {
    this.calls = new Map(); // by the event that each is of, and by the id that the agent gave it
    this.byId = new Map();
    this.question = null; // the id of the call that the agent asked about last
    this.told = ''; // the error that was shown last, until a state is
    show(this.entries);
  }

  take(event) {
    const entry = event.observation ? this.observation(event) : this.action(event);
    if (entry) this.entries.append(entry);
  }

  // asked marks the call that waits for the user: the one that the agent asked about, whatever else is under way. What it would do is
  // returned; nothing where that is not known, since another call in its place would be approved unseen.
  asked() {
    const call = this.byId.get(this.question);
    if (!call || call.over) return '';
    call.wait();
    return call.whole;
  }

  action(event) {
    const { action, args = {} } = event;
    if (event.tool_call_metadata?.function_name === 'task_tracker') return null; // the plan is shown beside
    if (isToolCall(event)) {
      const call = new ToolCall(event);
      this.calls.set(event.id, call);
      this.byId.set(event.tool_call_metadata?.tool_call_id, call);
      return call.element;
    }
    switch (action) {
      case 'message': return message(event, args.content);
      case 'finish': return message(event, args.final_thought || event.message);
      case 'think': return folded(event, 'Thought', args.thought || event.message);
      case 'system': return folded(event, 'Instructions', args.content || event.message);
      case 'change_agent_state': return line(event, 'quiet', asked[args.agent_state] || `State: ${args.agent_state}`);
      default: return event.message ? line(event, 'quiet', event.message) : null;
    }
  }

  observation(event) {
    const call = this.calls.get(event.cause);
    if (event.tool_call_metadata?.function_name === 'task_tracker' || event.observation === 'think') return null;
    switch (event.observation) {
      case 'agent_state_changed': return this.state(event);
      case 'task_tracking': return null; // the plan is shown beside
      case 'agent_update': return folded(event, 'A word of the agent', JSON.stringify(event.extras?.update, null, 2));
      default:
    }
    if (call) {
      call.observe(event);
      return null;
    }
    if (event.observation === 'error') {
      this.told = event.content || event.message;
      return line(event, 'error', this.told);
    }
    if (event.observation === 'notice') return line(event, 'notice', event.content || event.message);
    return event.content ? folded(event, event.message || event.observation, event.content) : null;
  }

  // state of an agent that failed says again what the error before it told.
  state(event) {
    const { agent_state: state, reason = '' } = event.extras;
    const again = reason && reason === this.told;
    this.told = '';
    if (state === 'awaiting_user_confirmation') this.question = event.tool_call_metadata?.tool_call_id ?? null;
    return state === 'error' && !again ? line(event, 'error', reason || 'The agent failed') : null;
  }
}
