// Markdown, which the facade renders. A request contains many texts, and only one request runs at a
// time. Texts are plain text until the response arrives, or if the request fails. Long texts are
// never rendered.
import { post } from './api.js';
import { h, pause } from './render.js';

const most = 50;
const mostBytes = 64 << 10; // the facade renders no more in one call
const mostTries = 5;
let waiting = [];
let timer = null;

export function markdown(text) {
  const element = h('div', { class: 'markdown plain' }, text);
  const bytes = new TextEncoder().encode(text).length;
  if (bytes > mostBytes) return element;
  waiting.push({ element, text, bytes });
  timer ??= setTimeout(render, 30);
  return element;
}

function batch() {
  let bytes = 0;
  const end = waiting.findIndex((next, i) => i === most || (bytes += next.bytes) > mostBytes);
  return waiting.splice(0, end < 0 ? waiting.length : end);
}

async function render() {
  for (let tries = 0; waiting.length > 0;) {
    const some = batch();
    try {
      const { html } = await post('/api/markdown', { texts: some.map(({ text }) => text) });
      some.forEach(({ element }, i) => {
        element.innerHTML = html[i]; // sanitized by the facade, and the page's policy blocks scripts
        element.classList.remove('plain');
      });
      tries = 0;
    } catch (error) {
      tries += 1;
      if (error.status !== 429 || tries > mostTries) continue; // the plain text stays
      waiting.unshift(...some);
      await pause(1000);
    }
  }
  timer = null;
}
