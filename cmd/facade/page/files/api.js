// Calls of the facade. The browser sends the cookie with them; no script can read it.

export class Refused extends Error {
  constructor(status, text, body = null) {
    super(text);
    this.status = status;
    this.body = body;
  }
}

let signedOut = () => {};
// whenSignedOut says what to do when the cookie is no longer good.
export function whenSignedOut(then) { signedOut = then; }

// words of a refusal, in whatever form it comes.
function wordsOf(body, status) {
  const detail = body?.detail;
  if (Array.isArray(detail)) {
    return detail.map((d) => `${(d.loc || []).filter((part) => part !== 'body').join('.')}: ${d.msg}`).join('\n');
  }
  return detail || body?.message || body?.error || `The facade answered with ${status}`;
}

async function send(method, path, options) {
  let response;
  try {
    response = await fetch(path, { method, ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refused(0, 'The facade cannot be reached');
  }
  if (response.ok) return response;
  let body = null;
  try { body = await response.json(); } catch { /* what is no JSON says nothing more */ }
  if (response.status === 401) signedOut();
  throw new Refused(response.status, wordsOf(body, response.status), body);
}

// call with JSON, and be answered with JSON.
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

// Wish is a request by a key of its own, as long as it asks for the same: where the answer to it was
// lost, asking again does nothing twice.
export class Wish {
  keyOf(request) {
    const asked = JSON.stringify(request);
    if (asked !== this.asked) this.key = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
    this.asked = asked;
    return this.key;
  }

  granted() { this.asked = null; }
}

// upload files.
export async function upload(path, files) {
  const form = new FormData();
  for (const file of files) form.append('files', file);
  return (await send('POST', path, { body: form })).json();
}

// stream opens a stream of Server-Sent Events, and hands each over with its id.
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
      const data = block.split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6)).join('\n');
      if (data) each(JSON.parse(data));
    }
  }
}

// path of a conversation, or of something in it.
export const pathOf = (id, rest = '') => `/api/conversations/${encodeURIComponent(id)}${rest}`;
