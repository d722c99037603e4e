// Calls of the facade's HTTP API. The browser adds the sign-in cookie, which no script can read.

export class Refused extends Error {
  constructor(status, text, body = null) {
    super(text);
    this.status = status;
    this.body = body;
  }
}

const settingsKey = 'settings';
let settings = ''; // as namespace/name; empty for a session key
try { settings = sessionStorage.getItem(settingsKey) || ''; } catch { /* storage is off */ }

// useSettings sets the settings that this tab uses, across reloads and renewed sign-ins. All tabs
// share the cookie, so each request names the settings of its tab.
export function useSettings(name) {
  settings = name;
  try {
    if (name) sessionStorage.setItem(settingsKey, name);
    else sessionStorage.removeItem(settingsKey);
  } catch { /* storage is off: the choice lasts until the next reload */ }
}

// currentSession returns the session of this tab. If the signed-in person may not use the tab's
// settings, it forgets these settings and asks the server again.
export async function currentSession() {
  const session = await get('/api/session');
  if (!settings || session.user || !session.person) return session;
  useSettings('');
  return get('/api/session');
}

let signedOut = () => {};
// whenSignedOut sets a function to call when the cookie is no longer valid.
export function whenSignedOut(then) { signedOut = then; }

// errorText returns the text of an error response, which may have one of several formats.
function errorText(body, status) {
  const detail = body?.detail;
  if (Array.isArray(detail)) {
    return detail.map((d) => `${(d.loc || []).filter((part) => part !== 'body').join('.')}: ${d.msg}`).join('\n');
  }
  return detail || body?.message || body?.error || `The server reported an error (${status})`;
}

async function send(method, path, options) {
  let response;
  try {
    const headers = settings ? { 'X-Parley-Settings': settings, ...options.headers } : options.headers;
    response = await fetch(path, { method, ...options, headers });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refused(0, 'Cannot reach the server');
  }
  if (response.ok) return response;
  let body = null;
  try { body = await response.json(); } catch { /* not JSON: there are no details */ }
  if (response.status === 401) signedOut();
  throw new Refused(response.status, errorText(body, response.status), body);
}

// call sends a request with a JSON body, and returns the JSON body of the response.
export async function call(method, path, body, signal, headers = {}) {
  const options = { signal, headers };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { 'Content-Type': 'application/json', ...headers };
  }
  return (await send(method, path, options)).json();
}

export const get = (path, signal) => call('GET', path, undefined, signal);
export const post = (path, body, headers) => call('POST', path, body, undefined, headers);

// IdempotencyKey returns the same key for the same request. The page may repeat a request after a
// lost response; the facade then executes it only one time.
export class IdempotencyKey {
  of(request) {
    const text = JSON.stringify(request);
    if (text !== this.last) this.key = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
    this.last = text;
    return this.key;
  }

  reset() { this.last = null; }
}

export async function upload(path, files) {
  const form = new FormData();
  for (const file of files) form.append('files', file);
  return (await send('POST', path, { body: form })).json();
}

// stream reads a stream of Server-Sent Events. For every event it calls each(data, name); the name
// may be empty.
export async function stream(path, each, signal) {
  const response = await send('GET', path, { signal, headers: { Accept: 'text/event-stream' } });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.split('\n').filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join('\n');
      const data = field('data');
      if (data) each(JSON.parse(data), field('event'));
    }
  }
}

// downloadOf returns the address of a download. The query names the settings, because a link cannot
// send a header.
export const downloadOf = (id, rest) => pathOf(id, rest) + (settings && `?settings=${encodeURIComponent(settings)}`);

// pathOf returns the path of a conversation or of a part of it.
export const pathOf = (id, rest = '') => `/api/conversations/${encodeURIComponent(id)}${rest}`;
