// Tool servers (MCP), in settings and in a new conversation.
import { area, key, lines, rows, text } from './fields.js';
import { h } from './render.js';

function remote(server = {}) {
  const url = text('Address', { value: server.url, type: 'url', required: true });
  const secret = key('Key', { set: server.api_key_set });
  return {
    element: h('div', { class: 'pair' }, url.element, secret.element),
    read: () => ({ url: url.read(), api_key: secret.read() }),
  };
}

// environment is written a line each. A name alone keeps the value that is stored.
function environmentOf(value) {
  return Object.fromEntries(lines(value).map((line) => {
    const at = line.indexOf('=');
    return at < 0 ? [line, null] : [line.slice(0, at), line.slice(at + 1)];
  }));
}

function stdio(server = {}) {
  const name = text('Name', { value: server.name, required: true });
  const command = text('Command', { value: server.command, required: true });
  const args = area('Arguments, one a line', { value: (server.args || []).join('\n'), rows: 2 });
  const env = area('Environment, NAME=value a line', {
    value: Object.keys(server.env || {}).join('\n'), rows: 2, help: 'Values are never shown. A name alone keeps its stored value.', autocomplete: 'off',
  });
  return {
    element: h('div', { class: 'pair' }, name.element, command.element, args.element, env.element),
    read: () => ({ name: name.read(), command: command.read(), args: lines(args.read()), env: environmentOf(env.read()) }),
  };
}

// toolServers is the three lists; null where all are empty and were so.
export function toolServers(config) {
  const sse = rows('Over Server-Sent Events', 'Add a server', config?.sse_servers || [], remote);
  const http = rows('Over HTTP', 'Add a server', config?.shttp_servers || [], remote);
  const local = rows('Run in the session', 'Add a program', config?.stdio_servers || [], stdio);
  return {
    element: h('div', null, sse.element, http.element, local.element),
    read: () => {
      const lists = { sse_servers: sse.read(), shttp_servers: http.read(), stdio_servers: local.read() };
      return config || Object.values(lists).some((list) => list.length > 0) ? lists : null;
    },
  };
}
