// The user's answers: a message or an approval.
import { pathOf, post, IdempotencyKey } from './api.js';
import { action, busy, h, show } from './render.js';
import { allowSound } from './sound.js';

export const send = (id, state) => post(pathOf(id, '/events'), { action: 'change_agent_state', args: { agent_state: state } });

export class Answer {
  constructor(id) {
    this.id = id;
    this.key = new IdempotencyKey();
    this.confirm = h('div', { class: 'confirm', role: 'alertdialog', 'aria-label': 'Approval required', hidden: true },
      this.question = h('p'), this.command = h('code'),
      this.unknown = h('p', { class: 'failed', hidden: true }, 'The agent did not describe this action. If in doubt, reject it.'),
      h('div', { class: 'buttons' },
        action('Approve', () => send(id, 'user_confirmed'), { class: 'main', 'data-do': 'approve' }),
        action('Reject', () => send(id, 'user_rejected'), { 'data-do': 'reject' })));
    this.text = h('textarea', { rows: 2, 'aria-label': 'Message to the agent', placeholder: 'Reply, or give the next instruction. Enter sends, Shift+Enter adds a line.' });
    this.button = h('button', { type: 'submit', class: 'main' }, 'Send');
    this.form = h('form', { class: 'answer' }, this.text, this.button);
    this.form.addEventListener('submit', busy(this.button, () => this.say()));
    this.text.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
      if (event.key === 'Escape') this.text.blur();
    });
    this.text.addEventListener('input', () => this.key.reset()); // the same text, typed again, is a new message
    this.off = h('p', { class: 'hint', hidden: true });
    this.element = h('div', { class: 'answers' }, this.confirm, this.off, this.form);
  }

  async say() {
    const message = this.text.value.trim();
    if (!message) return;
    allowSound();
    await post(pathOf(this.id, '/message'), { message }, { 'Idempotency-Key': this.key.of(message) });
    this.key.reset();
    this.text.value = '';
    this.text.focus();
  }

  // fit shows the controls that match the states of the conversation and the agent. asked returns
  // the tool call that needs approval.
  fit(item, agent, asked) {
    const running = item.status === 'RUNNING';
    const asks = running && agent === 'awaiting_user_confirmation';
    if (asks && this.confirm.hidden && !this.text.value) queueMicrotask(() => this.confirm.querySelector('button').focus());
    this.confirm.hidden = !asks;
    const call = asks ? asked() : null;
    show(this.question, call?.question || 'Approve this action?');
    show(this.command, call?.whole || '');
    this.unknown.hidden = !asks || this.command.textContent !== '';
    this.form.hidden = !running;
    this.off.hidden = running;
    show(this.off, item.status === 'STARTING' ? 'You can send messages once the conversation is running.' : 'The conversation is stopped. Start it to continue; its history is kept.');
  }
}
