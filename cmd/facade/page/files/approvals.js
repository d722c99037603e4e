// Questions about single actions, and the list of approvals that the user gave for all similar
// actions.
import { pathOf, post, IdempotencyKey } from './api.js';
import { detailsOf } from './calldetails.js';
import { action, h, notice, show } from './render.js';
import { visible } from './text.js';

const settle = 1000; // in milliseconds; an earlier click was meant for the previous content of the page
const longestReason = 2000;

// Question asks the user to approve one action. A new question never takes the focus, and gets new
// buttons. A key or click that was meant for an earlier question therefore does not answer the new
// question.
export class Question {
  constructor(id) {
    this.id = id;
    this.key = new IdempotencyKey();
    this.shown = null;
    this.title = h('p', { role: 'status' });
    this.body = h('div');
    this.element = h('section', { class: 'confirm', 'aria-label': 'Approval required', tabindex: -1, hidden: true }, this.title, this.body);
  }

  // ask shows a question; null hides it. question.id is the ID of the question's event.
  // question.remember describes the similar actions that the user may also approve.
  // question.incomplete is set if a part of the call is missing.
  ask(question) {
    const now = question && `${question.id} ${question.call?.event.id}`;
    if (now === this.shown) return;
    this.shown = now;
    const focused = this.element.contains(document.activeElement);
    this.element.hidden = !question;
    show(this.title, question && (question.call?.question || 'Approve this action?'));
    show(this.body, question && this.form(question));
    if (question && focused) this.element.focus(); // the focused button is gone; no new button may get the next key press
  }

  form({ id, call, remember, incomplete }) {
    const reason = h('input', { maxlength: longestReason, 'aria-label': 'Reason for rejecting', placeholder: 'Reason for rejecting (optional)', autocomplete: 'off' });
    const buttons = h('fieldset', { class: 'buttons', disabled: true },
      this.button('Approve', id, () => ({ agent_state: 'user_confirmed' }), { class: 'main', 'data-do': 'approve' }),
      remember && this.button(`Approve ${visible(remember)} in this session`, id, () => ({ agent_state: 'user_confirmed', remember: true }), { 'data-do': 'remember' }),
      this.button('Reject', id, () => ({ agent_state: 'user_rejected', ...(reason.value.trim() && { reason: reason.value.trim() }) }), { 'data-do': 'reject' }),
      reason);
    reason.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.isComposing) buttons.querySelector('[data-do=reject]').click();
    });
    requestAnimationFrame(() => setTimeout(() => { buttons.disabled = false; }, settle)); // counted from when the question is on the screen
    const whole = h('div', { class: 'whole', tabindex: 0, role: 'group', 'aria-label': 'Action' },
      call?.whole && h('pre', null, h('code', null, call.whole)), call && detailsOf(call.event));
    const more = h('p', { class: 'help', hidden: true }, 'Scroll to read all of it.');
    queueMicrotask(() => { more.hidden = whole.scrollHeight <= whole.clientHeight; });
    return [whole, more, incomplete && h('p', { class: 'failed' }, 'This action is too large to show in full. If in doubt, reject it.'), !whole.hasChildNodes() && h('p', { class: 'failed' }, 'The agent did not describe this action. If in doubt, reject it.'), buttons];
  }

  button(label, id, answer, properties) {
    const button = h('button', { type: 'button', ...properties }, label);
    button.addEventListener('click', () => this.answer(button.parentElement, { ...answer(), question: id }));
    return button;
  }

  // answer sends the user's answer, one time. If the request fails, the user can retry.
  async answer(buttons, args) {
    if (buttons.disabled) return;
    buttons.disabled = true;
    try {
      await post(pathOf(this.id, '/events'), { action: 'change_agent_state', args }, { 'Idempotency-Key': this.key.of(args) });
    } catch (error) {
      buttons.disabled = false;
      notice(error.message, error.status === 409 ? 'info' : 'error');
    }
  }
}

// Approvals lists the approvals that are not revoked.
export class Approvals {
  constructor(id) {
    this.id = id;
    this.list = h('ul');
    this.title = h('summary');
    this.element = h('details', { class: 'approvals', hidden: true }, this.title, this.list);
    this.clear();
  }

  clear() {
    this.active = new Map(); // the texts, by event ID
    this.draw();
  }

  take({ id, source, action: kind, args }) {
    if (source !== 'user') return;
    if (kind === 'change_agent_state' && args?.remember === true && args.remembered) this.active.set(id, args.remembered);
    else if (kind !== 'revoke_approval' || !this.active.delete(args?.approval)) return;
    this.draw();
  }

  draw() {
    this.element.hidden = this.active.size === 0;
    show(this.title, `Approvals in this session: ${this.active.size}`);
    show(this.list, [...this.active].map(([id, text]) => h('li', null, visible(text), ' ',
      action('Revoke', () => post(pathOf(this.id, '/events'), { action: 'revoke_approval', args: { approval: id } })))));
  }
}
