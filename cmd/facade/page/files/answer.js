// How a person answers: a message, an approval, a pause.
import { pathOf, post, Wish } from './api.js';
import { action, busy, h, show } from './render.js';
import { allowSound } from './sound.js';

export const send = (id, state) => post(pathOf(id, '/events'), { action: 'change_agent_state', args: { agent_state: state } });

export class Answer {
  constructor(id) {
    this.id = id;
    this.wish = new Wish();
    this.confirm = h('div', { class: 'confirm', role: 'alertdialog', 'aria-label': 'The agent asks for approval', hidden: true },
      h('p', null, 'The agent asks whether it may do this.'), this.what = h('code'),
      this.unknown = h('p', { class: 'failed', hidden: true }, 'What it would do is not known here: it did not say. Reject it if in doubt.'),
      h('div', { class: 'buttons' },
        action('Approve', () => send(id, 'user_confirmed'), { class: 'main', 'data-do': 'approve' }),
        action('Reject', () => send(id, 'user_rejected'), { 'data-do': 'reject' })));
    this.text = h('textarea', { rows: 2, 'aria-label': 'Message to the agent', placeholder: 'Answer, or say what to do next. Enter sends, Shift+Enter begins a new line.' });
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
    this.text.addEventListener('input', () => this.wish.granted()); // what is typed again is another message, though it says the same
    this.off = h('p', { class: 'hint', hidden: true });
    this.element = h('div', { class: 'answers' }, this.confirm, this.off, this.form);
  }

  async say() {
    const message = this.text.value.trim();
    if (!message) return;
    allowSound();
    await post(pathOf(this.id, '/message'), { message }, { 'Idempotency-Key': this.wish.keyOf(message) });
    this.wish.granted();
    this.text.value = '';
    this.text.focus();
  }

  // fit what can be answered to what the conversation is and does.
  fit(item, agent, asked) {
    const running = item.status === 'RUNNING';
    const asks = running && agent === 'awaiting_user_confirmation';
    if (asks && this.confirm.hidden && !this.text.value) queueMicrotask(() => this.confirm.querySelector('button').focus());
    this.confirm.hidden = !asks;
    this.what.textContent = asks ? asked() : '';
    this.unknown.hidden = !asks || this.what.textContent !== '';
    this.form.hidden = !running;
    this.off.hidden = running;
    show(this.off, item.status === 'STARTING' ? 'It can be answered as soon as it runs.' : 'It does not run. Start it to go on; what happened is kept.');
  }
}
