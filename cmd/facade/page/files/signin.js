// Signing in: with the session key by hand, or by a link that works once.
import { post } from './api.js';
import { h, show, busy } from './render.js';

export function showSignIn(main, then, reason = '') {
  const key = h('input', { id: 'key', type: 'password', autocomplete: 'current-password', required: true, 'aria-describedby': 'key-help' });
  const failed = h('p', { class: 'failed', role: 'alert' }, reason);
  const button = h('button', { type: 'submit', class: 'main' }, 'Sign in');
  const form = h('form', { class: 'card signin' },
    h('h1', null, 'Sign in'),
    h('label', { for: 'key' }, 'Session key'), key,
    h('p', { id: 'key-help', class: 'help' }, 'It is in the Secret that the status of your UserSettings names.'),
    failed, button);
  form.addEventListener('submit', busy(button, async () => {
    failed.textContent = '';
    try {
      then(await post('/api/signin', { key: key.value.trim() }));
    } catch (error) {
      failed.textContent = error.status === 401 ? 'This is nobody’s key.' : error.message;
      key.select();
    }
  }));
  show(main, form);
  key.focus();
}

// signInByLink takes the code from /signin#code=…, and out of the address at once. The link may say where to go then.
export async function signInByLink(main) {
  if (location.pathname !== '/signin') return null;
  const link = new URLSearchParams(location.hash.slice(1));
  const [code, then] = [link.get('code'), link.get('then')];
  history.replaceState(null, '', /^[a-z0-9-]+$/.test(then || '') ? `/#/c/${then}` : '/');
  if (!code) return null;
  try {
    return await post('/api/signin', { code });
  } catch (error) {
    if (error.status === 401) return { user: null, spent: true };
    if (error.status !== 409) throw error;
    return await agrees(main, error.body) ? signInInstead(code) : null;
  }
}

async function signInInstead(code) {
  try {
    return await post('/api/signin', { code, replace: true });
  } catch (error) {
    if (error.status === 401) return { user: null, spent: true };
    throw error;
  }
}

// agrees asks who is signed in whether the user of a link is to take their place: it may be a link that somebody else sent.
function agrees(main, { user, namespace }) {
  return new Promise((answer) => {
    show(main, h('div', { class: 'card signin', role: 'alertdialog', 'aria-labelledby': 'instead' },
      h('h1', { id: 'instead' }, `Sign in as ${user}?`),
      h('p', null, `Somebody else is signed in here. The link is that of ${user} in ${namespace}: what you do and store after it is theirs.`),
      h('button', { type: 'button', class: 'main', onclick: () => answer(false) }, 'Stay signed in'),
      h('button', { type: 'button', onclick: () => answer(true) }, `Sign in as ${user}`)));
    main.querySelector('button').focus();
  });
}
