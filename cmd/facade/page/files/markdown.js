// Markdown, rendered by the facade, with many texts per call. Until the answer arrives, or if it
// fails, the plain text is shown.
import { post } from './api.js';
import { h } from './render.js';

const most = 50;
const mostBytes = 512 << 10;
let waiting = [];
let timer = null;

export function markdown(text) {
  const element = h('div', { class: 'markdown plain' }, text);
  waiting.push({ element, text });
  timer ??= setTimeout(render, 30);
  return element;
}

function batch() {
  let bytes = 0;
  const end = waiting.findIndex(({ text }, i) => i === most || (i > 0 && (bytes += text.length) > mostBytes));
  return waiting.splice(0, end < 0 ? waiting.length : end);
}

async function render() {
  while (waiting.length > 0) {
    const some = batch();
    try {
      const { html } = await post('/api/markdown', { texts: some.map(({ text }) => text) });
      some.forEach(({ element }, i) => {
        element.innerHTML = html[i]; // sanitized by the facade, and the page's policy blocks scripts
        element.classList.remove('plain');
      });
    } catch { /* the plain text stays */ }
  }
  timer = null;
}
