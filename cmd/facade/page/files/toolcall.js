// A tool call with its result, which the user can open and close.
import { detailsOf, questionOf, subjectOf, wordOf } from './calldetails.js';
import { diffTable } from './difflines.js';
import { h, show } from './render.js';
import { output, unfinished, visible } from './text.js';

export { isToolCall } from './calldetails.js';

function outcome(event) {
  const code = event.extras?.metadata?.exit_code;
  if (event.observation === 'user_rejected') return ['rejected', 'bad'];
  if (event.extras?.interrupted) return ['interrupted', 'bad'];
  if (code === -1) return ['still running', 'busy'];
  if (typeof code === 'number' && code !== 0) return [`exit ${code}`, 'bad'];
  return event.success === false || event.observation === 'error' ? ['failed', 'bad'] : ['done', 'good'];
}

export class ToolCall {
  constructor(event) {
    this.event = event;
    this.status = h('span', { class: 'status' });
    this.given = h('div');
    this.body = h('div', { class: 'body' });
    this.over = false;
    this.question = questionOf(event);
    this.whole = visible(subjectOf(event));
    const risk = event.args?.security_risk?.toLowerCase();
    this.element = h('details', { class: 'tool', id: `event-${event.id}` },
      h('summary', null, h('span', { class: 'kind' }, wordOf(event)), h('code', null, this.whole.split('\n')[0]),
        risk && h('span', { class: `risk ${risk}` }, `${risk} risk`), this.status),
      event.args?.thought && h('p', null, event.args.thought), this.given, this.body);
    // Create the details only when the call is opened: a long history has many calls, and users
    // open few of them.
    this.element.addEventListener('toggle', () => {
      if (this.element.open && !this.filled) show(this.given, this.whole.includes('\n') && h('pre', null, this.whole), detailsOf(event));
      this.filled ||= this.element.open;
    });
    this.say('running', 'busy');
    if (event.args?.confirmation_state === 'awaiting_confirmation') this.wait();
  }

  wait() {
    this.say('needs approval', 'busy');
    this.element.open = this.opened = true;
  }

  // cover shows the earlier approval that covers this action.
  cover(approval) {
    this.body.before(h('p', { class: 'help' }, `Covered by your approval of ${visible(approval)}`));
  }

  // print shows the last part of the output of a running command. The first output opens the call.
  print(text) {
    if (this.over) return;
    if (!this.printed) {
      this.printed = h('pre', { class: 'printed', tabindex: 0, 'aria-label': 'Output so far', 'aria-live': 'off' });
      this.opened ||= !this.element.open;
      this.element.open = true;
      show(this.body, this.printed);
    }
    const { scrollHeight, scrollTop, clientHeight } = this.printed;
    const atEnd = scrollHeight - scrollTop - clientHeight < 20;
    this.printed.textContent = output(text.replace(unfinished, ''));
    if (atEnd) this.printed.scrollTop = this.printed.scrollHeight;
  }

  say(word, kind) {
    this.status.className = `status ${kind}`;
    this.status.textContent = word;
  }

  observe(event) {
    this.over = true;
    if (this.opened) this.element.open = false; // the page opened it for approval or for its output
    this.say(...outcome(event));
    const { old_content: before, new_content: now, path } = event.extras || {};
    if (typeof now === 'string') show(this.body, diffTable(before || '', now, `Changes to ${path}`));
    else show(this.body, event.content ? h('pre', { tabindex: 0, 'aria-label': 'Output' }, output(event.content)) : h('p', { class: 'help' }, 'No output'));
  }
}
