// The events of a conversation in order: messages, thoughts, tool calls.
import { markdown } from './markdown.js';
import { h, linkTo, show } from './render.js';
import { output, visible } from './text.js';
import { ToolCall, isToolCall } from './toolcall.js';

const changes = {
  paused: 'You paused the agent', running: 'You resumed the agent', user_confirmed: 'You approved the action', user_rejected: 'You rejected the action', stopped: 'You stopped the agent',
};

// decision describes the user's change of the agent's state.
function decision({ agent_state: state, reason, remembered }) {
  if (state === 'user_confirmed' && remembered) return `You approved ${visible(remembered)} in this session`;
  return `${changes[state] || `State: ${state}`}${state === 'user_rejected' && reason ? `: ${reason}` : ''}`;
}

const named = { agent: 'Agent', user: 'You', environment: 'Session' };

function picture(address) {
  if (address.startsWith('data:image/')) return h('img', { src: address, alt: 'Attached image' });
  return h('p', null, h('a', { href: /^https?:/.test(address) ? address : null, target: '_blank', rel: 'noopener noreferrer' }, address));
}

function message(event, text) {
  const from = event.source === 'user' ? 'user' : 'agent';
  return h('article', { class: `message ${from}`, id: `event-${event.id}`, 'aria-label': `Message from ${named[from]}` },
    h('header', null, named[from], ' ', h('time', { datetime: `${event.timestamp}Z` }, new Date(`${event.timestamp}Z`).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' }))),
    markdown(text || ''), (event.args?.image_urls || []).map(picture));
}

const folded = (event, title, text) => h('details', { class: 'thought', id: `event-${event.id}` }, h('summary', null, title), h('pre', null, text));
const line = (event, kind, text) => h('p', { class: `line ${kind}`, id: `event-${event.id}` }, text);

export class Timeline {
  constructor() {
    this.entries = h('div', { class: 'entries' });
    this.unfinished = h('div', { class: 'unfinished', 'aria-live': 'off' });
    this.retry = h('div');
    this.clear();
    this.element = h('div', { class: 'timeline', role: 'log', 'aria-label': 'History', 'aria-live': 'polite', tabindex: 0 }, this.entries, this.unfinished, this.retry);
    // A reader at the end stays at the end, even if an entry grows late. A reader who scrolled back
    // stays in place. Entries may grow between a scroll and its scroll event, so only an upward
    // scroll counts as leaving the end.
    let atEnd = true;
    let top = 0;
    this.element.addEventListener('scroll', () => {
      const { scrollHeight, scrollTop, clientHeight } = this.element;
      if (scrollHeight - scrollTop - clientHeight < 80) atEnd = true;
      else if (scrollTop < top) atEnd = false;
      top = scrollTop;
    });
    const sizes = new ResizeObserver(() => {
      if (atEnd) this.element.scrollTop = this.element.scrollHeight;
      top = this.element.scrollTop; // an entry that shrank may have moved the position up
    });
    sizes.observe(this.entries);
    sizes.observe(this.unfinished);
    sizes.observe(this.element);
  }

  clear() {
    this.printing = []; // the running calls with output
    this.preview({});
    this.calls = new Map(); // by event ID
    this.byId = new Map(); // by the agent's ID of the call
    this.approvals = new Map(); // texts of remembered approvals, by event ID
    this.question = null; // the last question, in the form that approvals.js expects
    this.first = null; // the first message, until it is one of the session's events
    this.working = false; // a turn is running
    this.waiting = new Map(); // labels of messages that the agent does not have yet, by event ID
    this.shown = ''; // the last error, until the next state
    show(this.entries);
    show(this.retry);
  }

  // announce shows the first message of a session that has no events yet.
  announce(text) {
    if (!text || this.first || this.entries.querySelector('.message.user')) return;
    this.first = h('article', { class: 'message user', 'aria-label': 'Message from You' }, h('header', null, 'You'), markdown(text));
    this.entries.prepend(this.first);
  }

  // preview shows the text that the agent is writing, and the output of running commands.
  preview({ message: text, thought, outputs = [] }) {
    const title = text ? 'Agent is writing…' : 'Agent is thinking…';
    show(this.unfinished, (text || thought) && h('article', { class: `message agent${text ? '' : ' thinking'}`, 'aria-label': title },
      h('header', null, title), h('div', { class: 'markdown plain' }, text || thought)));
    const before = this.printing;
    this.printing = outputs.flatMap(({ cause, content }) => {
      const call = this.calls.get(cause);
      call?.print(content);
      return call || [];
    });
    before.filter((call) => !this.printing.includes(call)).forEach((call) => call.print(''));
  }

  take(event) {
    if (event.source === 'agent') show(this.unfinished); // the event contains the text of the preview
    if (event.source === 'user' && event.action === 'message') {
      this.first?.remove();
      this.first = null;
    }
    const entry = event.observation ? this.observation(event) : this.action(event);
    if (entry) this.entries.append(entry);
    if (event.source === 'user' && event.action === 'message' && this.working) this.wait(event.id, entry);
  }

  // wait marks a message that was sent during a turn, until the agent has received the message.
  wait(id, entry) {
    const label = h('span', { class: 'waiting' }, ' waiting for the agent');
    entry.querySelector('header').append(label);
    this.waiting.set(id, label);
  }

  // delivered removes the mark of messages that the agent has received: one message in the middle
  // of a turn, or all messages up to the message of a new turn.
  delivered({ delivered, turn = -1 } = {}) {
    for (const [id, label] of this.waiting) {
      if (id === delivered || id <= turn) {
        label.remove();
        this.waiting.delete(id);
      }
    }
  }

  // asked marks the tool call that needs approval, and returns the question. If the page does not
  // know the call, the call in the question is null.
  asked() {
    if (!this.question) return null;
    const call = this.question.call?.over ? null : this.question.call;
    call?.wait();
    return { ...this.question, call };
  }

  action(event) {
    const { action, args = {} } = event;
    if (event.tool_call_metadata?.function_name === 'task_tracker') return null; // shown in the plan
    if (isToolCall(event)) {
      const call = new ToolCall(event);
      this.calls.set(event.id, call);
      if (event.tool_call_metadata) this.byId.set(event.tool_call_metadata.tool_call_id, call);
      return call.element;
    }
    switch (action) {
      case 'message': return message(event, args.content);
      case 'finish': return message(event, args.final_thought || event.message);
      case 'think': return folded(event, 'Thought', args.thought || event.message);
      case 'system': return folded(event, 'Instructions', args.content || event.message);
      case 'change_agent_state':
        if (args.remembered) this.approvals.set(event.id, args.remembered);
        return line(event, 'quiet', decision(args));
      case 'revoke_approval': return line(event, 'quiet', `You revoked your approval of ${visible(this.approvals.get(args.approval) || 'earlier actions')}`);
      default: return event.message ? line(event, 'quiet', event.message) : null;
    }
  }

  observation(event) {
    const call = this.calls.get(event.cause);
    if (event.tool_call_metadata?.function_name === 'task_tracker' || event.observation === 'think') return null;
    switch (event.observation) {
      case 'agent_state_changed': return this.state(event);
      case 'task_tracking': return null; // shown in the plan
      case 'agent_update': return folded(event, 'Agent update', JSON.stringify(event.extras?.update, null, 2));
      default:
    }
    if (event.observation === 'notice') {
      const approval = this.approvals.get(event._meta?.approved_by);
      const pull = event.extras?.pull_request;
      if (pull) return line(event, 'notice', ['Pull request: ', linkTo(pull)]);
      if (!call || !approval) return line(event, 'notice', event.content || event.message);
      call.cover(approval);
      return null;
    }
    if (call) {
      call.observe(event);
      return null;
    }
    if (event.observation === 'error') {
      this.shown = event.content || event.message;
      return line(event, 'error', this.shown);
    }
    return event.content ? folded(event, event.message || event.observation, output(event.content)) : null;
  }

  // state handles a change of the agent's state. It shows a failure, unless an error with the same
  // text was shown since the previous change.
  state(event) {
    const { agent_state: state, reason = '' } = event.extras;
    this.working = state === 'running' || state === 'awaiting_user_confirmation';
    this.delivered(event._meta);
    show(this.retry, event.extras.retry_at && h('p', { class: 'line notice' }, reason)); // the agent waits for the model
    const again = reason && reason === this.shown;
    this.shown = '';
    if (state === 'awaiting_user_confirmation') {
      this.question = { id: event.id, call: this.byId.get(event.tool_call_metadata?.tool_call_id) ?? null, remember: event.extras.remember, incomplete: event.extras.incomplete };
    }
    return state === 'error' && !again ? line(event, 'error', reason || 'The agent failed') : null;
  }
}
