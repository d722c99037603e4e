// A tool call with its result, which the user can open and close.
import { diffTable } from './difflines.js';
import { h, show } from './render.js';

const words = { run: 'Run', edit: 'Edit', read: 'Read', write: 'Write', browse: 'Browse', browse_interactive: 'Browse', call_tool_mcp: 'Tool', run_ipython: 'Python' };
const questions = {
  run: 'Run this command?', edit: 'Make this edit?', read: 'Read this file?', write: 'Write this file?',
  browse: 'Open this page?', call_tool_mcp: 'Call this tool?', run_ipython: 'Run this code?',
};

export const isToolCall = (event) => event.action in words;

// visible replaces characters that make a text look like another one: control characters and those
// that change the writing direction.
const visible = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, '\ufffd');

// subject describes a call in one line.
function subject({ action, args = {} }) {
  switch (action) {
    case 'run': return args.command;
    case 'call_tool_mcp': return args.name;
    case 'browse': return args.url;
    case 'run_ipython': return args.code;
    default: return args.path || '';
  }
}

// given returns the arguments of a call that its subject does not show.
function given({ action, args = {} }) {
  if (action === 'run') return args.command.includes('\n') ? args.command : '';
  if (action === 'call_tool_mcp') return JSON.stringify(args.arguments || {}, null, 2);
  if (action === 'write') return args.content || '';
  return '';
}

function outcome(event) {
  const code = event.extras?.metadata?.exit_code;
  if (event.observation === 'user_rejected') return ['rejected', 'bad'];
  if (typeof code === 'number' && code !== 0) return [`exit ${code}`, 'bad'];
  return event.success === false || event.observation === 'error' ? ['failed', 'bad'] : ['done', 'good'];
}

export class ToolCall {
  constructor(event) {
    this.status = h('span', { class: 'status' });
    this.body = h('div', { class: 'body' });
    this.over = false;
    this.question = questions[event.action];
    this.whole = visible(subject(event) || '');
    const line = this.whole.split('\n')[0];
    this.element = h('details', { class: 'tool', id: `event-${event.id}` },
      h('summary', null, h('span', { class: 'kind' }, words[event.action]), h('code', null, line),
        event.args?.security_risk && h('span', { class: `risk ${event.args.security_risk.toLowerCase()}` }, `${event.args.security_risk.toLowerCase()} risk`), this.status),
      event.args?.thought && h('p', null, event.args.thought), given(event) && h('pre', null, visible(given(event))), this.body);
    this.say('running', 'busy');
    if (event.args?.confirmation_state === 'awaiting_confirmation') this.wait();
  }

  wait() {
    this.say('needs approval', 'busy');
    this.element.open = this.opened = true;
  }

  say(word, kind) {
    this.status.className = `status ${kind}`;
    this.status.textContent = word;
  }

  observe(event) {
    this.over = true;
    if (this.opened) this.element.open = false; // it was open for approval
    this.say(...outcome(event));
    const { old_content: before, new_content: now, path } = event.extras || {};
    if (typeof now === 'string') show(this.body, diffTable(before || '', now, `Changes to ${path}`));
    else show(this.body, event.content ? h('pre', { tabindex: 0, 'aria-label': 'Output' }, event.content) : h('p', { class: 'help' }, 'No output'));
  }
}
