// The difference of two texts, line by line.
import { h } from './render.js';
import { visible } from './text.js';

const context = 3;
// The constant most is the maximum length of an edit script, in added and removed lines. If the
// shortest edit script is longer, all old lines are shown as removed, and all new lines as added.
const most = 600;

const linesOf = (text) => {
  const lines = text.split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines;
};

// script returns the shortest edit script from the lines a to the lines b (Myers' algorithm): a
// list of [kind, line]. The kind is ' ', '-' or '+'.
function script(a, b) {
  const trace = [];
  let reach = new Map([[1, 0]]);
  for (let d = 0; d <= Math.min(most, a.length + b.length); d += 1) {
    trace.push(reach);
    const next = new Map(reach);
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? reach.get(k + 1) ?? 0 : (reach.get(k - 1) ?? 0) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      next.set(k, x);
      if (x >= a.length && x - k >= b.length) return walkBack(a, b, trace, d);
    }
    reach = next;
  }
  return [...a.map((line) => ['-', line]), ...b.map((line) => ['+', line])];
}

function walkBack(a, b, trace, steps) {
  const result = [];
  let [x, y] = [a.length, b.length];
  for (let d = steps; d >= 0; d -= 1) {
    const reach = trace[d];
    const k = x - y;
    const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const before = down ? k + 1 : k - 1;
    const fromX = d === 0 ? 0 : reach.get(before) ?? 0;
    const fromY = d === 0 ? 0 : fromX - before;
    while (x > fromX && y > fromY) { x -= 1; y -= 1; result.push([' ', a[x]]); }
    if (d === 0) break;
    if (down) { y -= 1; result.push(['+', b[y]]); } else { x -= 1; result.push(['-', a[x]]); }
  }
  return result.reverse();
}

// difference returns [kind, line, old number, new number] for lines near a change and null for
// other lines.
export function difference(original, modified) {
  const [a, b] = [linesOf(original), linesOf(modified)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const same = (lines) => lines.map((line) => [' ', line]);
  const all = [
    ...same(a.slice(0, start)), ...script(a.slice(start, a.length - end), b.slice(start, b.length - end)), ...same(a.slice(a.length - end)),
  ];
  let [before, now] = [0, 0];
  const numbered = all.map(([kind, line]) => {
    if (kind !== '+') before += 1;
    if (kind !== '-') now += 1;
    return [kind, line, kind === '+' ? '' : before, kind === '-' ? '' : now];
  });
  const near = new Uint8Array(numbered.length);
  numbered.forEach(([kind], i) => {
    if (kind !== ' ') near.fill(1, Math.max(0, i - context), i + context + 1);
  });
  return numbered.map((line, i) => (near[i] ? line : null));
}

const words = { '+': 'added', '-': 'removed', ' ': 'same' };

// diffTable shows a difference. A row of dots replaces unchanged lines.
export function diffTable(original, modified, label) {
  const body = h('tbody');
  let skipped = false;
  for (const line of difference(original, modified)) {
    if (line === null) {
      if (!skipped) body.append(h('tr', { class: 'skipped' }, h('td', { colspan: 4 }, '⋯')));
      skipped = true;
      continue;
    }
    skipped = false;
    const [kind, text, before, now] = line;
    body.append(h('tr', { class: words[kind] },
      h('td', { class: 'number' }, String(before)), h('td', { class: 'number' }, String(now)),
      h('td', { class: 'sign', 'aria-label': words[kind] }, kind), h('td', null, visible(text))));
  }
  if (original && modified && original.endsWith('\n') !== modified.endsWith('\n')) {
    body.append(h('tr', { class: 'skipped' }, h('td', { colspan: 4 }, `Newline at end of file ${modified.endsWith('\n') ? 'added' : 'removed'}`)));
  }
  return h('div', { class: 'diff', tabindex: 0, role: 'region', 'aria-label': label }, h('table', null, body));
}
