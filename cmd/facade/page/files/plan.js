// The agent's plan, and what it cost so far.
import { h, show } from './render.js';

const marks = { todo: ['○', 'to do'], in_progress: ['◐', 'in progress'], done: ['●', 'done'] };

export class Plan {
  constructor() {
    this.element = h('aside', { class: 'plan', 'aria-label': 'Plan', hidden: true });
  }

  take(event) {
    if (event.observation !== 'task_tracking') return;
    const tasks = event.extras?.task_list || [];
    this.element.hidden = tasks.length === 0;
    const done = tasks.filter((task) => task.status === 'done').length;
    show(this.element, h('h2', null, `Plan, ${done} of ${tasks.length} done`), h('ol', null, tasks.map((task) => {
      const [mark, word] = marks[task.status] || marks.todo;
      return h('li', { class: task.status }, h('span', { class: 'mark', role: 'img', 'aria-label': word }, mark), ' ', task.title);
    })));
  }
}

const number = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

// Cost is what the events or the conversation say of it, if they do.
export class Cost {
  constructor() {
    this.element = h('span', { class: 'cost' });
  }

  take(event) {
    const said = event.llm_metrics;
    if (said) this.say(said.accumulated_cost, said.accumulated_token_usage?.prompt_tokens, said.accumulated_token_usage?.completion_tokens);
  }

  item(item) {
    const said = item.usage;
    if (said) this.say(said.cost, said.input_tokens, said.output_tokens);
  }

  say(cost, input, output) {
    const parts = [];
    if (cost !== undefined && cost !== null && cost !== '') parts.push(`$${Number(cost).toFixed(Number(cost) < 1 ? 4 : 2)}`);
    if (input || output) parts.push(`${number.format(input || 0)} tokens in, ${number.format(output || 0)} out`);
    this.element.textContent = parts.join(' · ');
  }
}
