// The agent's plan, and the cost so far.
import { get, pathOf } from './api.js';
import { h, show } from './render.js';

const marks = { todo: ['○', 'to do'], in_progress: ['◐', 'in progress'], done: ['●', 'done'] };

export class Plan {
  constructor() {
    this.element = h('aside', { class: 'plan', 'aria-label': 'Plan', hidden: true });
  }

  clear() { this.element.hidden = true; }

  take(event) {
    if (event.observation !== 'task_tracking') return;
    const tasks = event.extras?.task_list || [];
    this.element.hidden = tasks.length === 0;
    const done = tasks.filter((task) => task.status === 'done').length;
    show(this.element, h('h2', null, `Plan: ${done} of ${tasks.length} done`), h('ol', null, tasks.map((task) => {
      const [mark, word] = marks[task.status] || marks.todo;
      return h('li', { class: task.status }, h('span', { class: 'mark', role: 'img', 'aria-label': word }, mark), ' ', task.title);
    })));
  }
}

const number = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export class Cost {
  constructor() {
    this.element = h('span', { class: 'cost' });
  }

  // ask reads the usage, for example after a turn. Calls in quick succession cause only one
  // request.
  ask(id, signal) {
    this.timer ??= setTimeout(async () => {
      this.timer = null;
      if (signal.aborted) return;
      try { this.say(await get(pathOf(id, '/usage'), signal)); } catch { /* keep the old value */ }
    }, 300);
  }

  say({ cost, input_tokens: input, output_tokens: output }) {
    const parts = [];
    if (Number(cost) > 0) parts.push(`$${Number(cost).toFixed(Number(cost) < 1 ? 4 : 2)}`);
    if (input || output) parts.push(`${number.format(input || 0)} tokens in, ${number.format(output || 0)} out`);
    this.element.textContent = parts.join(' · ');
  }
}
