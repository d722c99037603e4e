// A user's secrets: tokens of git providers, and secrets for the agent's environment.
import { key, providers, rows, text } from './fields.js';
import { h } from './render.js';

function providerFields(name, word, stored, isSet) {
  const token = key(`${word} token`, { set: isSet, name: `token-${name}` });
  const host = text('Host (if self-hosted)', { value: stored?.host });
  const user = text('User ID', { value: stored?.user_id });
  const before = JSON.stringify([host.read(), user.read()]);
  return {
    element: h('div', { class: 'pair' }, token.element, host.element, user.element),
    read: () => {
      const value = token.read();
      if (value === '') return null; // remove it
      const changed = value !== undefined || JSON.stringify([host.read(), user.read()]) !== before;
      return changed ? { token: value, host: host.read(), user_id: user.read() } : undefined;
    },
  };
}

function secretFields(removed) {
  return ([name, stored] = ['', undefined]) => {
    const title = text('Name', { value: name, required: true, pattern: '[A-Za-z_][A-Za-z0-9_]*', readonly: Boolean(stored) });
    const value = key('Value', { set: false });
    if (stored) value.input.placeholder = 'Saved; type to replace';
    const description = text('Description', { value: stored?.description });
    return {
      element: h('div', { class: 'pair' }, title.element, value.element, description.element),
      removed: () => { if (stored) removed.add(name); },
      read: () => {
        const typed = value.read();
        const changed = !stored || typed !== undefined || description.read() !== (stored.description ?? null);
        return [title.read(), changed ? { secret: typed, description: description.read() } : undefined];
      },
    };
  };
}

// secretsStore is the field of all secrets. Its read() returns the changed entries, or undefined if
// there are none.
export function secretsStore(stored, tokensSet) {
  const removed = new Set();
  const tokens = providers.map(([name, word]) => [name, providerFields(name, word, stored?.provider_tokens?.[name], name in (tokensSet || {}))]);
  const custom = rows('Environment secrets', 'Add secret', Object.entries(stored?.custom_secrets || {}), secretFields(removed));
  return {
    element: h('div', null, h('div', { class: 'field' }, h('h4', null, 'Git providers'), tokens.map(([, field]) => field.element)), custom.element),
    read: () => {
      const defined = (entries) => Object.fromEntries(entries.filter(([name, value]) => name && value !== undefined));
      const store = {
        provider_tokens: defined(tokens.map(([name, field]) => [name, field.read()])),
        custom_secrets: { ...Object.fromEntries([...removed].map((name) => [name, null])), ...defined(custom.read()) },
      };
      return Object.values(store).some((entries) => Object.keys(entries).length > 0) ? store : undefined;
    },
  };
}
