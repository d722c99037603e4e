// Sign-in with the session key or with a link that works once.
import { post } from './api.js';
import { h, show, busy } from './render.js';

export function showSignIn(main, then, reason = '') {
  const key = h('input', { id: 'key', type: 'password', autocomplete: 'current-password', required: true, 'aria-describedby': 'key-help' });
  const failed = h('p', { class: 'failed', role: 'alert' }, reason);
  const button = h('button', { type: 'submit', class: 'main' }, 'Sign in');
  const form = h('form', { class: 'card signin' },
    h('h1', null, 'Sign in'),
    h('label', { for: 'key' }, 'Session key'), key,
    h('p', { id: 'key-help', class: 'help' }, 'Print it with kubectl parley key NAME, where NAME is your UserSettings, or ask your administrator.'),
    failed, button);
  form.addEventListener('submit', busy(button, async () => {
    failed.textContent = '';
    try {
      then(await post('/api/signin', { key: key.value.trim() }));
    } catch (error) {
      failed.textContent = error.status === 401 ? 'Wrong key.' : error.message;
      key.select();
    }
  }));
  show(main, form);
  key.focus();
}

// signInByLink takes the code from /signin#code=… and removes it from the address at once. The link
// may name a conversation to open.
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
    return await confirmReplace(main, error.body) ? replaceUser(code) : null;
  }
}

async function replaceUser(code) {
  try {
    return await post('/api/signin', { code, replace: true });
  } catch (error) {
    if (error.status === 401) return { user: null, spent: true };
    throw error;
  }
}

// confirmReplace asks the signed-in user before a link signs in as another one: another person may
// have sent the link.
function confirmReplace(main, { user, namespace }) {
  return new Promise((answer) => {
    show(main, h('div', { class: 'card signin', role: 'alertdialog', 'aria-labelledby': 'instead' },
      h('h1', { id: 'instead' }, `Sign in as ${user}?`),
      h('p', null, `Another user is signed in. This link belongs to ${user} in ${namespace}: after signing in, everything you save goes to that account.`),
      h('button', { type: 'button', class: 'main', onclick: () => answer(false) }, 'Stay signed in'),
      h('button', { type: 'button', onclick: () => answer(true) }, `Sign in as ${user}`)));
    main.querySelector('button').focus();
  });
}
