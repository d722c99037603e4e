// Small helpers for rendering: h creates an element, and show replaces the content of an element.

// h creates an element. A property whose name starts with "on" is an event listener; all others are
// attributes. The value true sets an attribute without a value; false omits it. "value" and
// "checked" are set on the element itself, because their attributes are only initial values.
// Children are elements, texts or lists of them; null and false are omitted.
export function h(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'value' || key === 'checked') element[key] = value;
    else element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...flat(children));
  return element;
}

export function show(parent, ...children) {
  parent.replaceChildren(...flat(children));
  return parent;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

// linkTo is a link to a page of a git host.
export function linkTo(url) {
  return /^https?:\/\//.test(url) ? h('a', { href: url, target: '_blank', rel: 'noopener noreferrer' }, url) : url;
}

// notice shows a text for a moment, also to screen readers.
export function notice(text, kind = 'info') {
  const line = h('p', { class: `notice ${kind}` }, text);
  document.getElementById('notices').append(line);
  setTimeout(() => line.remove(), kind === 'error' ? 8000 : 3000);
}

// problem shows an error in place of content that failed to load.
export function problem(error, again) {
  return h('div', { class: 'problem', role: 'alert' },
    h('p', null, error.message),
    again && h('button', { type: 'button', onclick: again }, 'Try again'));
}

// busy returns a listener that runs work() and disables the button until work() ends. It shows the
// error of work(), if any.
export function busy(button, work) {
  return async (event) => {
    event?.preventDefault();
    if (button.disabled) return;
    button.disabled = true;
    try {
      await work(event);
    } catch (error) {
      if (error.name !== 'AbortError') notice(error.message, 'error');
    } finally {
      button.disabled = false;
    }
  };
}

// action returns a button that runs work() when it is clicked.
export function action(label, work, properties = {}) {
  const button = h('button', { type: 'button', ...properties }, label);
  button.addEventListener('click', busy(button, work));
  return button;
}

const units = [['day', 86400], ['hour', 3600], ['minute', 60]];
const relative = new Intl.RelativeTimeFormat('en', { numeric: 'auto' });

// ago shows a relative time, with the exact time as a tooltip.
export function ago(time) {
  const date = new Date(time);
  const seconds = (date - Date.now()) / 1000;
  const [unit, size] = units.find(([, length]) => Math.abs(seconds) >= length) || ['second', 1];
  const text = unit === 'second' ? 'just now' : relative.format(Math.round(seconds / size), unit);
  return h('time', { datetime: date.toISOString(), title: date.toLocaleString() }, text);
}

export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, signal?.aborted ? 0 : milliseconds);
    signal?.addEventListener('abort', end);
  });
}
