// Form fields. Each field has an element, and a function read() that returns the value to send;
// undefined means that no value is sent.
import { get } from './api.js';
import { h, show } from './render.js';

let count = 0;

function labelled(label, input, help) {
  count += 1;
  const id = `field-${count}`;
  input.id = id;
  const note = help && h('p', { class: 'help', id: `${id}-help` }, help);
  if (note) input.setAttribute('aria-describedby', note.id);
  return h('div', { class: 'field' }, h('label', { for: id }, label), input, note);
}

// offered is a list of values that a text field offers. The list is empty until the values are
// loaded from the path.
export function offered(path, signal) {
  count += 1;
  const list = h('datalist', { id: `words-${count}` });
  if (path) load(list, path, signal);
  return list;
}

function load(list, path, signal) {
  list.dataset.path = path;
  get(path, signal).then((words) => {
    // Ignore the response to an earlier request, which may arrive last.
    if (list.dataset.path === path) show(list, words.map((value) => h('option', { value })));
  }, () => {});
}

// offerModelsOf loads a list of models, now and whenever the user changes the agent field. The list
// contains the models that this agent can use.
export function offerModelsOf(agent, list, signal) {
  const reload = () => load(list, `/api/options/models?agent=${encodeURIComponent(agent.read() ?? '')}`, signal);
  agent.input.addEventListener('change', reload);
  reload();
}

export function text(label, { value = '', help, list, type = 'text', name, ...more } = {}) {
  const input = h('input', { type, value: value ?? '', list: list?.id, name, autocomplete: 'off', ...more });
  return { element: labelled(label, input, help), input, read: () => input.value.trim() || null };
}

export function number(label, options = {}) {
  const field = text(label, { type: 'number', step: 'any', ...options });
  return { ...field, read: () => (field.input.value === '' ? null : Number(field.input.value)) };
}

export function area(label, { value = '', help, rows = 3, name, ...more } = {}) {
  const input = h('textarea', { rows, name, value: value ?? '', ...more });
  return { element: labelled(label, input, help), input, read: () => (input.value.trim() ? input.value : null) };
}

export function choice(label, options, { value = '', help, name } = {}) {
  const input = h('select', { name }, options.map(([key, word]) => h('option', { value: key }, word)));
  input.value = value ?? '';
  return { element: labelled(label, input, help), input, read: () => input.value || null };
}

// maybe() returns a field with the choices yes, no and "not set".
export function maybe(label, { value, help, name } = {}) {
  const field = choice(label, [['', 'Not set'], ['true', 'Yes'], ['false', 'No']], { value: value === null || value === undefined ? '' : String(value), help, name });
  return { ...field, read: () => ({ true: true, false: false })[field.input.value] ?? null };
}

export function check(label, { value = false, help, name } = {}) {
  const input = h('input', { type: 'checkbox', checked: Boolean(value), name });
  const element = labelled(label, input, help);
  element.classList.add('check');
  return { element, input, read: () => input.checked };
}

// key is a write-only field: the page never has the stored value. If the user types nothing, no
// value is sent.
export function key(label, { set = false, help, name } = {}) {
  const input = h('input', { type: 'password', autocomplete: 'new-password', name, placeholder: set ? 'Saved; type to replace' : 'Not set' });
  const remove = set && h('input', { type: 'checkbox', 'aria-label': `Remove: ${label}` });
  const element = labelled(label, input, help);
  if (remove) element.append(h('label', { class: 'remove' }, remove, 'Remove'));
  return { element, input, read: () => (remove?.checked ? '' : input.value || undefined) };
}

export const providers = [['github', 'GitHub'], ['gitlab', 'GitLab'], ['bitbucket', 'Bitbucket'], ['enterprise_sso', 'Enterprise SSO']];

export function provider(label, options) {
  return choice(label, [['', 'Not set'], ...providers], options);
}

export function group(title, ...fields) {
  return h('fieldset', null, h('legend', null, title), fields.map((field) => field.element || field));
}

// rows is a list of entries that can be added and removed. make(value) returns the field of one
// entry.
export function rows(title, add, values, make) {
  const entries = new Set();
  const list = h('div', { class: 'rows' });
  const append = (value, focus) => {
    const field = make(value);
    entries.add(field);
    const row = h('div', { class: 'entry' }, field.element, h('button', {
      type: 'button', 'aria-label': `Remove this entry from: ${title}`, onclick: () => { field.removed?.(); entries.delete(field); row.remove(); },
    }, 'Remove'));
    list.append(row);
    if (focus) row.querySelector('input, textarea')?.focus();
  };
  values.forEach((value) => append(value));
  const element = h('div', { class: 'field' }, h('h4', null, title), list, h('button', { type: 'button', onclick: () => append(undefined, true) }, add));
  return { element, read: () => [...entries].map((field) => field.read()) };
}

// lines splits a text into lines, and drops empty lines.
export const lines = (value) => (value || '').split('\n').map((line) => line.trim()).filter(Boolean);
