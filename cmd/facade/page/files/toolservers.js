// MCP servers, in settings and in a new conversation.
import { area, key, lines, rows, text } from './fields.js';
import { h } from './render.js';

function remote(server = {}) {
  const url = text('URL', { value: server.url, type: 'url', required: true });
  const secret = key('API key', { set: server.api_key_set });
  return {
    element: h('div', { class: 'pair' }, url.element, secret.element),
    read: () => ({ url: url.read(), api_key: secret.read() }),
  };
}

// environmentOf parses one variable per line. A name without a value keeps the stored value.
function environmentOf(value) {
  return Object.fromEntries(lines(value).map((line) => {
    const at = line.indexOf('=');
    return at < 0 ? [line, null] : [line.slice(0, at), line.slice(at + 1)];
  }));
}

function stdio(server = {}) {
  const name = text('Name', { value: server.name, required: true });
  const command = text('Command', { value: server.command, required: true });
  const args = area('Arguments, one per line', { value: (server.args || []).join('\n'), rows: 2 });
  const env = area('Environment, one NAME=value per line', {
    value: Object.keys(server.env || {}).join('\n'), rows: 2, help: 'Values are never shown. A name without a value keeps its saved value.', autocomplete: 'off',
  });
  return {
    element: h('div', { class: 'pair' }, name.element, command.element, args.element, env.element),
    read: () => ({ name: name.read(), command: command.read(), args: lines(args.read()), env: environmentOf(env.read()) }),
  };
}

// toolServers is the field of all MCP servers. Its read() returns the three lists, or null if no
// server is stored and none was added.
export function toolServers(config) {
  const sse = rows('SSE servers', 'Add server', config?.sse_servers || [], remote);
  const http = rows('HTTP servers', 'Add server', config?.shttp_servers || [], remote);
  const local = rows('Stdio servers (run in the session)', 'Add server', config?.stdio_servers || [], stdio);
  return {
    element: h('div', null, sse.element, http.element, local.element),
    read: () => {
      const lists = { sse_servers: sse.read(), shttp_servers: http.read(), stdio_servers: local.read() };
      return config || Object.values(lists).some((list) => list.length > 0) ? lists : null;
    },
  };
}
