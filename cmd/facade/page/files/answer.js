// The user's part of a conversation: messages and approvals.
import { Approvals, Question } from './approvals.js';
import { pathOf, post, IdempotencyKey } from './api.js';
import { Attachments, dataURLs } from './attachments.js';
import { readDraft, saveDraft } from './drafts.js';
import { lookNow } from './follow.js';
import { busy, h, show } from './render.js';
import { allowSound } from './sound.js';

export const send = (id, state) => post(pathOf(id, '/events'), { action: 'change_agent_state', args: { agent_state: state } });

// A phone's keyboard has no Shift+Enter.
const phone = matchMedia('(hover: none) and (pointer: coarse)');
const prompts = { RUNNING: 'Reply, or give the next instruction.', STOPPED: 'Send a message to resume.', STARTING: 'Your message waits until the session runs.' };
const promptFor = (status) => prompts[status] + (phone.matches ? '' : ' Enter sends, Shift+Enter adds a line.');

export class Answer {
  constructor(id) {
    this.id = id;
    this.key = new IdempotencyKey();
    this.status = 'RUNNING';
    this.sending = false;
    this.question = new Question(id);
    this.approvals = new Approvals(id);
    this.text = h('textarea', {
      rows: 2, 'aria-label': 'Message to the agent', value: readDraft(id)?.text || '',
      placeholder: promptFor('RUNNING'),
    });
    this.button = h('button', { type: 'submit', class: 'main' }, 'Send');
    this.attached = new Attachments(this.text, () => this.edited());
    this.form = h('form', { class: 'answer' }, this.text, this.button, this.attached.element);
    this.form.addEventListener('submit', busy(this.button, () => this.say()));
    this.text.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && !phone.matches) {
        event.preventDefault();
        this.form.requestSubmit();
      }
      if (event.key === 'Escape') this.text.blur();
    });
    this.text.addEventListener('input', () => {
      this.edited();
      this.save();
    });
    this.off = h('p', { class: 'hint', role: 'status', hidden: true });
    this.element = h('div', { class: 'answers' }, this.approvals.element, this.question.element, this.off, this.form);
  }

  // After edited(), the same text counts as a new message. A message that is being sent keeps its
  // idempotency key.
  edited() {
    if (!this.sending) this.key.reset();
  }

  save() { saveDraft(this.id, this.text.value && { text: this.text.value }); }

  async say() {
    const typed = this.text.value;
    const message = typed.trim();
    const { files } = this.attached;
    if (!message && files.length === 0) return;
    allowSound();
    const request = { message, image_urls: files.length > 0 ? await dataURLs(files) : undefined };
    this.sending = true;
    this.fitStatus();
    try {
      await post(pathOf(this.id, '/message'), request, { 'Idempotency-Key': this.key.of(request) });
    } finally {
      this.sending = false;
      this.fitStatus();
      if (this.status !== 'RUNNING') lookNow();
    }
    this.key.reset();
    this.attached.remove(files);
    // Remove the sent text. Keep the text that the user typed while the message was being sent.
    if (this.text.value.startsWith(typed)) this.text.value = this.text.value.slice(typed.length).trimStart();
    this.save();
    if (document.activeElement === document.body) this.text.focus(); // the disabled button lost the focus
  }

  clear() { this.approvals.clear(); }

  take(event) { this.approvals.take(event); }

  // fit shows the controls that match the states of the conversation and the agent. asked() returns
  // the pending question.
  fit(item, agent, asked) {
    const running = item.status === 'RUNNING';
    this.question.ask(running && agent === 'awaiting_user_confirmation' ? asked() : null);
    this.status = item.status;
    this.finished = item.status === 'STOPPED' && item.reason === 'Completed'; // no more messages are accepted
    this.fitStatus();
  }

  // fitStatus shows the controls that match the state of the conversation. A message to a stopped
  // conversation starts the session, and is sent as soon as the session runs.
  fitStatus() {
    const starting = this.status === 'STARTING';
    const waking = this.sending && this.status !== 'RUNNING';
    const prompt = promptFor(this.status);
    if (this.text.placeholder !== prompt) this.text.placeholder = prompt;
    this.form.hidden = (starting || this.finished) && !this.sending && !this.text.value; // an unsent text stays visible
    const hints = { STOPPED: this.finished ? 'The agent has finished. Duplicate the conversation to work on another task.' : 'The conversation is stopped. Send a message to resume it; its history is kept.', STARTING: this.form.hidden ? 'You can send messages when the conversation is running.' : '' };
    const hint = waking ? 'Waking up…' : hints[this.status] ?? '';
    this.off.hidden = !hint;
    if (this.off.textContent !== hint) show(this.off, hint);
  }
}
